"""Job ids: unique for ever, sorted by the time they were made."""

from __future__ import annotations

MOST_IN_A_MILLISECOND = 0xFFFFF


class Ids:
    """Counts out ids of 28 characters: 11 for the millisecond, 12 of salt, 5 for a counter.

    The salt tells sources apart. Milliseconds are those of a clock that never goes back, moved to
    the calendar once by `offset` seconds, so that one source cannot repeat itself and its ids sort
    in the order they were made. An id is `head` and the number that `next` gives; it is only put
    together (`full_id`) when somebody asks for it.
    """

    __slots__ = ("_count", "_millisecond", "_offset", "_salt", "_until", "head")

    def __init__(self, salt: str, offset: float) -> None:
        self.head = ""
        self._salt = salt
        self._offset = offset
        self._millisecond = -1
        self._until = float("-inf")
        self._count = 0

    @property
    def last(self) -> tuple[str, int]:
        """The head and the number of the last id; those of later ones are greater."""
        return self.head, self._count

    def next(self, now: float) -> int:
        """Return the next number under `head`; `now` comes from that clock."""
        self._count = count = self._count + 1
        if now >= self._until or count > MOST_IN_A_MILLISECOND:
            return self._move_on(now)
        return count

    def _move_on(self, now: float) -> int:
        """Start a new millisecond; a crowded one borrows from those to come."""
        self._millisecond = max(int((now + self._offset) * 1000), self._millisecond + 1)
        self._until = (self._millisecond + 1) / 1000 - self._offset
        self.head = f"{self._millisecond:011x}{self._salt}"
        self._count = 1
        return 1


def full_id(head: str, number: int) -> str:
    """Return the id that a head and a number stand for."""
    return f"{head}{number:05x}"
