"""Events of running jobs: `emit` and `progress`, and the writer that stores them in batches.

The writer takes events from any thread and writes on the store thread a few times a second. Events
that a job emits before its end are written before its end, or with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from poolhand.context import EMITTED, running
from poolhand.contract import Change, LogLine, Store
from poolhand.durable.streams.event_reader import last_number
from poolhand.errors import StoreError, TooLarge, Unavailable, UsageError
from poolhand.rules.job import Job
from poolhand.rules.streams import EVENTS_TOPIC, MOST_DATA, StreamKind, events_of
from poolhand.wire.typed import dump_for_json

if TYPE_CHECKING:
    from poolhand.durable.connection.store_thread import StoreThread

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
