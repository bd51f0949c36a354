"""The clocks of one pool: monotonic time for durations, wall time for people."""

from __future__ import annotations

from datetime import datetime, timedelta

from poolhand.runtime import Runtime


class PoolClock:
    """Reads both clocks; what is due is decided by the monotonic one alone."""

    __slots__ = ("_runtime", "now")

    def __init__(self, runtime: Runtime) -> None:
        self.now = runtime.monotonic
        self._runtime = runtime

    def wall(self) -> datetime:
        return self._runtime.wall()

    def wall_at(self, moment: float) -> datetime:
        """Return the wall time of a monotonic moment in the past, as the wall clock goes now."""
        return self._runtime.wall() - timedelta(seconds=self.now() - moment)
