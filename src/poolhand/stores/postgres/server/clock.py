"""The time of a PostgreSQL store: its server's clock, less the steps by which it was set.

A server reports only its wall clock. Each process compares that with a local clock that cannot be
set, and a step is recorded once for all processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# A process may detect a step where there is none because it was itself suspended, as a virtual
# machine is. Processes that have known the time for longer correct that, and it adopts their value.
LONG = 60.0
SLACK = 2.0  # seconds that do not count as a step
DRIFT = 0.001  # ratio by which two clocks may drift apart without being set
AMEND = "UPDATE poolhand_counters SET skew = skew + ?2 WHERE skew = ?1"


class ClockStepped(Exception):
    """The server's clock was set, `by` so many seconds, since `skew` was recorded."""

    def __init__(self, skew: float, by: float) -> None:
        super().__init__(skew, by)
        self.skew = skew
        self.by = by


class Reading(NamedTuple):
    """At `came` the store's time was between `least` and `most` ahead of the local clock."""

    came: float
    skew: float
    least: float
    most: float

    def step_from(self, last: Reading) -> float:
        """Return how far the store's time has moved against the local clock, 0: no step."""
        slack = SLACK + DRIFT * (self.came - last.came)
        if self.least - last.most < slack and last.least - self.most < slack:
            return 0.0
        return (self.least + self.most - last.least - last.most) / 2


class ServerClock:
    """Detects that the server's clock was set; `tick` is a local clock that cannot be set."""

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick = tick
        self._last: Reading | None = None
        self._since = 0.0  # since when the store's time has run like the local clock
        self._amended: float | None = None

    def now(self, wall: float, skew: float, asked: float) -> float:
        """Return the time of the store from the server's answer; `asked`: when it was asked."""
        now, came = wall - skew, self.tick()
        reading, last = Reading(came, skew, now - came, now - asked), self._last
        step = 0.0 if last is None else reading.step_from(last)
        if last is None or (step and self._believes(reading, last)):
            self._since = came
        elif step:
            self._amended = skew + step
            raise ClockStepped(skew, step)
        self._last = reading
        return now

    def _believes(self, reading: Reading, last: Reading) -> bool:
        """Return whether another process has corrected the time and is to be believed."""
        if reading.skew == last.skew:
            return False
        return last.skew == self._amended or reading.came - self._since < LONG
