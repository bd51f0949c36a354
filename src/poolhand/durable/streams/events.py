"""Events of running jobs: `emit` and `progress`, the writer that stores them, and their readers.

The writer takes events from any thread and writes on the store thread a few times a second. Events
that a job emits before its end are written before its end, or with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from poolhand.context import EMITTED, running
from poolhand.contract import Change, LogEntry, LogLine, Store
from poolhand.errors import JobLost, StoreError, TooLarge, Unavailable, UsageError
from poolhand.rules.job import Job
from poolhand.rules.streams import EVENTS_TOPIC, MOST_DATA, JobEvent, StreamKind, events_of
from poolhand.wire.typed import dump_for_json

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


_encode = msgspec.json.Encoder(enc_hook=dump_for_json).encode

GATHER = 0.05  # seconds in which lines are collected
ENOUGH = 4096  # unwritten bytes of one job that trigger a write at once
TOO_MUCH = 256 * 1024  # unwritten bytes of one job above which `emit` waits
FAR_TOO_MUCH = 16 * TOO_MUCH  # unwritten bytes above which `emit` without waiting raises
TRY_AGAIN = 1.0
KEEP_EVENTS = 100_000
TRIM_EVERY = 0.1  # a fraction of the events that are kept, so that trimming is rare


class JobStream:
    """The unwritten events of one attempt.

    `last` is the number of the last line of its stream, to be looked up while not `sure`; lines
    below `trimmed` are deleted. A `closed` one is written with the end of its attempt; the lines of
    a `lost` one are discarded.
    """

    def __init__(self, job: Job, token: int) -> None:
        self.name = events_of(job.id)
        self.attempt = job.attempts
        self.token = token
        self.lines: deque[LogLine] = deque()
        self.size = 0
        self.last = self.trimmed = 0
        self.sure = self.begun = self.closed = self.lost = False
        self.shrunk = asyncio.Event()

    def line(self, kind: StreamKind, data: bytes) -> LogLine:
        body = b'{"attempt":%d,"data":%s}' % (self.attempt, data)
        return LogLine(self.name, kind, body, self.token)

    def put(self, line: LogLine) -> None:
        self.size += len(line.body)
        self.lines.append(line)

    def drop(self, count: int) -> None:
        """Remove the first lines, which are written."""
        for _ in range(min(count, len(self.lines))):
            self.size -= len(self.lines.popleft().body)
        self.shrunk.set()

    async def look(self, store: Store) -> None:
        """Look up how far the stream is written, also by our own writes with an unknown outcome.

        An attempt that finds lines of earlier attempts first writes that it restarts.
        """
        before, self.last = self.last, await last_number(store, self.name, self.last)
        if self.begun:
            self.drop(self.last - before)
        elif self.last:
            again = self.line(StreamKind.RESTARTED, b"null")
            self.size += len(again.body)
            self.lines.appendleft(again)
        self.begun = self.sure = True


class EventWriter:
    """The streams of running attempts by token; all but `emit` runs on the store thread."""

    def __init__(self, thread: StoreThread, keep: int = KEEP_EVENTS) -> None:
        self._thread = thread
        self._keep = keep
        self._streams: dict[int, JobStream] = {}
        self._awake = False
        self._wake = asyncio.Event()
        self._enough = asyncio.Event()
        self._turn = asyncio.Lock()

    def emit(self, job: Job, token: int, kind: StreamKind, data: bytes) -> Awaitable[None]:
        """Queue an event of a job, as JSON; awaiting it waits while too much is unwritten."""
        stream = self._streams.get(token)
        if stream is None:
            # Atomic: a job may emit from several threads.
            stream = self._streams.setdefault(token, JobStream(job, token))
        if stream.lost or stream.closed or self._thread.closed:
            # Events of an attempt that is over or lost are discarded.
            return EMITTED
        if stream.size > FAR_TOO_MUCH:
            raise Unavailable(
                f"job {job.id} emits events faster than the store can write them: {stream.size:,} "
                "bytes wait; await emit(…) and progress(…), which then wait for the store"
            )
        stream.put(stream.line(kind, data))
        enough = stream.size > ENOUGH
        if enough or not self._awake:
            self._awake = True
            self._thread.post(self._hear, enough)
        return EMITTED if stream.size <= TOO_MUCH else self._room(stream)

    def _room(self, stream: JobStream) -> Awaitable[None]:
        """Wait for the store: in a thread at once, else when the result is awaited."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._thread.ask_sync(lambda: _written(stream))
            return EMITTED
        return StreamRoom(self._thread, stream)

    def _hear(self, enough: bool) -> None:
        self._wake.set()
        if enough:
            self._enough.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    await self._enough.wait()
            self._wake.clear()
            self._enough.clear()
            # Clear before reading: lines that are added from now on wake the writer again.
            self._awake = False
            await self._write_open()

    async def _write_open(self) -> None:
        async with self._turn:
            streams = [one for one in list(self._streams.values()) if one.lines and not one.closed]
            try:
                await self._write(streams)
            except StoreError as error:
                for stream in streams:
                    stream.sure = False
                self._thread.trouble("events", error)
                self._thread.loop.call_later(TRY_AGAIN, self._hear, True)
            else:
                self._thread.well("events")

    async def _write(self, streams: Sequence[JobStream]) -> None:
        store = self._thread.store
        for stream in streams:
            if not stream.sure:
                await stream.look(store)
        lots = [(stream, list(stream.lines)) for stream in streams]
        lost = await store.append([line for _, lines in lots for line in lines])
        for stream, lines in lots:
            stream.lost = stream.token in lost
            stream.last += len(lines)
            stream.drop(len(lines))
            await self._trim(stream)
        store.publish(EVENTS_TOPIC)

    async def _trim(self, stream: JobStream) -> None:
        """Delete the oldest events beyond the limit."""
        before = stream.last - self._keep + 1
        if before - stream.trimmed > max(1, self._keep * TRIM_EVERY):
            await self._thread.store.trim(stream.name, before)
            stream.trimmed = before

    async def closing(self, changes: Sequence[Change]) -> list[Change]:
        """Return the changes with the unwritten events of their attempts."""
        if not any(change.token in self._streams for change in changes):
            return list(changes)
        async with self._turn:
            return [await self._with_stream(change) for change in changes]

    async def _with_stream(self, change: Change) -> Change:
        stream = self._streams.get(change.token)
        if stream is None or stream.lost:
            return change
        stream.closed = True
        if not stream.sure:
            await stream.look(self._thread.store)
        lines = list(stream.lines)
        if not change.job.status.terminal:
            lines.append(stream.line(StreamKind.STATE, b'"%s"' % change.job.status.encode()))
        return replace(change, log=(*change.log, *lines))

    def over(self, tokens: Iterable[int]) -> None:
        """Remove attempts that have ended."""
        streams = [self._streams.pop(token) for token in tokens if token in self._streams]
        for stream in streams:
            stream.lost = True
            stream.shrunk.set()
        if streams:
            self._thread.store.publish(EVENTS_TOPIC)


class StreamRoom:
    """Waits, if awaited, until there is room for more events."""

    def __init__(self, thread: StoreThread, stream: JobStream) -> None:
        self._thread = thread
        self._stream = stream

    def __await__(self) -> Generator[Any, None, None]:
        return self._thread.ask(lambda: _written(self._stream)).__await__()


async def _written(stream: JobStream) -> None:
    """Wait until the unwritten part of a stream is below the limit."""
    while stream.size > TOO_MUCH and not stream.lost:
        stream.shrunk.clear()
        await stream.shrunk.wait()


def emit(chunk: Any) -> Awaitable[None]:
    """Stream a piece of the answer, as JSON: `await emit(token)`.

    `ticket.events()` reads it, from any process and as often as needed. Awaiting it waits while the
    store cannot keep up; in a thread the call itself waits. Outside of a stored job it does
    nothing.
    """
    return _emit(StreamKind.CHUNK, chunk, "emit")


def progress(message: str = "", /, **details: Any) -> Awaitable[None]:
    """Report the progress of the job: `await progress("reading", page=3, of=10)`."""
    if not isinstance(message, str):
        raise UsageError(f"progress takes a text and named details, not {message!r}")
    return _emit(StreamKind.PROGRESS, {"message": message, **details}, "progress")


def _emit(kind: StreamKind, value: Any, verb: str) -> Awaitable[None]:
    inside = running.get()
    try:
        data = _encode(value)
    except Exception as error:
        raise UsageError(f"{verb} takes JSON values: {error}") from error
    if len(data) > MOST_DATA:
        raise TooLarge(
            f"{verb} was given {len(data):,} bytes of JSON; an event has at most {MOST_DATA:,}; "
            "send it in pieces",
            limit=MOST_DATA,
            size=len(data),
        )
    return EMITTED if inside is None else inside.emit(kind, data)
