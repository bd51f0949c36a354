"""The lookout of a durable pool: keeps what its process knows of it true."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import MutableMapping, Sequence
from contextlib import suppress

from poolhand.contract import Filter, PoolRow
from poolhand.execute.executor import Closure
from poolhand.farm.expected import Expected, Gone
from poolhand.farm.known import OVER, Known
from poolhand.farm.station import Station
from poolhand.farm.watch import Seen
from poolhand.farm.why import pool_named
from poolhand.observe.events import Events, JobEnded
from poolhand.rules.job import Job
from poolhand.runtime import Runtime

LOOK_EVERY = 0.5
MOST_VALUES = 1000


class Lookout:
    """Hears from workers and looks into the store; lets go of closures that nobody can need.

    `load`, `look` and `look_at_all` are for the keeper's loop, all else for that of the pool.
    """

    def __init__(
        self,
        name: str,
        history: int,
        closures: MutableMapping[str, Closure],
        runtime: Runtime,
        events: Events,
    ) -> None:
        self.known = Known(name)
        self.expected = Expected(runtime.monotonic)
        self._name = name
        self._history = history
        self._closures = closures
        self._events = events
        self._noticed: Sequence[Gone] = ()
        self._values: dict[str, Seen] = {}

    async def load(self, station: Station, loop: AbstractEventLoop) -> None:
        """Learn what an earlier run left, and look on for a pool on that loop."""
        store, known, history = station.store, self.known, self._history
        if history:
            page = await store.find(Filter(self._name, dead=True), limit=history)
            known.dead = {one.job.id: one.job for one in reversed(page.jobs)}
        known.ended = Counter(await store.count(Filter(self._name, statuses=OVER)))
        await self.look(station)
        store.subscribe(self.expected.hint)
        station.keeper.start("facts", lambda: self._look_on(station, loop))

    async def look(self, station: Station) -> PoolRow:
        """Learn how the pool stands."""
        known = self.known
        known.row = await pool_named(station.store, self._name) or known.row
        return known.row

    async def look_at_all(self, station: Station) -> list[Gone]:
        """Look for the last time after all jobs whose end is not known."""
        return await self.expected.look_at_all(station.store)

    def notice(self, gone: Sequence[Gone]) -> None:
        """Note what is over; it is told at the next look, unless a worker has by then."""
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

    def keep(self, seen: Seen) -> None:
        """Keep what a closure will return for later submits of its key: no store has it."""
        self._values[seen.job.id] = seen
        if len(self._values) > MOST_VALUES:
            del self._values[next(iter(self._values))]

    def forget(self, id: str) -> None:
        """Expect nothing of a job that is not there."""
        self.expected.discard(id)
        self._values.pop(id, None)
        self._closures.pop(id, None)

    async def _look_on(self, station: Station, loop: AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.look(station)
            gone = await self.expected.look(station.store)
            with suppress(RuntimeError):
                # The loop is closed: the pool is an orphan, and nobody wants to know.
                loop.call_soon_threadsafe(self.notice, gone)
            station.keeper.well("facts")
