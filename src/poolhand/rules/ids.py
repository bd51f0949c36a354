"""Job ids: unique for ever, sorted by the time they were made."""

from __future__ import annotations


class Ids:
    """Makes ids of 28 characters: 11 for the millisecond, 12 of salt, 5 for a counter.

    The salt tells sources apart. Milliseconds are those of a clock that never goes back, moved to
    the calendar once by `offset` seconds, so that one source cannot repeat itself and its ids sort
    in the order they were made.
    """

    __slots__ = ("_count", "_head", "_millisecond", "_offset", "_salt", "_until")

    def __init__(self, salt: str, offset: float) -> None:
        self._salt = salt
        self._offset = offset
        self._millisecond = -1
        self._until = float("-inf")
        self._head = ""
        self._count = 0

    def new(self, now: float) -> str:
        """Return the next id; `now` is the reading of the clock that never goes back."""
        self._count = count = self._count + 1
        if now >= self._until or count > 0xFFFFF:
            count = self._move_on(now)
        return f"{self._head}{count:05x}"

    def _move_on(self, now: float) -> int:
        """Start a new millisecond; a crowded one borrows from those to come."""
        self._millisecond = max(int((now + self._offset) * 1000), self._millisecond + 1)
        self._until = (self._millisecond + 1) / 1000 - self._offset
        self._head = f"{self._millisecond:011x}{self._salt}"
        self._count = 1
        return 1
