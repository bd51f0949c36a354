"""The loop watch: watches the event loop of a worker while jobs run on it."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from threading import get_ident

from poolhand.pool.monitor.watchdog import Watchdog
from poolhand.pool.slots.attempt import AttemptWatch
from poolhand.runtime import Runtime

REST_AFTER = 1.0  # seconds without a job


class LoopWatch:
    """Has the loop watched from the start, or, if it `rests`, only while there are jobs.

    A watch costs some forty wake-ups a second. A loop that only jobs could block is not watched
    while there are none.
    """

    def __init__(
        self, worker: AttemptWatch, loop: AbstractEventLoop, runtime: Runtime, rests: bool
    ) -> None:
        self.thread = get_ident()
        self._worker = worker
        self._loop = loop
        self._runtime = runtime
        self._rests = rests
        self._watch: Watchdog | None = None
        self._timer: TimerHandle | None = None
        if not rests:
            self.pay()

    def pay(self) -> None:
        """Watch from now on: a job begins."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is None:
            self._watch = Watchdog.of(self._loop, self._runtime).join(self._worker)

    def relax(self) -> None:
        """Stop watching, unless a job begins soon."""
        if self._rests and self._timer is None:
            self._timer = self._loop.call_later(REST_AFTER, self.end)

    def silence(self, now: float) -> float:
        """Return how long ago the loop last turned; 0 while it is not watched."""
        watch = self._watch
        return 0.0 if watch is None else watch.silence(now)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is not None:
            self._watch.leave(self._worker)
            self._watch = None
