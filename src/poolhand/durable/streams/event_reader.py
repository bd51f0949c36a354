"""Reads streams: the events of jobs for followers, the last number, all lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from poolhand.contract import LogEntry, Store
from poolhand.errors import JobLost
from poolhand.rules.job import Job
from poolhand.rules.streams import JobEvent, StreamKind, events_of

if TYPE_CHECKING:
    from poolhand.durable.connection.store_thread import StoreThread

POLL = 1.0  # seconds: signals may be lost, so the store is polled this often
PAGE = 500


Page = tuple[Sequence[JobEvent], bool]  # and whether the job is over


class _Body(Struct):
    attempt: int
    data: Any


_read_body = msgspec.json.Decoder(_Body).decode


class EventReader:
    """Yields the events of jobs as they are written."""

    def __init__(self, thread: StoreThread) -> None:
        self._store = thread.store
        self._thread = thread
        self._heard = asyncio.Event()

    def hint(self) -> None:
        """Signal that a job has written events, or is over."""
        self._heard.set()
        self._heard = asyncio.Event()

    async def follow(self, id: str, after: int) -> AsyncIterator[JobEvent]:
        """Yield the events of a job after a number, until it is over; on any loop."""
        over = False
        while not over:
            page, over = await self._thread.ask(partial(self._next, id, after))
            for event in page:
                yield event
                after = event.number

    async def _next(self, id: str, after: int) -> Page:
        """Return the next events, once there are some."""
        while True:
            heard = self._heard
            page = await look(self._store, id, after)
            if page is not None:
                return page
            await _until(heard)


async def look(store: Store, id: str, after: int) -> Page | None:
    """Return the events of a job after a number, and whether it is over; None: nothing yet."""
    if lines := await store.read(events_of(id), after, PAGE):
        return [_event(line) for line in lines], False
    stored = (await store.get([id]))[0]
    if stored is None:
        raise JobLost(f"job {id} and its events are no longer stored", job_id=id)
    if not stored.job.status.terminal:
        return None
    # Read again: events may have been written between the first read and the end of the job.
    if lines := await store.read(events_of(id), after, PAGE):
        return [_event(line) for line in lines], False
    return await _last(store, stored.job, after), True


async def _last(store: Store, job: Job, after: int) -> list[JobEvent]:
    """Return the end of a job as its last event, with a number that no other event can have.

    A reader that already has that event gets nothing more.
    """
    if after > 0 and not await store.read(events_of(job.id), after - 1, 1):
        return []
    at = job.finished_at or job.submitted_at
    return [JobEvent(after + 1, at, StreamKind.STATE, job.attempts, job.status.value)]


async def _until(heard: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL):
            await heard.wait()


def _event(line: LogEntry) -> JobEvent:
    body = _read_body(line.body)
    return JobEvent(line.number, line.at, StreamKind(line.kind), body.attempt, body.data)


async def last_number(store: Store, stream: str, least: int = 0) -> int:
    """Return the number of the last line, `least` or above.

    Numbers have no gaps, so a binary search finds it.
    """
    if not await store.read(stream, least, 1):
        # Nearly always: the caller knows the last number, or the stream is empty.
        return least
    low, high = least, least + 1024
    while await store.read(stream, high, 1):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if await store.read(stream, middle, 1):
            low = middle + 1
        else:
            high = middle
    return low


async def bodies_of(store: Store, stream: str) -> list[bytes]:
    """Return the bodies of all lines of a stream."""
    last, bodies = 0, list[bytes]()
    while lines := await store.read(stream, last):
        last = lines[-1].number
        bodies += [line.body for line in lines]
    return bodies
