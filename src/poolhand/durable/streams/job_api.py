"""What a running job writes and reads beside its events: journal, documents, its session.

Each request is for the job itself, under its lease. The execution log of a session has one line for
each attempt at each of its turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from poolhand.contract import Change, LogLine, Put
from poolhand.durable.streams.events import bodies_of, last_number
from poolhand.errors import Conflict, SessionErased
from poolhand.rules.job import Job, Status
from poolhand.rules.plain import PlainView
from poolhand.rules.streams import erasure_of, executions_of, inbox_of, journal_of

if TYPE_CHECKING:
    from poolhand.durable.connection.store_thread import StoreThread

RECORD, REVISION, EXECUTION = "record", "revision", "execution"
LONGEST_TEXT = 2_000


class JobStoreApi:
    """Runs requests on the store thread; callable from any loop or thread."""

    def __init__(self, thread: StoreThread) -> None:
        self._thread = thread
        self._verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "journal": self._journal,
            "record": self._record,
            "document": self._document,
            "put": self._put,
            "keys": self._keys,
            "job": self._job,
            "lines": self._lines,
            "inbox": self._inbox,
            "shorten": self._shorten,
            "save": self._save,
            "hold": self._hold,
        }
        self._held: dict[int, tuple[Put, LogLine]] = {}

    def ask(self, job: Job, token: int, verb: str, details: tuple[Any, ...]) -> Awaitable[Any]:
        """Run a request for a job."""
        return self._thread.ask(partial(self._verbs[verb], job, token, *details))

    def ask_sync(self, job: Job, token: int, verb: str, details: tuple[Any, ...]) -> Any:
        return self._thread.ask_sync(partial(self._verbs[verb], job, token, *details))

    async def _journal(self, job: Job, token: int) -> list[bytes]:
        """Return all journal records of a job."""
        return await bodies_of(self._thread.store, journal_of(job.run))

    async def _record(self, job: Job, token: int, body: bytes) -> None:
        """Add a journal record of a job, for all its later attempts."""
        if await self._thread.store.append([LogLine(journal_of(job.run), RECORD, body, token)]):
            raise Conflict(f"this attempt no longer holds job {job.id}; its step is not recorded")

    async def _document(self, job: Job, token: int, key: str) -> tuple[bytes, int] | None:
        found = await self._thread.store.get_document(key)
        return None if found is None else found[:2]

    async def _put(
        self, job: Job, token: int, *puts: tuple[str, bytes, int | None, float | None]
    ) -> tuple[int, ...] | None:
        """Write documents; None if a version differs or the claim is no longer valid."""
        return await self._thread.store.put([Put(*one) for one in puts], token)

    async def _keys(self, job: Job, token: int, prefix: str, after: str, limit: int) -> list[str]:
        """Return keys of documents with a prefix."""
        return await self._thread.store.scan(prefix, after, limit)

    async def _job(self, job: Job, token: int, other: str) -> Job | None:
        """Return another job."""
        found = (await self._thread.store.get([other]))[0]
        return None if found is None else found.job

    async def _lines(self, job: Job, token: int, stream: str) -> list[bytes]:
        return await bodies_of(self._thread.store, stream)

    async def _inbox(self, job: Job, token: int) -> list[bytes]:
        """Return the messages that joined a turn while it waited."""
        return await bodies_of(self._thread.store, inbox_of(job.id))

    async def _shorten(self, job: Job, token: int, stream: str, keep: int) -> None:
        """Delete all but the last `keep` lines of a stream."""
        store = self._thread.store
        await store.trim(stream, await last_number(store, stream) - keep + 1)

    async def _save(
        self, job: Job, token: int, key: str, value: bytes, ttl: float | None, seen: int
    ) -> int:
        """Write the state of a session now, with a revision in its log; return the version."""
        store = self._thread.store
        put = Put(key, value, None, ttl, seen)
        versions = await store.put([put], token, [LogLine(key, REVISION, value)])
        if versions is None:
            erased = await store.get_document(erasure_of(key))
            if erased is not None and seen <= int(erased[0]):
                raise SessionErased(
                    f"session {job.session!r} was erased while job {job.id}, a turn of it, ran: "
                    "nothing of it is saved; let the turn end, and submit again what should be kept"
                )
            raise Conflict(f"this attempt no longer holds job {job.id}; its session is not saved")
        return versions[0]

    async def _hold(
        self, job: Job, token: int, key: str, value: bytes, ttl: float | None, seen: int
    ) -> None:
        """Write the state of a session when its turn completes."""
        self._held[token] = Put(key, value, None, ttl, seen), LogLine(key, REVISION, value)

    def closing(self, changes: Sequence[Change]) -> list[Change]:
        """Return the changes with the session states to be written with them."""
        return [self._with_state(change) for change in changes] if self._held else list(changes)

    def _with_state(self, change: Change) -> Change:
        held = self._held.get(change.token)
        if held is None or change.job.status is not Status.COMPLETED:
            return change
        put, line = held
        return replace(change, documents=(*change.documents, put), log=(*change.log, line))

    def over(self, tokens: Iterable[int]) -> None:
        """Remove attempts that have ended."""
        for token in tokens:
            self._held.pop(token, None)


class Execution(PlainView, frozen=True):
    """One attempt at one turn. Texts are cut; model, tokens and cost are those of its LLM calls."""

    session: str
    job: str
    attempt: int
    worker: str
    status: str
    at: datetime
    message: str = ""
    result: str = ""
    duration_ms: int | None = None
    error: str = ""
    model: str | None = None
    tokens: int | None = None
    cost: float | None = None


_encode = msgspec.json.Encoder().encode
read_execution = msgspec.json.Decoder(Execution).decode


def logged(
    change: Change,
    attempt: int,
    worker: str,
    at: datetime,
    call: Callable[[], Any] | None = None,
    value: Any = None,
) -> Change:
    """Return a change with the line of its attempt, if its job is a turn of a session."""
    job = change.job
    if job.session is None:
        # Reaped jobs include jobs without a session.
        return change
    message = _text(call.args) if isinstance(call, partial) else ""
    result = "" if value is None else _text(value)
    ran = None if job.ran is None else round(job.ran * 1000)
    error = "" if job.error is None else f"{job.error.type}: {job.error.message}"[:LONGEST_TEXT]
    which = (job.session, job.id, attempt, worker, job.status.value, at)
    line = Execution(*which, message, result, ran, error)
    stream = executions_of(job.tenant, job.session)
    return replace(change, log=(*change.log, LogLine(stream, EXECUTION, _encode(line))))


def _text(value: Any) -> str:
    """Return a value as text that can be shown and stored."""
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except Exception:
        text = type(value).__name__
    return text[:LONGEST_TEXT].encode(errors="replace").decode()
