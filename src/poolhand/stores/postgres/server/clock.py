"""The time of a PostgreSQL store: that of its server, less what somebody has set its clock by.

A server tells nothing but its wall clock. Each process compares that with a clock of its own which
nobody can set, and a step is written down once for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# A process may think that the clock was set while it was itself held up, as a virtual machine is.
# Others that have known the time for long put it right, and it believes them.
LONG = 60.0
SLACK = 2.0  # seconds that are no step
DRIFT = 0.001  # by which part two clocks may differ that nobody has set
AMEND = "UPDATE poolhand_counters SET skew = skew + ?2 WHERE skew = ?1"


class ClockStepped(Exception):
    """The clock of the server was set, `by` so much, since `skew` was written down."""

    def __init__(self, skew: float, by: float) -> None:
        super().__init__(skew, by)
        self.skew = skew
        self.by = by


class Reading(NamedTuple):
    """The time of the store was between so much and so much ahead of our own clock, at `came`."""

    came: float
    skew: float
    least: float
    most: float

    def step_from(self, last: Reading) -> float:
        """Return by how much the store's time has moved against ours since, 0 for no step."""
        slack = SLACK + DRIFT * (self.came - last.came)
        if self.least - last.most < slack and last.least - self.most < slack:
            return 0.0
        return (self.least + self.most - last.least - last.most) / 2


class ServerClock:
    """Notices when the clock of the server was set; `tick` is a clock that nobody can set."""

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick = tick
        self._last: Reading | None = None
        self._since = 0.0  # from when on the time of the store went as ours does
        self._amended: float | None = None

    def now(self, wall: float, skew: float, asked: float) -> float:
        """Return the time of the store, by what the server said after it was asked."""
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
        """Tell whether somebody else has put the time right, and knows better."""
        if reading.skew == last.skew:
            return False
        return last.skew == self._amended or reading.came - self._since < LONG
