"""The task registry: functions by the names that stored jobs use."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from inspect import isawaitable, signature
from types import MappingProxyType
from typing import Any

from msgspec import ValidationError

from poolhand.context import restored, running
from poolhand.durable.calls.capture import attribute_output, captured, close_output, show_log
from poolhand.durable.calls.declaration import (
    arguments_schema,
    is_defined_anew,
    is_same_source,
    source_of,
    version_of,
)
from poolhand.durable.calls.signature import Call, Signature
from poolhand.durable.calls.unfit import outdated
from poolhand.errors import Undecodable, UsageError
from poolhand.rules.explain import (
    ANY_VERSION,
    call_cause,
    in_any_package,
    is_same_task,
    key_cause,
    short_names,
    task_cause,
)
from poolhand.rules.json_values import Canonical
from poolhand.rules.queue.idempotency import call_digest
from poolhand.rules.validation import NAME, shown
from poolhand.wire.codec import PICKLE
from poolhand.wire.envelope import compress, short_text
from poolhand.wire.payload import CODECS, LONGEST_REASON, Wire

UNCHECKED = ""  # in place of a codec: values are not checked against it
WIRE = "wire"  # key in the values of an attempt: the Wire of its app


class TaskCode:
    """A function and its name; `fn` is the function that runs.

    With `exact`, a call or result that would not be read back unchanged is refused. Without, the
    codec may change it.
    """

    _given_as = "values"

    def __init__(
        self, name: str, fn: Callable[..., Any], wire: Wire, *, exact: bool = True
    ) -> None:
        NAME.require("task name", name)
        self.name = name
        self.fn = fn
        self.signature = Signature(fn, name)
        self.wire = wire
        self._exact = exact
        # Signed calls have to be bound to their job.
        self.signs = wire.ring is not None
        # Names for error texts; made once, as every job needs them.
        self._call, self._kept_call = f"a call of {name}", f"the stored call of {name}"
        self._result = f"the result of {name}"
        self._context = f"the context of a call of {name}"
        self._version: str | None = None
        self.source = source_of(fn)

    @property
    def version(self) -> str:
        """A digest of the calls that this task accepts; another version may accept others."""
        if self._version is None:
            self._version = version_of(self.signature, self.wire)
        return self._version

    def arguments(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return arguments_schema(self.signature)

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Return the names and kinds of the parameters, in order."""
        return tuple(zip(self.signature.fields(), self.signature.kinds, strict=True))

    def is_meant(self, name: str, source: str | None) -> bool:
        """Return whether a job of a task of that name, from that file, means this one.

        Another name may have the same end by chance: then it is in another file. Jobs of older
        versions do not record the file.
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
        ring = self.wire.ring
        for key_id in () if ring is None else ring.names:
            yield key_cause(key_id, name)

    def pack(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bytes | None = None
    ) -> bytes:
        """Return the packed call; raise if it could never be run."""
        signature, wire = self.signature, self.wire
        call = signature.bind(args, kwargs)
        sure = signature.check_call(call, wire.codec if self._exact else UNCHECKED)
        written = call if sure else signature.lowered(call, wire.codec)
        try:
            payload = wire.write(written, self._call, bound)
        except UsageError:
            self._find_unwritable(written)
            raise
        if not sure:
            try:
                back = wire.read(payload, signature.call_type, self._call, bound)
            except Undecodable as error:
                raise signature.misfit(error.__cause__ or error, call) from None
            if self._exact:
                signature.check_read(call, back)
        return payload

    def digest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
        """Return the digest of a call's arguments, None if they cannot be compared."""
        given, kind = self.signature.bind(args, kwargs)[2], f"{self._given_as} {self.version}"
        return call_digest(kind, given, signature(self.fn).parameters, Canonical())

    def sign(self, packed: bytes, bound: bytes) -> bytes:
        """Return bytes that this task has signed with a signature bound to something else."""
        return self.wire.sign(packed, bound)

    def _find_unwritable(self, call: Call) -> None:
        """Raise for the argument that cannot be written, by its name."""
        for name, value in call[2].items():
            self.wire.write(value, f"argument {name!r} of {self._call}")

    def check_findable(self) -> None:
        """Raise if a child process surely cannot find this function."""
        if "<" in getattr(self.fn, "__qualname__", "<"):
            raise self.unfindable()

    @property
    def is_findable(self) -> bool:
        """Whether a child process finds this function by its name."""
        # Not checked earlier: while the decorator runs, the name is not assigned yet.
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
        """Return a stored call, ready to run."""
        signature = self.signature
        try:
            call = self.wire.read(payload, signature.call_type, self._kept_call, bound)
        except Undecodable as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            reason = str(error.__cause__)[:LONGEST_REASON]
            text = outdated(self._kept_call, str(signature), reason)
            raise Undecodable(text) from error.__cause__
        if call[0] != self.name and not is_same_task(call[0], self.name):
            text = f"{self._kept_call} is one of {call[0]!a}; it was moved, and is not made"
            raise Undecodable(text)
        args, kwargs = signature.unbind(call)
        return partial(self.fn, *args, **kwargs)

    def pack_context(self, values: dict[str, Any], bound: bytes = b"") -> bytes:
        """Return the packed context values of a call, signed if the call is."""
        return self.wire.write((self.name, values), self._context, bound)

    def unpack_context(self, data: bytes, bound: bytes = b"") -> dict[str, Any]:
        """Return the context values of a stored call."""
        name, values = self.wire.read(data, tuple[str, dict[str, Any]], self._context, bound)
        if not is_same_task(name, self.name):
            text = f"{self._context} is one of {name!a}; it was moved, and is not used"
            raise Undecodable(text)
        found: dict[str, Any] = values
        return found

    def pack_result(self, value: Any, bound: bytes = b"") -> bytes:
        """Return the packed result; raise if it could not be read back."""
        signature, codec = self.signature, self.wire.codec
        sure = signature.check_result(value, codec if self._exact else UNCHECKED)
        written = value if sure else signature.lowered_result(value, codec)
        data = self.wire.write(written, self._result, bound)
        if not sure:
            try:
                back = self.unpack_result(data, bound)
            except (Undecodable, UsageError) as error:
                raise signature.misreturned(value, error.__cause__ or error) from None
            if self._exact:
                signature.check_read_result(value, back)
        return data

    def unpack_result(self, data: bytes, bound: bytes = b"") -> Any:
        return self.wire.read(data, self.signature.result_type, self._result, bound)


class TaskRegistry:
    """All tasks of an app by name. A stored job never causes an import.

    Tasks that were not added here are looked up in `others`. A task is found by its name, or by the
    only name here such that one of the two is the dotted end of the other: `agents.f` and
    `proj.agents.f` are one function whose module was started in two ways.
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
        """Register a task under its name, replacing any task of that name."""
        name = code.name
        if name not in self._codes:
            for short in short_names(name):
                self._longer[short] = (*self._longer.get(short, ()), name)
        self._codes[name] = code
        self._changes += 1

    def check(self) -> None:
        """Raise if a task has types that can never be stored; by now all must be defined."""
        for code in list(self._codes.values()):
            code.signature.check()

    def causes(self) -> frozenset[str]:
        """Return the causes of jobs that wait for one of these tasks, or for one of their keys."""
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
        # A worker claims `other` under any package prefix: so it must be the only possible match.
        return None if len(other) < len(name) and self._near(other) else code

    def candidates(self, name: str) -> list[str]:
        """Return the names of the tasks that an ambiguous name may mean."""
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
        # Copy to lists: tasks may be registered by another thread meanwhile.
        return list(self._codes.values()) + ([] if self._others is None else self._others._all())

    @property
    def registered(self) -> tuple[object, ...]:
        """A value that stays equal as long as no task is registered or replaced."""
        return self._changes, None if self._others is None else self._others.registered


# All tasks of all apps of this process: a durable pool looks up tasks here that it was not given.
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
    """Run the call of a task in a child process, which has to find the task first.

    With `attributed_level` its output is attributed, and log records from that level on are shown.
    """
    if attributed_level is not None:
        attribute_output()
    found, inside = _found(module, path), running.get()
    if attributed_level is not None:
        # After the import: the module may configure logging itself.
        show_log(attributed_level)
    attempt_values = {} if inside is None else inside.attempt_values
    code = getattr(found, "code", None)
    if isinstance(code, TaskCode):
        attempt_values[WIRE] = code.wire
    # After the import: the module registers its context variables.
    with restored(context), captured() if captures else nullcontext():
        try:
            value = getattr(found, "fn", found)(*args, **kwargs)
            return asyncio.run(_await(value)) if isawaitable(value) else value
        finally:
            close_output(attempt_values)


def found_at(module: str, path: str) -> Callable[..., Any]:
    """Return the function of that name, unwrapped from the task that replaced it."""
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


HEAD = b"PH\x01"
COMPRESSED, SIGNED = 1, 2


def former_digests(code: TaskCode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bytes]:
    """Return all digests that a call may have had, the likeliest first."""
    call = code.signature.bind(args, kwargs)
    wire = code.wire
    names = sorted(CODECS, key=lambda name: name != wire.codec)
    digests = []
    for name in names:
        if name == PICKLE.name and wire.pickle is None:
            continue
        # A value that this codec cannot write was never stored with it.
        with suppress(Exception):
            body = CODECS[name].write(call)
            digests += [hashlib.sha256(data).digest() for data in _enveloped(name, body, wire)]
    return digests


def _enveloped(codec: str, body: bytes, wire: Wire) -> Iterator[bytes]:
    packed = compress(body) if len(body) > wire.limits.compress_above else None
    flags = 0 if packed is None else COMPRESSED
    body = body if packed is None else packed
    if wire.ring is not None:
        for key_id in wire.ring.names:
            data = HEAD + bytes((flags | SIGNED,)) + short_text(codec) + short_text(key_id) + body
            yield data + wire.ring.former_signature(key_id, data)
    yield HEAD + bytes((flags,)) + short_text(codec) + body
