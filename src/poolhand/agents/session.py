"""A session as its turn sees it: loaded before the turn, saved with the turn's outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from msgspec import Struct

from poolhand.agents.session_parameters import without_session
from poolhand.agents.session_record import (
    KEPT_EXECUTIONS,
    KEPT_REVISIONS,
    MOST_STATE,
    SessionRecord,
    State,
    Upcasters,
    new_state,
    read,
    upcast,
    write,
)
from poolhand.context import RunningJobApi, running
from poolhand.errors import SessionForbidden, UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.job import Job
from poolhand.rules.queue.on_busy import may_use
from poolhand.rules.streams import rollbacks_of, session_of, streams_of_session
from poolhand.rules.validation import (
    AMOUNT_ALLOWED,
    COUNT_ALLOWED,
    convert_seconds,
    is_amount,
    is_count,
    shown,
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
        if not is_count(self.schema):
            raise UsageError(
                f"@app.agent: schema={shown(self.schema)} is not allowed; give {COUNT_ALLOWED}"
            )
        if self.ttl is not None and not is_amount(self.ttl):
            raise UsageError(
                f"@app.agent: ttl={shown(self.ttl)} is not allowed; give {AMOUNT_ALLOWED}, or None"
            )
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
        if not isinstance(id, str):
            raise UsageError(f"Session({shown(id)}) is not allowed; give its name, a text")
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
        data = self._data(final=True)
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
