"""The code of tasks: functions under the names by which stored jobs ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from inspect import isawaitable
from types import MappingProxyType
from typing import Any

from msgspec import ValidationError

from poolhand.context import restored, running
from poolhand.durable.calls.attribution import attribute_output, show_log
from poolhand.durable.calls.capture import captured, close_output
from poolhand.durable.calls.schema import arguments_schema, version_of
from poolhand.durable.calls.serializer import Serializer
from poolhand.durable.calls.signature import Call, Signature
from poolhand.durable.calls.task_name import is_defined_anew, is_same_source, source_of
from poolhand.durable.calls.unfit import outdated
from poolhand.errors import Undecodable, UsageError
from poolhand.rules.causes import (
    ANY_VERSION,
    call_cause,
    in_any_package,
    is_same_task,
    key_cause,
    short_names,
    task_cause,
)
from poolhand.rules.validation import NAME_ALLOWED, is_name, shown
from poolhand.wire.payload import LONGEST_REASON

UNCHECKED = ""  # in place of a codec: nothing is held against what it keeps
PARCELS = "parcels"  # on the shelf of an attempt: how its app writes what it keeps


class TaskCode:
    """A function and its name; `fn` is what runs.

    With `exact` a call or a result that would not come back as it is is refused. Without, it is
    whatever its codec makes of it.
    """

    def __init__(
        self, name: str, fn: Callable[..., Any], parcels: Serializer, *, exact: bool = True
    ) -> None:
        if not is_name(name):
            raise UsageError(f"task name={shown(name)} is not allowed; it must be {NAME_ALLOWED}")
        self.name = name
        self.fn = fn
        self.signature = Signature(fn, name)
        self.parcels = parcels
        self._exact = exact
        # What is signed has to be bound to its job.
        self.signs = parcels.ring is not None
        # What errors call them; made once, as every job needs them.
        self._call, self._kept_call = f"a call of {name}", f"the kept call of {name}"
        self._result = f"the result of {name}"
        self._context = f"the context of a call of {name}"
        self._version: str | None = None
        self.source = source_of(fn)

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

    def is_meant(self, name: str, source: str | None) -> bool:
        """Tell whether a job of a task of that name, from that file, means this one.

        Another name may end alike by chance: then it stands in another file. Jobs of older versions
        do not say in which.
        """
        if name == self.name or source is None:
            return True
        return is_same_source(self.source, source, max(name, self.name, key=len))

    def causes(self, name: str | None = None) -> Iterator[str]:
        """Return the causes of jobs that wait for this task, or for a key that it reads with.

        A job may know the task by another `name`.
        """
        name = self.name if name is None else name
        yield task_cause(name)
        yield call_cause(ANY_VERSION, name)
        ring = self.parcels.ring
        for key_id in () if ring is None else ring.names:
            yield key_cause(key_id, name)

    def pack(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bytes | None = None
    ) -> bytes:
        """Return a call as it is kept; one that could never be made is refused here."""
        signature, parcels = self.signature, self.parcels
        call = signature.bind(args, kwargs)
        sure = signature.check_call(call, parcels.codec if self._exact else UNCHECKED)
        written = call if sure else signature.lowered(call, parcels.codec)
        try:
            payload = parcels.write(written, self._call, bound)
        except UsageError:
            self._find_unwritable(written)
            raise
        if not sure:
            try:
                back = parcels.read(payload, signature.call_type, self._call, bound)
            except Undecodable as error:
                raise signature.misfit(error.__cause__ or error, call) from None
            if self._exact:
                signature.check_read(call, back)
        return payload

    def sign(self, packed: bytes, bound: bytes) -> bytes:
        """Return bytes that this task has signed, signed for something else."""
        return self.parcels.sign(packed, bound)

    def _find_unwritable(self, call: Call) -> None:
        """Raise for the argument that cannot be written, by its name."""
        for name, value in call[2].items():
            self.parcels.write(value, f"argument {name!r} of {self._call}")

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
        signature = self.signature
        try:
            call = self.parcels.read(payload, signature.call_type, self._kept_call, bound)
        except Undecodable as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            reason = str(error.__cause__)[:LONGEST_REASON]
            text = outdated(self._kept_call, str(signature), reason)
            raise Undecodable(text) from error.__cause__
        if not is_same_task(call[0], self.name):
            text = f"{self._kept_call} is one of {call[0]!a}; it was moved, and is not made"
            raise Undecodable(text)
        args, kwargs = signature.unbind(call)
        return partial(self.fn, *args, **kwargs)

    def pack_context(self, values: dict[str, Any], bound: bytes = b"") -> bytes:
        """Return what comes along with a call as it is kept: signed like the call, if that is."""
        return self.parcels.write((self.name, values), self._context, bound)

    def unpack_context(self, data: bytes, bound: bytes = b"") -> dict[str, Any]:
        """Return what came along with a kept call."""
        name, values = self.parcels.read(data, tuple[str, dict[str, Any]], self._context, bound)
        if not is_same_task(name, self.name):
            text = f"{self._context} is one of {name!a}; it was moved, and is not used"
            raise Undecodable(text)
        found: dict[str, Any] = values
        return found

    def pack_result(self, value: Any, bound: bytes = b"") -> bytes:
        """Return a result as it is kept; one that nobody could read is refused here."""
        signature, codec = self.signature, self.parcels.codec
        sure = signature.check_result(value, codec if self._exact else UNCHECKED)
        written = value if sure else signature.lowered_result(value, codec)
        data = self.parcels.write(written, self._result, bound)
        if not sure:
            try:
                back = self.unpack_result(data, bound)
            except (Undecodable, UsageError) as error:
                raise signature.misreturned(value, error.__cause__ or error) from None
            if self._exact:
                signature.check_read_result(value, back)
        return data

    def unpack_result(self, data: bytes, bound: bytes = b"") -> Any:
        return self.parcels.read(data, self.signature.result_type, self._result, bound)


class TaskRegistry:
    """All tasks of an app by name. Nothing is imported because a stored job asks for it.

    What was not added here is looked for among the `others`. A task is found by its name, or by the
    one name here of which one is the dotted end of the other: `agents.f` and `proj.agents.f` are
    one function whose module was started in two ways.
    """

    def __init__(self, others: TaskRegistry | None = None) -> None:
        self._codes: dict[str, TaskCode] = {}
        self._longer: dict[str, tuple[str, ...]] = {}
        self._others = others
        self._changes = 0
        self._causes: tuple[object, frozenset[str]] | None = None

    def add(self, code: TaskCode) -> None:
        other = self._codes.get(code.name)
        if other is not None and not is_defined_anew(other.fn, code.fn):
            raise UsageError(
                f"task {shown(code.name)} is registered already, for another function; give one of "
                "the two another name: @app.task(name=…)"
            )
        self.renew(code)

    def renew(self, code: TaskCode) -> None:
        """Keep a task under its name, in place of what had that name before."""
        name = code.name
        if name not in self._codes:
            for short in short_names(name):
                self._longer[short] = (*self._longer.get(short, ()), name)
        self._codes[name] = code
        self._changes += 1

    def check(self) -> None:
        """Raise if a task has types that can never be stored; by now all have to be defined."""
        for code in list(self._codes.values()):
            code.signature.check()

    def causes(self) -> frozenset[str]:
        """Return the causes of jobs that wait for one of these tasks, or for a key of theirs."""
        known, version = self._causes, self.registered
        if known is None or known[0] != version:
            known = self._causes = version, frozenset(self._all_causes())
        return known[1]

    def find(self, name: str) -> TaskCode | None:
        """Return the task that a name means; None if it means none, or may mean several."""
        code = self._exact(name)
        if code is not None:
            return code
        near = self._near(name)
        if len(near) != 1:
            return None
        ((other, code),) = near.items()
        # A worker offers `other` for whatever package: then it must be the only one to be meant.
        return None if len(other) < len(name) and self._near(other) else code

    def candidates(self, name: str) -> list[str]:
        """Return the names of the tasks between which a name does not decide."""
        if self.find(name) is not None:
            return []
        near = self._near(name)
        return sorted({*near, *(more for other in near for more in self._near(other))})

    def _exact(self, name: str) -> TaskCode | None:
        code = self._codes.get(name)
        return self._others._exact(name) if code is None and self._others is not None else code

    def _near(self, name: str) -> dict[str, TaskCode]:
        """Return the tasks of other names that a name may mean."""
        near = {} if self._others is None else self._others._near(name)
        names = (*self._longer.get(name, ()), *short_names(name))
        return near | {other: self._codes[other] for other in names if other in self._codes}

    def _all_causes(self) -> Iterator[str]:
        for code in self._all():
            name = code.name
            yield from code.causes()
            for short in short_names(name):
                if self.find(short) is code:
                    yield from code.causes(short)
            if "." in name and not self._near(name):
                yield from map(in_any_package, code.causes())

    def _all(self) -> list[TaskCode]:
        # Lists: tasks may be registered while another thread looks.
        return list(self._codes.values()) + ([] if self._others is None else self._others._all())

    @property
    def registered(self) -> tuple[object, ...]:
        """Equal to what it was for as long as no task is registered or replaced."""
        return self._changes, None if self._others is None else self._others.registered


# Every task of every app of this process: where a durable pool finds those it was not handed.
KNOWN = TaskRegistry()


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
    if isinstance(code, TaskCode):
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
