"""Drains a durable pool: finishes the jobs that can run, leaves the rest in the store."""

from __future__ import annotations

import asyncio
from asyncio import Timeout
from contextlib import suppress

from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.local_pool.mirror import PoolMirror, note
from poolhand.durable.worker.worker import Worker, WorkerReport
from poolhand.errors import StoreError
from poolhand.rules import audit

LOOK_EVERY = 0.05
ASK_WITHIN = 2.0


class DurableDrain:
    """Stops the worker of a pool by a deadline, which may become earlier.

    A store that is away does not prevent stopping: its jobs stay in it.
    """

    def __init__(
        self, shift: Worker, station: StoreConnection, lookout: PoolMirror, timeout: float
    ) -> None:
        self._shift = shift
        self._station = station
        self._lookout = lookout
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
        self._shift.hurry(self.left)

    async def run(self, pool: tuple[str, str]) -> WorkerReport:
        """Drain the pool of that id and name."""
        keeper = self._station.keeper
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(ASK_WITHIN):
                await keeper.ask(lambda: note(self._station, audit.DRAIN, pool))
        with suppress(StoreError, TimeoutError):
            await self._finish()
        report = await self._shift.drain(self.left)
        with suppress(StoreError, TimeoutError):
            # The last look at the store; the worker has reported everything by now.
            async with asyncio.timeout(ASK_WITHIN):
                lookout = self._lookout
                lookout.notice(await keeper.ask(lambda: lookout.look_at_all(self._station)))
                lookout.notice(())
                await keeper.ask(lambda: lookout.look(self._station))
        return report

    async def _finish(self) -> None:
        """Wait until nothing is left that could run now."""
        keeper, lookout, station = self._station.keeper, self._lookout, self._station
        try:
            async with asyncio.timeout_at(self._deadline) as self._limit:
                while True:
                    if not await keeper.ask(lambda: lookout.is_busy(station)):
                        return
                    await asyncio.sleep(LOOK_EVERY)
        finally:
            self._limit = None
