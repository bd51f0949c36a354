"""An alarm: one timer of the event loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from poolhand.pool.slots.clock import PoolClock

NEVER = float("inf")


class Alarm:
    """Calls `ring(now)` once at the earliest time it was set to, never before."""

    __slots__ = ("_clock", "_loop", "_ring", "_timer", "at")

    def __init__(
        self, loop: AbstractEventLoop, clock: PoolClock, ring: Callable[[float], None]
    ) -> None:
        self.at = NEVER
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._timer: TimerHandle | None = None

    def set(self, at: float) -> None:
        if at < self.at:
            self.close()
            self.at = at
            self._timer = self._loop.call_later(max(0.0, at - self._clock.now()), self._go_off)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.at = NEVER

    def _go_off(self) -> None:
        now = self._clock.now()
        at, self.at, self._timer = self.at, NEVER, None
        if now < at:
            # Timers of an event loop may fire slightly early; an alarm must not.
            self.set(at)
        else:
            self._ring(now)
