"""The event writer: writes the events of running jobs to their event logs, in batches.

It takes events from any thread and writes on the store thread a few times a second. Events that a
job emits before its end are written before its end, or with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from poolhand.context import TOLD
from poolhand.contract import Change, LogLine, Store
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.durable.streams.numbers import last_number
from poolhand.errors import StoreError, Unavailable
from poolhand.rules.job import Job
from poolhand.rules.streams import TOLD_TOPIC, StreamKind, events_of

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
        self.stream = events_of(job.id)
        self.attempt = job.attempts
        self.token = token
        self.lines: deque[LogLine] = deque()
        self.size = 0
        self.last = self.trimmed = 0
        self.sure = self.begun = self.closed = self.lost = False
        self.shrunk = asyncio.Event()

    def line(self, kind: StreamKind, data: bytes) -> LogLine:
        body = b'{"attempt":%d,"data":%s}' % (self.attempt, data)
        return LogLine(self.stream, kind, body, self.token)

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
        before, self.last = self.last, await last_number(store, self.stream, self.last)
        if self.begun:
            self.drop(self.last - before)
        elif self.last:
            again = self.line(StreamKind.RESTARTED, b"null")
            self.size += len(again.body)
            self.lines.appendleft(again)
        self.begun = self.sure = True


class EventWriter:
    """The streams of running attempts by token; all but `tell` runs on the store thread."""

    def __init__(self, keeper: StoreThread, keep: int = KEEP_EVENTS) -> None:
        self._keeper = keeper
        self._keep = keep
        self._stories: dict[int, JobStream] = {}
        self._awake = False
        self._wake = asyncio.Event()
        self._enough = asyncio.Event()
        self._turn = asyncio.Lock()

    def tell(self, job: Job, token: int, kind: StreamKind, data: bytes) -> Awaitable[None]:
        """Queue an event of a job, as JSON; awaiting it waits while too much is unwritten."""
        story = self._stories.get(token)
        if story is None:
            # Atomic: a job may emit from several threads.
            story = self._stories.setdefault(token, JobStream(job, token))
        if story.lost or story.closed or self._keeper.closed:
            # Events of an attempt that is over or lost are discarded.
            return TOLD
        if story.size > FAR_TOO_MUCH:
            raise Unavailable(
                f"job {job.id} tells more than can be written: {story.size:,} bytes wait for the "
                "store; await emit(…) and progress(…), which then wait for it as well"
            )
        story.put(story.line(kind, data))
        enough = story.size > ENOUGH
        if enough or not self._awake:
            self._awake = True
            self._keeper.post(self._hear, enough)
        return TOLD if story.size <= TOO_MUCH else self._room(story)

    def _room(self, story: JobStream) -> Awaitable[None]:
        """Wait for the store: in a thread at once, else when the result is awaited."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._keeper.ask_sync(lambda: _written(story))
            return TOLD
        return StreamRoom(self._keeper, story)

    def _hear(self, enough: bool) -> None:
        self._wake.set()
        if enough:
            self._enough.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            try:
                async with asyncio.timeout(GATHER):
                    await self._enough.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self._enough.clear()
            # Clear before reading: lines that are added from now on wake the writer again.
            self._awake = False
            await self._write_open()

    async def _write_open(self) -> None:
        async with self._turn:
            stories = [one for one in list(self._stories.values()) if one.lines and not one.closed]
            try:
                await self._write(stories)
            except StoreError as error:
                for story in stories:
                    story.sure = False
                self._keeper.trouble("events", error)
                self._keeper.loop.call_later(TRY_AGAIN, self._hear, True)
            else:
                self._keeper.well("events")

    async def _write(self, stories: Sequence[JobStream]) -> None:
        store = self._keeper.store
        for story in stories:
            if not story.sure:
                await story.look(store)
        lots = [(story, list(story.lines)) for story in stories]
        lost = await store.append([line for _, lines in lots for line in lines])
        for story, lines in lots:
            story.lost = story.token in lost
            story.last += len(lines)
            story.drop(len(lines))
            await self._trim(story)
        store.publish(TOLD_TOPIC)

    async def _trim(self, story: JobStream) -> None:
        """Delete the oldest events beyond the limit."""
        before = story.last - self._keep + 1
        if before - story.trimmed > max(1, self._keep * TRIM_EVERY):
            await self._keeper.store.trim(story.stream, before)
            story.trimmed = before

    async def closing(self, changes: Sequence[Change]) -> list[Change]:
        """Return the changes with the unwritten events of their attempts."""
        if not any(change.token in self._stories for change in changes):
            return list(changes)
        async with self._turn:
            return [await self._with_story(change) for change in changes]

    async def _with_story(self, change: Change) -> Change:
        story = self._stories.get(change.token)
        if story is None or story.lost:
            return change
        story.closed = True
        if not story.sure:
            await story.look(self._keeper.store)
        lines = list(story.lines)
        if not change.job.status.terminal:
            lines.append(story.line(StreamKind.STATE, b'"%s"' % change.job.status.encode()))
        return replace(change, log=(*change.log, *lines))

    def over(self, tokens: Iterable[int]) -> None:
        """Remove attempts that have ended."""
        stories = [self._stories.pop(token) for token in tokens if token in self._stories]
        for story in stories:
            story.lost = True
            story.shrunk.set()
        if stories:
            self._keeper.store.publish(TOLD_TOPIC)


class StreamRoom:
    """Waits, if awaited, until there is room for more events."""

    def __init__(self, keeper: StoreThread, story: JobStream) -> None:
        self._keeper = keeper
        self._story = story

    def __await__(self) -> Generator[Any, None, None]:
        return self._keeper.ask(lambda: _written(self._story)).__await__()


async def _written(story: JobStream) -> None:
    """Wait until the unwritten part of a stream is below the limit."""
    while story.size > TOO_MUCH and not story.lost:
        story.shrunk.clear()
        await story.shrunk.wait()
