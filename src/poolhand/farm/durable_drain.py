"""Draining a durable pool: what can run is finished, the rest stays in its file."""

from __future__ import annotations

import asyncio
from asyncio import Timeout
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from poolhand.contract import Line, PoolRow
from poolhand.errors import StoreError
from poolhand.farm.shift import Shift, ShiftReport
from poolhand.farm.station import Station
from poolhand.rules import audit

LOOK_EVERY = 0.05
NOTE_WITHIN = 2.0


class DurableDrain:
    """Ends one shift of a pool by a deadline, which may move forward.

    A store that is away is no reason not to stop: what is in it stays there.
    """

    def __init__(self, shift: Shift, station: Station, timeout: float) -> None:
        self._shift = shift
        self._station = station
        self._now = asyncio.get_running_loop().time
        self._deadline = self._now() + timeout
        self._limit: Timeout | None = None

    @property
    def left(self) -> float:
        return max(0.0, self._deadline - self._now())

    def hurry(self, timeout: float) -> None:
        """Move the deadline forward, never back."""
        self._deadline = min(self._deadline, self._now() + timeout)
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._deadline)
        self._shift.hurry(self.left)

    async def run(
        self, pool: tuple[str, str], look: Callable[[], Awaitable[PoolRow]]
    ) -> ShiftReport:
        """Drain the pool of that id and name; `look` tells, on the keeper, how it stands."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(NOTE_WITHIN):
                await self._station.keeper.ask(lambda: self._note(pool))
        with suppress(StoreError, TimeoutError):
            await self._finish(look)
        return await self._shift.drain(self.left)

    async def _note(self, pool: tuple[str, str]) -> None:
        record = audit.acted(audit.DRAIN, pool, "user", "", self._station.keeper.runtime.wall())
        line = Line(audit.STREAM, audit.DRAIN, msgspec.json.encode(record))
        await self._station.store.append([line])

    async def _finish(self, look: Callable[[], Awaitable[PoolRow]]) -> None:
        """Wait until nothing is left that could run now."""
        try:
            async with asyncio.timeout_at(self._deadline) as self._limit:
                while True:
                    if not _is_busy(await self._station.keeper.ask(look)):
                        return
                    await asyncio.sleep(LOOK_EVERY)
        finally:
            self._limit = None


def _is_busy(row: PoolRow) -> bool:
    if row.paused:
        # Nothing will be claimed.
        return row.running > 0
    return row.queued + row.blocked + row.running > 0
