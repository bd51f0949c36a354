"""The code of tasks: functions under the names by which stored jobs ask for them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from inspect import isawaitable, unwrap
from types import MappingProxyType
from typing import Any

from poolhand.context import restored, running
from poolhand.errors import Undecodable, UsageError
from poolhand.execute.capture import captured, close_output
from poolhand.execute.parcel import Parcels
from poolhand.execute.signature import Signature
from poolhand.rules.causes import task_cause
from poolhand.rules.checks import NAME_ALLOWED, is_name, shown

PARCELS = "parcels"  # on the shelf of an attempt: how its app writes what it keeps


class Code:
    """A function and its name; `fn` is what runs."""

    def __init__(self, name: str, fn: Callable[..., Any], parcels: Parcels) -> None:
        if not is_name(name):
            raise UsageError(f"task name={shown(name)} is not allowed; it must be {NAME_ALLOWED}")
        self.name = name
        self.fn = fn
        self.signature = Signature(fn, name)
        self.parcels = parcels
        # What errors call them; made once, as every job needs them.
        self._call, self._kept_call = f"a call of {name}", f"the kept call of {name}"
        self._result = f"the result of {name}"
        self._context = f"the context of a call of {name}"

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call as it is kept; one that could never be made is refused here."""
        call = self.signature.bind(args, kwargs)
        payload = self.parcels.write(call, self._call)
        if not self.signature.surely_fits(call):
            try:
                self.parcels.read(payload, self.signature.call_type, self._call)
            except Undecodable as error:
                raise self.signature.misfit(error.__cause__ or error) from None
        return payload

    def check_findable(self) -> None:
        """Raise if a process of its own surely cannot find this function."""
        if "<" in getattr(self.fn, "__qualname__", "<"):
            raise self.unfindable()

    @property
    def is_findable(self) -> bool:
        """Whether a process of its own finds this function by its name."""
        # Only now: while a task is made, its name is not yet given.
        try:
            return found_at(self.fn.__module__, self.fn.__qualname__) is self.fn
        except Exception:
            return False

    def unfindable(self) -> UsageError:
        return UsageError(
            f"task {self.name!r} cannot run in a process of its own, which finds it by its name: "
            "define it at the top level of a module"
        )

    def unpack(self, payload: bytes) -> Callable[[], Any]:
        """Return a kept call, ready to be made."""
        call = self.parcels.read(payload, self.signature.call_type, self._kept_call)
        if call[0] != self.name:
            text = f"{self._kept_call} is one of {call[0]!a}; it was moved, and is not made"
            raise Undecodable(text)
        args, kwargs = self.signature.unbind(call)
        return partial(self.fn, *args, **kwargs)

    def pack_context(self, values: dict[str, Any]) -> bytes:
        """Return what comes along with a call as it is kept: signed like the call, if that is."""
        return self.parcels.write((self.name, values), self._context)

    def unpack_context(self, data: bytes) -> dict[str, Any]:
        """Return what came along with a kept call."""
        name, values = self.parcels.read(data, tuple[str, dict[str, Any]], self._context)
        if name != self.name:
            text = f"{self._context} is one of {name!a}; it was moved, and is not used"
            raise Undecodable(text)
        found: dict[str, Any] = values
        return found

    def pack_result(self, value: Any) -> bytes:
        """Return a result as it is kept; one that nobody could read is refused here."""
        data = self.parcels.write(value, self._result)
        if not self.signature.surely_returns(value):
            try:
                self.unpack_result(data)
            except (Undecodable, UsageError) as error:
                raise self.signature.misreturned(value, error.__cause__ or error) from None
        return data

    def unpack_result(self, data: bytes) -> Any:
        return self.parcels.read(data, self.signature.returns, self._result)


class Codes:
    """All tasks of an app by name. Nothing is imported because a stored job asks for it.

    What was not added here is looked for among the `others`.
    """

    def __init__(self, others: Codes | None = None) -> None:
        self._codes: dict[str, Code] = {}
        self._others = others
        self._causes: frozenset[str] | None = None

    def add(self, code: Code) -> None:
        other = self._codes.get(code.name)
        if other is not None and other.fn is not code.fn and not _is_reloaded(other.fn, code.fn):
            raise UsageError(
                f"task {code.name!r} is registered already; give one of the two another name="
            )
        self.renew(code)

    def renew(self, code: Code) -> None:
        """Keep a task under its name, in place of what had that name before."""
        self._codes[code.name] = code
        self._causes = None

    def causes(self) -> frozenset[str]:
        """Return the causes of jobs that wait for one of these tasks."""
        causes = self._causes
        if causes is None:
            # A list first: tasks may be registered while this thread looks.
            causes = self._causes = frozenset(map(task_cause, list(self._codes)))
        return causes if self._others is None else causes | self._others.causes()

    def find(self, name: str) -> Code | None:
        code = self._codes.get(name)
        return self._others.find(name) if code is None and self._others is not None else code


# Every task of every app of this process: where a durable pool finds those it was not handed.
KNOWN = Codes()


def name_of_task(fn: Callable[..., Any]) -> str:
    """Return the name under which every process knows a function, however it was started."""
    module, path = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if module is None or path is None:
        raise UsageError(f"{fn!r} has no name to be found by; give it one: @app.task(name=…)")
    if module in ("__main__", "__mp_main__"):
        # The second is what a child of multiprocessing calls the script of its parent.
        module = _name_of_script(fn)
    return f"{module}.{path}"


def _name_of_script(fn: Callable[..., Any]) -> str:
    # What the function itself sees: while a child imports it, its main module is another one.
    main = getattr(unwrap(fn), "__globals__", None) or vars(sys.modules["__main__"])
    spec = main.get("__spec__")
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = str(main.get("__file__") or "__main__")
    return file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")


def _is_reloaded(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)


def run_apart(
    module: str,
    path: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    captures: bool = False,
    context: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Make the call of a task in a process of its own, which has to find the task first."""
    found, inside = _found(module, path), running.get()
    shelf = {} if inside is None else inside.shelf
    code = getattr(found, "code", None)
    if isinstance(code, Code):
        shelf[PARCELS] = code.parcels
    # Its variables are registered by the module that was just imported.
    with restored(context), captured() if captures else nullcontext():
        try:
            value = getattr(found, "fn", found)(*args, **kwargs)
            return asyncio.run(_await(value)) if isawaitable(value) else value
        finally:
            close_output(shelf)


def found_at(module: str, path: str) -> Callable[..., Any]:
    """Return the function of that name, behind the task that has taken its place."""
    found = _found(module, path)
    fn: Callable[..., Any] = getattr(found, "fn", found)
    return fn


def _found(module: str, path: str) -> Any:
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


async def _await(value: Any) -> Any:
    return await value
