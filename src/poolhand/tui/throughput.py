"""Throughput: jobs per second, now and over the last two minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

SPAN = 120.0
RECENT = 10.0


class Throughput:
    """Computes rates from the number of attempts that each farm has ended so far.

    Times are seconds of a monotonic clock.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._counts: dict[str, int] = {}
        self._growth: deque[tuple[float, int]] = deque()

    def note(self, at: float, counts: Mapping[str, int]) -> None:
        """Record the farms' counts; what a new farm did before its first record is ignored."""
        grown = sum(max(0, n - self._counts.get(farm, n)) for farm, n in counts.items())
        self._counts = dict(counts)
        self._growth.append((at, grown))
        while self._growth and self._growth[0][0] <= at - SPAN:
            self._growth.popleft()

    def rate(self, at: float) -> float:
        """Return the recent number of jobs per second."""
        since = min(RECENT, at - self._began)
        if since <= 0:
            return 0.0
        return sum(grown for when, grown in self._growth if when > at - since) / since

    def history(self, at: float, parts: int) -> list[float]:
        """Return how many jobs ended in each part of the last two minutes, oldest first."""
        found = [0.0] * parts
        for when, grown in self._growth:
            ago = (at - when) / SPAN
            if 0 <= ago < 1:
                found[parts - 1 - int(ago * parts)] += grown
        return found
