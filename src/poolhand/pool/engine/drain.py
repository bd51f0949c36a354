"""Draining a pool within one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from poolhand.observe import events
from poolhand.pool.engine.engine import Engine
from poolhand.rules.plain import PlainView

SLOW_AFTER = 0.8
SMALLEST_WAIT = 1e-6  # a shorter wait would be lost in the rounding of the clock
STOP_GRACE = 0.4  # after the deadline; a slot that has not stopped by then is left behind as stuck


class DrainReport(PlainView, frozen=True):
    """Counts of all jobs ever submitted by how they ended, and the duration of the drain."""

    submitted: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    expired: int
    stuck: int
    seconds: float


class Drain:
    """Refuses new jobs, finishes the existing ones, ends the rest at the deadline.

    Ends at the latest twice `STOP_GRACE` after the deadline, whatever jobs and callbacks do.
    """

    def __init__(self, engine: Engine, timeout: float) -> None:
        self._engine = engine
        self._timeout = timeout
        self._began = engine.clock.now()
        self._deadline = self._began + timeout
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """Refuse new work from now on."""
        self._announce()
        self._engine.on_idle = self._changed.set
        self._engine.intake.close()

    def hurry(self, timeout: float) -> None:
        """Move the deadline earlier, never later."""
        deadline = self._engine.clock.now() + timeout
        if deadline < self._deadline:
            self._deadline = deadline
            self._changed.set()

    async def run(self) -> DrainReport:
        try:
            await self._finish()
        except (asyncio.CancelledError, KeyboardInterrupt):
            # The drain's own task was cancelled by a second signal or at program exit: stop now.
            await self._stop()
        return self._report()

    async def _finish(self) -> None:
        if not await self._idle_before(SLOW_AFTER):
            self._announce_slow()
            if not await self._idle_before(1.0):
                await self._stop()

    async def _idle_before(self, share: float) -> bool:
        """Wait until the pool is idle or this share of the time has passed; return whether idle."""
        return await self._idle_until(lambda: self._deadline - self._timeout * (1.0 - share))

    async def _stop(self) -> None:
        """End all jobs; the slots settle every running job before the grace period is over."""
        engine = self._engine
        engine.stop_now(STOP_GRACE)
        moment = engine.clock.now() + 2 * STOP_GRACE
        await self._idle_until(lambda: moment)

    async def _idle_until(self, moment: Callable[[], float]) -> bool:
        """Wait until the pool is idle or `moment`, which may change; return whether idle."""
        engine = self._engine
        engine.slots.reclaim()
        while not engine.is_idle:
            left = moment() - engine.clock.now()
            if left < SMALLEST_WAIT:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
            engine.slots.reclaim()
        return True

    def _announce(self) -> None:
        engine = self._engine
        if engine.events.live:
            waiting, active = engine.desk.waiting, engine.active
            engine.events.emit(
                events.DrainStarted(engine.config.name, waiting, active, self._timeout)
            )

    def _announce_slow(self) -> None:
        engine = self._engine
        left = max(0.0, self._deadline - engine.clock.now())
        if engine.events.live and left:
            waiting, active = engine.desk.waiting, engine.active
            engine.events.emit(events.DrainSlow(engine.config.name, waiting, active, left))

    def _report(self) -> DrainReport:
        engine, tally = self._engine, self._engine.tally
        engine.on_idle = None
        engine.dispose()
        ends = (tally.completed, tally.failed, tally.cancelled, tally.rejected, tally.expired)
        figures = (tally.submitted, *ends, engine.slots.stuck, engine.clock.now() - self._began)
        if engine.events.live:
            engine.events.emit(events.PoolDrained(engine.config.name, *figures))
        return DrainReport(*figures)
