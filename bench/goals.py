"""The goals of the pool benchmark, and the text that compares a figure with its goal."""

from __future__ import annotations

from dataclasses import dataclass

MISSED = "MISSED"


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound on a figure, in the unit that `of` names."""

    most: float
    of: str

    def judge(self, actual: float) -> str:
        """The goal and the figure, with `pass` or `MISSED`."""
        verdict = "pass" if actual <= self.most else MISSED
        return f"{verdict}: {figure(actual)} (≤ {figure(self.most)} {self.of})"


SEMAPHORE_GOAL = {
    "no-op": Goal(0.8, "× Semaphore + gather"),
    "one suspension": Goal(0.6, "× Semaphore + gather"),
}
FLOOR_GOAL = Goal(4.0, "× floor, stretch")
PENDING_GOAL = Goal(600, "bytes")
GROWTH_GOAL = Goal(1.3, "× growth of the heapq")
IMPORT_GOAL = Goal(150, "ms")


def figure(value: float) -> str:
    """Two decimals for small figures, none for large ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
