"""Sessions: as they are stored, and as a turn sees them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from poolhand.context import RunningJobApi, running
from poolhand.errors import SchemaTooNew, SessionForbidden, TooLarge, UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.job import Job
from poolhand.rules.json_values import (
    Changed,
    as_json,
    describe_change,
    find_change,
    find_not_finite,
    returned_as,
)
from poolhand.rules.outcome import IS_PERMANENT
from poolhand.rules.queue.gates import may_use
from poolhand.rules.streams import rollbacks_of, session_of, streams_of_session
from poolhand.rules.validation import (
    AMOUNT,
    COUNT,
    convert_seconds,
    instance_of,
    is_count,
    shown,
)

MOST_STATE = 1024 * 1024  # bytes of JSON, unless the app configures another limit
KEPT_REVISIONS, KEPT_EXECUTIONS = 20, 1000

State = dict[str, Any]
Upcasters = Mapping[int, Callable[[State], State]]


class SessionRecord(Struct, frozen=True):
    """A session as it is stored; `turn` is the job that wrote it, `schema` the state's version.

    A `final` record was written with the outcome of its turn and is never rolled back. `writes`
    counts the writes of that turn, including this one.
    """

    id: str
    tenant: str | None
    user: str | None
    schema: int
    turn: str
    state: State
    final: bool = False
    writes: int = 1


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SessionRecord).decode


def new_state(session_id: str, at: datetime) -> State:
    """Return the initial state of a session that has not been written."""
    return {"session_id": session_id, "messages": [], "context": {}, "created_at": at.isoformat()}


def write(record: SessionRecord, most: int = MOST_STATE) -> bytes:
    """Encode a record for the store, or raise if its state cannot be stored."""
    if not isinstance(record.state, dict):
        kind = type(record.state).__name__
        raise UsageError(f"the state of session {record.id!r} is a {kind}; it must be a dict")
    changed = find_change(record.state)
    if changed is not None:
        raise UsageError(_changed(record.id, changed))
    try:
        data = _encode(record)
    except Exception as error:
        raise UsageError(
            f"the state of session {record.id!r} takes JSON values: {error}"
        ) from error
    # NaN and infinity are written as null.
    not_finite = find_not_finite(record.state) if b"null" in data else None
    if not_finite is not None:
        raise UsageError(
            f"the state of session {record.id!r} holds {not_finite.value} at "
            f"state{not_finite.place}, which is not a number in JSON; store None, or a text"
        )
    if len(data) > most:
        raise TooLarge(
            f"the state of session {record.id!r} has {len(data):,} bytes; at most {most:,} "
            "are kept: leave out what can be found elsewhere, or raise the limit: "
            "App(…, wire=Wire(limits=Limits(state=…)))",
            limit=most,
            size=len(data),
        )
    return data


def _changed(id: str, changed: Changed) -> str:
    text = f"the state of session {id!r} {describe_change(changed, 'state')}"
    if changed.is_key:
        return f"{text}; use str({changed.value!r}) as the key"
    if returned_as(changed.value) is None:
        return f"{text}; store the data it is made from"
    return f"{text}; store {as_json(changed.value, 'state' + changed.place)}, and read it back so"


def read(data: bytes) -> SessionRecord:
    return _decode(data)


def upcast(record: SessionRecord, schema: int, upcasters: Upcasters) -> State:
    """Return the state converted to the current schema."""
    state, known = record.state, record.schema
    if known > schema:
        raise SchemaTooNew(
            f"the state of session {record.id!r} has schema {known}, the agent here {schema}: run "
            "the newer code that wrote it"
        )
    for step in range(known, schema):
        if step not in upcasters:
            raise UsageError(
                f"the state of session {record.id!r} has schema {known}, the agent {schema}: give "
                f"upcasters={{{step}: …}}, which takes it from {step} to {step + 1}"
            )
        state = upcasters[step](state)
    return state


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def without_session(fn: Callable[..., Any], session: type) -> inspect.Signature:
    """Return the signature of an agent as its callers see it, or raise if it is invalid."""
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    if not inspect.iscoroutinefunction(fn):
        raise _refusal(fn, parameters, "it is not an async function")
    if not parameters:
        raise _refusal(fn, parameters, "it has no parameters")
    first = parameters[0]
    if first.kind not in POSITIONAL:
        raise _refusal(fn, parameters, f"its first parameter, {first}, cannot take the session")
    if not _may_be(_annotation(fn, first), session):
        raise _refusal(fn, parameters, f"its first parameter, {first}, is of another type")
    return signature.replace(parameters=parameters[1:])


def _annotation(fn: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; Any if its name cannot be resolved here."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return get_type_hints(fn, include_extras=True).get(parameter.name, Any)
    except Exception:
        return _looked_up(fn, parameter.annotation)


def _looked_up(fn: Callable[..., Any], text: str) -> Any:
    """Resolve one name in a function's globals, when another of its types cannot be resolved."""
    names = getattr(inspect.unwrap(fn), "__globals__", {})
    builtins = names.get("__builtins__", {})
    known = builtins if isinstance(builtins, dict) else vars(builtins)
    return names.get(text, known.get(text, Any))


def _may_be(kind: Any, session: type) -> bool:
    """Return whether a type may mean a session; only a clearly different type is rejected."""
    if get_origin(kind) is Annotated:
        return _may_be(get_args(kind)[0], session)
    if get_origin(kind) in (Union, UnionType):
        return any(_may_be(one, session) for one in get_args(kind))
    if kind is None or kind is type(None) or get_origin(kind) is not None:
        return False
    # Any is a class, and so is a protocol, which a session may well satisfy.
    if (
        kind in (inspect.Parameter.empty, Any)
        or not isinstance(kind, type)
        or getattr(kind, "_is_protocol", False)
    ):
        return True
    return issubclass(session, kind) or issubclass(kind, session)


def _refusal(fn: Callable[..., Any], parameters: list[inspect.Parameter], why: str) -> UsageError:
    name = getattr(fn, "__name__", None) or repr(fn)
    others = [str(one) for one in parameters if one.name != "session"]
    given = ", ".join(["session: Session", *others])
    return UsageError(
        f"{name} cannot be an agent: {why}; an agent is an async function whose first argument is "
        f"its session: `async def {name}({given})`"
    )


class SessionTerms(Struct, frozen=True):
    """How the sessions of an agent are stored: the schema of their state, and for how long.

    `most_state` is the maximum size of the state in bytes of JSON.
    """

    schema: int = 1
    upcasters: Upcasters = {}
    ttl: float | None = None
    most_state: int = MOST_STATE

    def __post_init__(self) -> None:
        convert_seconds(self, "ttl")
        COUNT.require("@app.agent: schema", self.schema)
        AMOUNT.or_none().require("@app.agent: ttl", self.ttl)
        if not _are_upcasters(self.upcasters):
            raise UsageError(
                f"@app.agent: upcasters={shown(self.upcasters)} is not allowed; map each old "
                "schema to a function that takes the state and returns the next one: {1: from_1}"
            )


def _are_upcasters(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        is_count(one) and callable(value[one]) for one in value
    )


class Session:
    """One turn's view of its session; the agent may change `state` in place or replace it.

    `inbox` holds the messages merged into this turn while it waited (on_busy="merge"). `revision`
    grows with every write of the state; it is 0 before the first write, which may set it above 1.
    """

    @explain_misuse
    def __init__(
        self,
        id: str,
        state: State | None = None,
        tenant: str | None = None,
        user: str | None = None,
    ) -> None:
        instance_of(str, "its name, a text").require("Session: id", id)
        self.id = id
        self.tenant = tenant
        self.user = user
        self.state: State = new_state(id, datetime.now(UTC)) if state is None else state
        self.inbox: list[Any] = []
        self.revision = 0
        self._writes = 0
        self._inside: RunningJobApi | None = None
        self._terms = SessionTerms()

    async def save(self) -> None:
        """Write the state now: it stays whatever the turn's outcome is, unless it is rolled back.

        Otherwise the state is written with the outcome of the turn, if the turn succeeds. Raises
        SessionErased if the session was erased since this turn began.
        """
        if self._inside is not None:
            data = self._data(final=False)
            ask, ttl = self._inside.ask, self._terms.ttl
            self.revision = await ask("save", self._place(), data, ttl, self.revision)
            self._writes += 1

    async def open(self, inside: RunningJobApi, terms: SessionTerms) -> None:
        """Load the session of a turn."""
        self._inside, self._terms = inside, terms
        found = await inside.ask("document", self._place())
        if found is not None:
            data, self.revision = found
            record = read(data)
            # While a turn may be rolled back, the revision before it must stay.
            is_due = record.final and _reaches_a_multiple(self.revision, record.writes)
            await self._take(record)
            if is_due:
                await self._shorten()

    async def close(self) -> None:
        """Have the state written with the outcome of the turn."""
        assert self._inside is not None
        try:
            data = self._data(final=True)
        except (UsageError, TooLarge) as error:
            # Another attempt would end in the same way, after the same model calls.
            setattr(error, IS_PERMANENT, True)
            raise
        await self._inside.ask("hold", self._place(), data, self._terms.ttl, self.revision)

    async def _shorten(self) -> None:
        """Delete old revisions, rollbacks and executions."""
        assert self._inside is not None
        revisions, executions, rollbacks = streams_of_session(self.tenant, self.id)
        await self._inside.ask("shorten", revisions, KEPT_REVISIONS)
        await self._inside.ask("shorten", rollbacks, KEPT_REVISIONS)
        await self._inside.ask("shorten", executions, KEPT_EXECUTIONS)

    async def _take(self, record: SessionRecord) -> None:
        """Load the state of a record, or of the one before it if its turn is rolled back."""
        assert self._inside is not None
        job: Any = self._inside.snapshot()
        if not may_use(record.user, job.user):
            # Rejected at submit already; checked again because the state is about to be read.
            raise SessionForbidden(f"session {self.id!r} belongs to another user than {job.user!r}")
        self._writes = 0 if record.final or record.turn != job.id else record.writes
        undone = set() if record.final else await self._undone()
        if record.turn not in undone:
            self.state = upcast(record, self._terms.schema, self._terms.upcasters)
            return
        before = await self._before(undone)
        if before is not None:
            self.state = upcast(before, self._terms.schema, self._terms.upcasters)
        await self.save()

    async def _undone(self) -> set[str]:
        """Return the turns whose writes were rolled back."""
        assert self._inside is not None
        stream = rollbacks_of(self.tenant, self.id)
        return {body.decode() for body in await self._inside.ask("lines", stream)}

    async def _before(self, undone: set[str]) -> SessionRecord | None:
        """Return the last revision that was not rolled back."""
        assert self._inside is not None
        revisions = [read(body) for body in await self._inside.ask("lines", self._place())]
        counts = (one for one in reversed(revisions) if one.final or one.turn not in undone)
        return next(counts, None)

    def _data(self, final: bool) -> bytes:
        assert self._inside is not None
        job: Any = self._inside.snapshot()
        whose = (self.id, self.tenant, self.user)
        schema, writes = self._terms.schema, self._writes + 1
        record = SessionRecord(*whose, schema, job.id, self.state, final, writes)
        return write(record, self._terms.most_state)

    def _place(self) -> str:
        """Return the key of the document, which is also the stream of its revisions."""
        return session_of(self.tenant, self.id)


def _reaches_a_multiple(revision: int, writes: int) -> bool:
    """Return whether the last writes passed a multiple of the limit: then old ones are deleted."""
    return revision // KEPT_REVISIONS != (revision - writes) // KEPT_REVISIONS


def turn_of(
    fn: Callable[..., Any], terms: SessionTerms, message_of: Callable[[bytes, Job], Any]
) -> Callable[..., Any]:
    """Return an agent as the task of one turn: without the session parameter, which it loads.

    `message_of` decodes a message that was merged into the turn.
    """
    signature = without_session(fn, Session)

    @wraps(fn)
    async def turn(*args: Any, **kwargs: Any) -> Any:
        inside = running.get()
        assert inside is not None
        job: Any = inside.snapshot()
        if job.session is None:
            raise UsageError(f"{job.name} is an agent: it runs in a session")
        session = Session(job.session, None, job.tenant, job.user)
        await session.open(inside, terms)
        session.inbox = [message_of(data, job) for data in await inside.ask("inbox")]
        value = await fn(session, *args, **kwargs)
        await session.close()
        return value

    turn.__signature__ = signature  # type: ignore[attr-defined]
    return turn
