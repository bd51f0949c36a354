"""The event reader: reads the events of jobs for followers; lives on the store thread's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from poolhand.contract import LogEntry, Stored
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.errors import JobLost
from poolhand.rules.job import Job
from poolhand.rules.streams import JobEvent, StreamKind, events_of

POLL = 1.0  # seconds: signals may be lost, so the store is polled this often
PAGE = 500


Told = tuple[Sequence[JobEvent], bool]


class LogReader(Protocol):
    """The methods of a store needed to read the events of a job."""

    async def get(self, ids: Sequence[str]) -> list[Stored | None]: ...

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]: ...


class _Body(Struct):
    attempt: int
    data: Any


_read_body = msgspec.json.Decoder(_Body).decode


class EventReader:
    """Yields the events of jobs as they are written."""

    def __init__(self, keeper: StoreThread) -> None:
        self._store = keeper.store
        self._keeper = keeper
        self._heard = asyncio.Event()

    def hint(self) -> None:
        """Signal that a job has written events, or is over."""
        self._heard.set()
        self._heard = asyncio.Event()

    async def follow(self, id: str, after: int) -> AsyncIterator[JobEvent]:
        """Yield the events of a job after a number, until it is over; on any loop."""
        over = False
        while not over:
            page, over = await self._keeper.ask(partial(self._next, id, after))
            for event in page:
                yield event
                after = event.number

    async def _next(self, id: str, after: int) -> Told:
        """Return the next events, once there are some."""
        while True:
            heard = self._heard
            told = await look(self._store, id, after)
            if told is not None:
                return told
            await _until(heard)


async def look(store: LogReader, id: str, after: int) -> Told | None:
    """Return the events of a job after a number, and whether it is over; None: nothing yet."""
    if lines := await store.read(events_of(id), after, PAGE):
        return [_event(line) for line in lines], False
    stored = (await store.get([id]))[0]
    if stored is None:
        raise JobLost(f"job {id} is not kept any more, nor what it told", job_id=id)
    if not stored.job.status.terminal:
        return None
    # Read again: events may have been written between the first read and the end of the job.
    if lines := await store.read(events_of(id), after, PAGE):
        return [_event(line) for line in lines], False
    return await _last(store, stored.job, after), True


async def _last(store: LogReader, job: Job, after: int) -> list[JobEvent]:
    """Return the end of a job as its last event, with a number that no other event can have.

    A reader that already has that event gets nothing more.
    """
    if after > 0 and not await store.read(events_of(job.id), after - 1, 1):
        return []
    at = job.finished_at or job.submitted_at
    return [JobEvent(after + 1, at, StreamKind.STATE, job.attempts, job.status.value)]


async def _until(heard: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(POLL):
            await heard.wait()
    except TimeoutError:
        pass


def _event(line: LogEntry) -> JobEvent:
    body = _read_body(line.body)
    return JobEvent(line.number, line.at, StreamKind(line.kind), body.attempt, body.data)
