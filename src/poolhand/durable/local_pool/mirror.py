"""The mirror of a durable pool: keeps the pool's state in this process up to date."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Timeout
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress

from msgspec import json
from msgspec.structs import replace

from poolhand.contract import Filter, LogLine, PoolRow
from poolhand.durable.client.explain import pool_named
from poolhand.durable.client.outcomes import KnownJob
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.local_pool.counts import ExpectedEnd, ExpectedJobs, PoolCounts, StoreCounts
from poolhand.durable.worker.executor import ClosureCall
from poolhand.durable.worker.worker import Worker, WorkerReport
from poolhand.errors import Conflict, StoreError
from poolhand.observe.events import Events, JobEnded
from poolhand.pool.config import PoolConfig
from poolhand.rules import audit
from poolhand.rules.job import Job
from poolhand.rules.queue.stored_desk import undeclared
from poolhand.runtime import Runtime

LOOK_EVERY = 0.5
# Seconds between two looks at a pool of this machine alone, while there is activity.
LOOK_SOON = 0.05
# The pause after a look, in multiples of its duration: looks take at most a sixth of the time.
REST = 5.0
MOST_VALUES = 1000


class PoolMirror:
    """Collects reports of workers and polls the store; drops closures that are no longer needed.

    Coroutines run on the store thread's loop, everything else on that of the pool.
    """

    def __init__(
        self,
        config: PoolConfig,
        closures: MutableMapping[str, ClosureCall],
        runtime: Runtime,
        events: Events,
    ) -> None:
        self.known = PoolCounts(config.stored_name, runtime.wall())
        self.expected = ExpectedJobs(runtime.monotonic)
        self.resized: Callable[[int], None] | None = None
        self._name = config.stored_name
        self._shared = config.scope.is_shared
        self._history = config.history
        self._closures = closures
        self._events = events
        self._noticed: Sequence[ExpectedEnd] = ()
        self._values: dict[str, KnownJob] = {}
        self._looks = self._seen = 0
        self._pausing: object = None
        self._wake = asyncio.Event()

    async def check_ours(self, connection: StoreConnection, id: str) -> None:
        """Raise if the store has another pool of this name."""
        row = await pool_named(connection.store, self._name)
        if row is not None and row.spec.id != id and row.spec != undeclared(self._name):
            raise Conflict(
                f"the store has another pool named {self._name!r} ({row.spec.id}, not {id}); give "
                "one of the two another name"
            )

    async def load(self, connection: StoreConnection, loop: AbstractEventLoop) -> None:
        """Load the state that an earlier run left, and start polling for a pool on that loop."""
        store, known, history = connection.store, self.known, self._history
        if history:
            page = await store.find(Filter(self._name, dead=True), limit=history)
            known.dead = {one.job.id: one.job for one in reversed(page.jobs)}
        await self.look(connection)
        store.subscribe(self._hint)
        connection.thread.start("facts", lambda: self._look_on(connection, loop))

    async def look(self, connection: StoreConnection) -> PoolRow:
        """Read the row and the counts of the pool from the store; return the row."""
        known = self.known
        self._looks += 1
        number, as_of = self._looks, connection.thread.runtime.wall()
        row = await pool_named(connection.store, self._name)
        counts = await connection.store.count(Filter(self._name))
        if row is not None and number > self._seen and self._pausing is None:
            # Ignore this result if a look that began later has already returned.
            self._seen, known.look = number, StoreCounts(row, counts, as_of)
        return row or known.look.row

    def set_paused(self, connection: StoreConnection, paused: bool) -> None:
        """Pause or resume the pool soon; until that is written, looks at the store are ignored."""
        self._pausing = pausing = object()
        look = self.known.look
        self.known.look = replace(look, row=replace(look.row, paused=paused))

        async def pause() -> None:
            try:
                await connection.store.set_pool(self._name, "user", paused=paused)
            finally:
                self._seen = self._looks
                if self._pausing is pausing:
                    self._pausing = None

        connection.thread.do("pool", pause)

    async def is_busy(self, connection: StoreConnection) -> bool:
        """Return whether anything is left that could run now.

        In a shared pool, jobs of other submitters do not count: other processes go on with them.
        """
        row = await self.look(connection)
        if row.paused:
            # Nothing will be claimed.
            return row.running > 0 and not self._shared
        if self._shared:
            return await self.expected.are_open(connection.store)
        if row.queued + row.blocked + row.running:
            return True
        causes = await connection.store.causes()
        return connection.homes.cause in causes.get(self._name, ())

    async def find_dead(self, connection: StoreConnection, id: str) -> tuple[Job, bytes] | None:
        """Return a dead job of this pool and its call record; None if it is not one."""
        (stored,) = await connection.store.get([id], calls=True)
        if stored is None or not stored.dead or stored.job.pool != self._name:
            return None
        return None if stored.call_record is None else (stored.job, stored.call_record)

    def notice(self, gone: Sequence[ExpectedEnd]) -> None:
        """Note jobs that are over; report them at the next look, unless a worker has by then."""
        slots = self.known.look.row.slots
        if slots is not None and self.resized is not None:
            self.resized(slots)
        before, self._noticed = self._noticed, gone
        for one in before:
            if one.id not in self.expected:
                continue
            if one.job is None:
                self.forget(one.id)
                continue
            self.hear(one.job)
            if self._events.live:
                self._events.emit(JobEnded(one.job.pool, one.job))

    def hear(self, job: Job) -> None:
        """Note that a job is over."""
        self.expected.discard(job.id)
        for gone in self.known.hear(job, self._history):
            self._closures.pop(gone, None)

    def keep(self, seen: KnownJob) -> None:
        """Keep the value of a closure for later submits of its key: it may not be JSON."""
        self._values[seen.job.id] = seen
        if len(self._values) > MOST_VALUES:
            del self._values[next(iter(self._values))]

    def forget(self, id: str) -> None:
        """Drop everything about a job that does not exist."""
        self.expected.discard(id)
        self._values.pop(id, None)
        self._closures.pop(id, None)

    async def _look_on(self, connection: StoreConnection, loop: AbstractEventLoop) -> None:
        now = connection.thread.runtime.monotonic
        due = now() + LOOK_EVERY
        while True:
            await self._hinted(due - now())
            began = now()
            await self.look(connection)
            if began >= due:
                due = began + LOOK_EVERY
                gone = await self.expected.look(connection.store, connection.outcomes.meet)
                with suppress(RuntimeError):
                    # RuntimeError: the loop is closed and the pool an orphan, so the result is not
                    # needed.
                    loop.call_soon_threadsafe(self.notice, gone)
            connection.thread.well("facts")
            await asyncio.sleep(max(LOOK_SOON, (now() - began) * REST))

    async def _hinted(self, seconds: float) -> None:
        """Wait for a hint, up to `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _hint(self, topic: str) -> None:
        self.expected.hint(topic)
        if not self._shared:
            # A server shared by many processes is not polled more often because of signals.
            self._wake.set()


async def note(
    connection: StoreConnection, kind: str, pool: tuple[str, str], detail: str = ""
) -> None:
    """Write an audit record of a user's action on a pool, given by its id and name."""
    record = audit.acted(kind, pool, "user", detail, connection.thread.runtime.wall())
    await connection.store.append([LogLine(audit.STREAM, kind, json.encode(record))])


BUSY_EVERY = 0.05
STORE_WITHIN = 2.0


class DurableDrain:
    """Stops the worker of a pool by a deadline, which may become earlier.

    A store that is away does not prevent stopping: its jobs stay in it.
    """

    def __init__(
        self, worker: Worker, connection: StoreConnection, mirror: PoolMirror, timeout: float
    ) -> None:
        self._worker = worker
        self._connection = connection
        self._mirror = mirror
        self._now = asyncio.get_running_loop().time
        self._deadline = self._now() + timeout
        self._limit: Timeout | None = None

    @property
    def left(self) -> float:
        return max(0.0, self._deadline - self._now())

    def hurry(self, timeout: float) -> None:
        """Make the deadline earlier, never later."""
        self._deadline = min(self._deadline, self._now() + timeout)
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._deadline)
        self._worker.hurry(self.left)

    async def run(self, pool: tuple[str, str]) -> WorkerReport:
        """Drain the pool of that id and name."""
        thread = self._connection.thread
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(STORE_WITHIN):
                await thread.ask(lambda: note(self._connection, audit.DRAIN, pool))
        with suppress(StoreError, TimeoutError):
            await self._finish()
        report = await self._worker.drain(self.left)
        with suppress(StoreError, TimeoutError):
            # The last look at the store; the worker has reported everything by now.
            async with asyncio.timeout(STORE_WITHIN):
                mirror, store = self._mirror, self._connection.store
                mirror.notice(await thread.ask(lambda: mirror.expected.look_at_all(store)))
                mirror.notice(())
                await thread.ask(lambda: mirror.look(self._connection))
        return report

    async def _finish(self) -> None:
        """Wait until nothing is left that could run now."""
        mirror, connection = self._mirror, self._connection
        try:
            async with asyncio.timeout_at(self._deadline) as self._limit:
                while True:
                    if not await connection.thread.ask(lambda: mirror.is_busy(connection)):
                        return
                    await asyncio.sleep(BUSY_EVERY)
        finally:
            self._limit = None
