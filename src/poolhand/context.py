"""Job context: what a running job can see of itself and of the context it was submitted in."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token, copy_context
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from poolhand.errors import UsageError
from poolhand.rules.json_values import describe_change, find_change

T = TypeVar("T")

MOST_BYTES = 8 * 1024  # all context variables of a job, as JSON: every submit writes them


class JobChannel:
    """An awaitable that is already complete."""

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]


EMITTED = JobChannel()


class RunningJobApi(Protocol):
    """The running attempt, as seen by its own code."""

    @property
    def stop_requested(self) -> bool: ...

    @property
    def submitter(self) -> str: ...

    @property
    def token(self) -> int | None: ...

    def snapshot(self) -> object: ...

    @property
    def attempt_values(self) -> dict[str, Any]:
        """Values that parts of the package store for the duration of the attempt."""

    def emit(self, kind: str, data: bytes) -> Awaitable[None]:
        """Append a line, as JSON, to the event log of the job; from any thread."""

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]:
        """Send a request to the store for this attempt; valid only while its lease is held."""


running: ContextVar[RunningJobApi | None] = ContextVar("poolhand_running", default=None)


def stop_requested() -> bool:
    """Return whether the running job was asked to stop.

    Async jobs get a CancelledError. A job in a thread or a process is not interrupted: long loops
    there should call this now and then, and return.
    """
    inside = running.get()
    return inside is not None and inside.stop_requested


def fencing_token() -> int | None:
    """Return the token of the lease under which the running attempt holds its job.

    Tokens grow with every attempt at every job of a store: a resource that remembers the highest
    token it has seen can refuse writes of an abandoned attempt. None for a job in no store.
    """
    inside = running.get()
    return None if inside is None else inside.token


class Registered(NamedTuple):
    """A context variable that travels with jobs, and the module that registered it."""

    variable: ContextVar[Any]
    module: str


REGISTERED: dict[str, Registered] = {}


def register(variable: ContextVar[T], *, name: str | None = None) -> ContextVar[T]:
    """Send the value of a variable with every job of a store, and return the variable.

    Its values must be JSON. The worker finds it by its name, so use the same name everywhere.
    """
    if not isinstance(variable, ContextVar):
        kind = type(variable).__name__
        raise UsageError(f"context.register takes a contextvars.ContextVar, not a {kind}")
    known_as: Any = variable.name if name is None else name
    if not isinstance(known_as, str) or not known_as or not known_as.isprintable():
        text = f"context.register: the name {known_as!a} is not allowed; give a text of one line"
        raise UsageError(text)
    module = str(sys._getframe(1).f_globals.get("__name__", ""))
    other = REGISTERED.get(known_as)
    # A reloaded module creates its variables again; two modules mean two different variables.
    if other is not None and other.variable is not variable and other.module != module:
        raise UsageError(
            f"context.register: {other.module} has another variable under the name {known_as!r}; "
            "register one of the two with name=…"
        )
    REGISTERED[known_as] = Registered(variable, module)
    return variable


def snapshot() -> dict[str, Any]:
    """Return the values, by variable name, that would travel with a job submitted now.

    Only values that were set: the worker has the defaults as well. Values are copies.
    """
    if not REGISTERED:
        return {}
    here = copy_context()
    values: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    # A copy, because another thread may import a module that registers more.
    for name, one in list(REGISTERED.items()):
        if one.variable in here:
            data = _as_json(name, here[one.variable])
            values[name], sizes[name] = msgspec.json.decode(data), len(name) + len(data)
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise UsageError(
            f"the context variables that travel with a job have {sum(sizes.values()):,} bytes as "
            f"JSON, most of them in {largest!r}; the limit is {MOST_BYTES:,}: store the data "
            "elsewhere and set a reference to it"
        )
    return values


def _as_json(name: str, value: Any) -> bytes:
    """Return a value as JSON if JSON preserves it, else raise UsageError."""
    changed = find_change(value)
    if changed is None:
        with suppress(Exception):
            # NaN, half of a surrogate pair, or a value that contains itself fails here.
            data = msgspec.json.encode(value)
            if msgspec.json.decode(data) == value:
                return data
        what = f"is set to a {type(value).__name__} that JSON cannot give back"
    else:
        what = describe_change(changed, name)
    # The message omits the value: it may be a secret.
    raise UsageError(
        f"the context variable {name!r} travels with jobs, and {what}; set texts, finite numbers, "
        "bools, None, or lists and dicts of them, whose keys are texts"
    )


def restore(values: Mapping[str, Any]) -> list[Token[Any]]:
    """Set registered variables to the values of a snapshot, until the end of the context.

    Names that are not registered are ignored: the submitter may have another version.
    """
    return [
        REGISTERED[name].variable.set(value) for name, value in values.items() if name in REGISTERED
    ]


@contextmanager
def restored(values: Mapping[str, Any]) -> Iterator[None]:
    """Run a block with registered variables set from a snapshot, and reset them afterwards."""
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise UsageError(f"context.restored takes what context.snapshot() returned, not a {kind}")
    tokens = restore(values)
    try:
        yield
    finally:
        # In reverse order, because two names may refer to one variable.
        for token in reversed(tokens):
            token.var.reset(token)
