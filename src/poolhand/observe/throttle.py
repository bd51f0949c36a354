"""Throttling of log lines: a limit of lines per name and second; the rest is counted."""

from __future__ import annotations

from msgspec import Struct

MOST_LINES = 10
WINDOW = 1.0
REPORT_AFTER = 10.0  # seconds that one summary of held lines covers
MOST_NAMES = 1_000  # names without held lines that are remembered


class HeldLines(Struct, frozen=True):
    """Lines of one name held back in the last `seconds`; `dead` of them report dead jobs."""

    name: str
    count: int
    dead: int
    seconds: float


class _Counter:
    """Counters of one name: lines written since `opened_at`, lines held since `held_at`."""

    __slots__ = ("dead", "held", "held_at", "opened_at", "written")

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.written = self.held = self.dead = 0
        self.held_at = now


class Throttle:
    """Allows up to 10 lines per name and second; beyond that, lines are held back and counted.

    A summary is due 10 s after the first held line. After it, lines are allowed again.
    """

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}

    def allows(self, name: str, now: float, dead: bool = False) -> bool:
        """Return whether a line may be written; otherwise count it."""
        counter = self._counters.get(name)
        if counter is None:
            self._forget_old(now)
            counter = self._counters[name] = _Counter(now)
        if not counter.held:
            if now - counter.opened_at >= WINDOW:
                counter.opened_at, counter.written = now, 0
            if counter.written < MOST_LINES:
                counter.written += 1
                return True
            counter.held_at = now
        counter.held += 1
        counter.dead += dead
        return False

    def next_at(self) -> float | None:
        """Return when the next summary is due, or None while no line is held."""
        held = [one.held_at for one in self._counters.values() if one.held]
        return min(held) + REPORT_AFTER if held else None

    def due(self, now: float) -> list[HeldLines]:
        """Return the summaries that are due; their names may be written again."""
        return self._take(now, now - REPORT_AFTER)

    def flush(self, now: float) -> list[HeldLines]:
        """Return the summaries of all held lines."""
        return self._take(now, now)

    def _take(self, now: float, held_by: float) -> list[HeldLines]:
        found = []
        for name, one in list(self._counters.items()):
            if one.held and one.held_at <= held_by:
                found.append(HeldLines(name, one.held, one.dead, now - one.held_at))
                del self._counters[name]
        return found

    def _forget_old(self, now: float) -> None:
        if len(self._counters) < MOST_NAMES:
            return
        for name, one in list(self._counters.items()):
            if not one.held and now - one.opened_at >= WINDOW:
                del self._counters[name]
