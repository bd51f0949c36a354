"""The clocks of one pool: monotonic time for durations, wall time for people."""

from __future__ import annotations

from datetime import datetime, timedelta

from poolhand.rules.ids import Ids
from poolhand.runtime import Runtime

SHARED_SECONDS = 0.001


class Clock:
    """Reads both clocks; jobs of one millisecond share one wall reading, which costs more."""

    __slots__ = ("_at", "_fresh_until", "_ids", "_runtime", "now")

    def __init__(self, runtime: Runtime, ids: Ids) -> None:
        self.now = runtime.monotonic
        self._runtime = runtime
        self._ids = ids
        self._fresh_until = float("-inf")
        self._at = runtime.wall()

    def wall_at(self, moment: float) -> datetime:
        """Return the wall time of a monotonic moment in the past, as the wall clock goes now."""
        return self._runtime.wall() - timedelta(seconds=self.now() - moment)

    def wall(self, now: float) -> datetime:
        """Return the wall time that belongs to the monotonic moment `now`."""
        if now >= self._fresh_until:
            self._fresh_until = now + SHARED_SECONDS
            self._at = self._runtime.wall()
            self._ids.tell(int(self._at.timestamp() * 1000))
        return self._at
