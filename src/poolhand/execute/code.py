"""The code of tasks: functions under the names by which stored jobs ask for them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from inspect import isawaitable, unwrap
from types import MappingProxyType
from typing import Any

from poolhand.context import restored, running
from poolhand.errors import Undecodable, UsageError
from poolhand.execute.attribution import attribute_output, show_log
from poolhand.execute.capture import captured, close_output
from poolhand.execute.parcel import Parcels
from poolhand.execute.schema import arguments_schema, version_of
from poolhand.execute.signature import Signature
from poolhand.rules.causes import ANY_VERSION, call_cause, key_cause, task_cause
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
        # What is signed has to be bound to its job.
        self.signs = parcels.ring is not None
        # What errors call them; made once, as every job needs them.
        self._call, self._kept_call = f"a call of {name}", f"the kept call of {name}"
        self._result = f"the result of {name}"
        self._context = f"the context of a call of {name}"
        self._version: str | None = None

    @property
    def version(self) -> str:
        """Which calls this task accepts: another version may accept others, or the same."""
        if self._version is None:
            self._version = version_of(self.signature, self.parcels)
        return self._version

    def arguments(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return arguments_schema(self.signature)

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Return the names and kinds of the parameters, in order."""
        return tuple(zip(self.signature.fields(), self.signature.kinds, strict=True))

    def causes(self) -> Iterator[str]:
        """Return the causes of jobs that wait for this task, or for a key that it reads with."""
        yield task_cause(self.name)
        yield call_cause(ANY_VERSION, self.name)
        ring = self.parcels.ring
        for key_id in () if ring is None else ring.names:
            yield key_cause(key_id, self.name)

    def pack(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bytes | None = None
    ) -> bytes:
        """Return a call as it is kept; one that could never be made is refused here."""
        call = self.signature.bind(args, kwargs)
        payload = self.parcels.write(call, self._call, bound)
        if not self.signature.surely_fits(call):
            try:
                self.parcels.read(payload, self.signature.call_type, self._call, bound)
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

    def unpack(self, payload: bytes, bound: bytes | None = None) -> Callable[[], Any]:
        """Return a kept call, ready to be made."""
        call = self.parcels.read(payload, self.signature.call_type, self._kept_call, bound)
        if call[0] != self.name:
            text = f"{self._kept_call} is one of {call[0]!a}; it was moved, and is not made"
            raise Undecodable(text)
        args, kwargs = self.signature.unbind(call)
        return partial(self.fn, *args, **kwargs)

    def pack_context(self, values: dict[str, Any], bound: bytes = b"") -> bytes:
        """Return what comes along with a call as it is kept: signed like the call, if that is."""
        return self.parcels.write((self.name, values), self._context, bound)

    def unpack_context(self, data: bytes, bound: bytes = b"") -> dict[str, Any]:
        """Return what came along with a kept call."""
        name, values = self.parcels.read(data, tuple[str, dict[str, Any]], self._context, bound)
        if name != self.name:
            text = f"{self._context} is one of {name!a}; it was moved, and is not used"
            raise Undecodable(text)
        found: dict[str, Any] = values
        return found

    def pack_result(self, value: Any, bound: bytes = b"") -> bytes:
        """Return a result as it is kept; one that nobody could read is refused here."""
        data = self.parcels.write(value, self._result, bound)
        if not self.signature.surely_returns(value):
            try:
                self.unpack_result(data, bound)
            except (Undecodable, UsageError) as error:
                raise self.signature.misreturned(value, error.__cause__ or error) from None
        return data

    def unpack_result(self, data: bytes, bound: bytes = b"") -> Any:
        return self.parcels.read(data, self.signature.returns, self._result, bound)


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
        """Return the causes of jobs that wait for one of these tasks, or for a key of theirs."""
        causes = self._causes
        if causes is None:
            # A list first: tasks may be registered while this thread looks.
            codes = list(self._codes.values())
            causes = self._causes = frozenset(cause for code in codes for cause in code.causes())
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
    attributed_level: int | None = None,
) -> Any:
    """Make the call of a task in a process of its own, which has to find the task first.

    With an `attributed_level` its output is one of many, and that much is logged.
    """
    if attributed_level is not None:
        attribute_output()
    found, inside = _found(module, path), running.get()
    if attributed_level is not None:
        # Only now: the module may have arranged for that.
        show_log(attributed_level)
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
