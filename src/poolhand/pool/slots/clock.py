"""The clocks of one pool: monotonic time for durations, wall time for people."""

from __future__ import annotations

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
