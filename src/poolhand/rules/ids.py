"""Job ids: globally unique, sorted by creation time."""

from __future__ import annotations

MOST_IN_A_MILLISECOND = 0xFFFFF


class Ids:
    """Generates ids of 28 characters: 11 for the millisecond, 12 of salt, 5 for a counter.

    The salt distinguishes sources. Milliseconds come from a clock that never goes back, shifted
    once to calendar time by `offset` seconds, so one source never repeats an id and its ids sort
    in creation order. An id is `head` plus the number that `next` returns; `full_id` joins them
    only when the id is needed.
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
        """The head and the number of the last id; later ids are greater."""
        return self.head, self._count

    def next(self, now: float) -> int:
        """Return the next number under `head`; `now` is a reading of that clock."""
        self._count = count = self._count + 1
        if now >= self._until or count > MOST_IN_A_MILLISECOND:
            return self._move_on(now)
        return count

    def _move_on(self, now: float) -> int:
        """Start a new millisecond; one whose counter is full uses the next millisecond early."""
        self._millisecond = max(int((now + self._offset) * 1000), self._millisecond + 1)
        self._until = (self._millisecond + 1) / 1000 - self._offset
        self.head = f"{self._millisecond:011x}{self._salt}"
        self._count = 1
        return 1


def full_id(head: str, number: int) -> str:
    """Return the id made of a head and a number."""
    return f"{head}{number:05x}"
