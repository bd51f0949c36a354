"""The clock of a pool, its one-shot alarm, and periodic calls."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from datetime import datetime, timedelta

from poolhand.runtime import Runtime


class PoolClock:
    """Reads both clocks; due times use the monotonic clock only."""

    __slots__ = ("_runtime", "now")

    def __init__(self, runtime: Runtime) -> None:
        self.now = runtime.monotonic
        self._runtime = runtime

    def wall(self) -> datetime:
        return self._runtime.wall()

    def wall_at(self, moment: float) -> datetime:
        """Return the wall time of a past monotonic moment, by the current wall clock."""
        return self._runtime.wall() - timedelta(seconds=self.now() - moment)


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


class Ticker:
    """Calls `tick` every `seconds` after creation; it uses a timer, not a task."""

    __slots__ = ("_loop", "_seconds", "_tick", "_timer")

    def __init__(self, loop: AbstractEventLoop, seconds: float, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._tick = tick
        self._timer: TimerHandle | None = loop.call_later(seconds, self._go_off)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _go_off(self) -> None:
        # Rearm before the call: `tick` may stop the ticker.
        self._timer = self._loop.call_later(self._seconds, self._go_off)
        self._tick()
