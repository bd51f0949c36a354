"""Job ids: unique for ever, sorted by the time they were made."""

from __future__ import annotations


class Ids:
    """Makes ids of 28 characters: 11 for the millisecond, 12 of salt, 5 for a counter.

    The salt tells sources apart. The millisecond never goes back, whatever the wall clock does, so
    that one source cannot repeat itself and its ids sort in the order they were made.
    """

    __slots__ = ("_count", "_head", "_millisecond", "_salt")

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._millisecond = -1
        self._head = ""
        self._count = 0

    def tell(self, millisecond: int) -> None:
        """Move on to this millisecond, unless it lies in the past."""
        if millisecond > self._millisecond:
            self._millisecond = millisecond
            self._head = f"{millisecond:011x}{self._salt}"
            self._count = 0

    def new(self) -> str:
        self._count = count = self._count + 1
        if count > 0xFFFFF:
            self.tell(self._millisecond + 1)
            self._count = count = 1
        return f"{self._head}{count:05x}"
