"""A ticker: a periodic call by the event loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable


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
