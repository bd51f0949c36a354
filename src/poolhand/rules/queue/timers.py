"""An agenda: things that are due at a moment."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Timers(Generic[T]):
    """Holds each thing at most once, gives up the due ones in order.

    Removed things leave their heap item behind; the heap is swept when such items outnumber the
    living, so arming and disarming a deadline for every job stays cheap and bounded.
    """

    __slots__ = ("_count", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._number: dict[T, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._number)

    def __iter__(self) -> Iterator[T]:
        return iter(self._number)

    def add(self, at: float, thing: T) -> None:
        """Put a thing on the agenda, or move it to another moment."""
        self._count += 1
        self._number[thing] = self._count
        heappush(self._heap, (at, self._count, thing))
        if len(self._heap) > 2 * len(self._number) + 64:
            self._sweep()

    def remove(self, thing: T) -> bool:
        """Take a thing off the agenda, if it is there."""
        found = self._number.pop(thing, None) is not None
        if len(self._heap) > 2 * len(self._number) + 64:
            self._sweep()
        return found

    def at(self, thing: T) -> float | None:
        """Return the moment at which a thing is due; a look through the whole agenda."""
        number = self._number.get(thing)
        return next((at for at, count, _ in self._heap if count == number), None)

    def first(self) -> float | None:
        """Return the next moment at which something is due."""
        heap = self._heap
        while heap:
            at, number, thing = heap[0]
            if self._number.get(thing) == number:
                return at
            heappop(heap)
        return None

    def due(self, now: float) -> Iterator[T]:
        """Take off and yield what is due."""
        while (at := self.first()) is not None and at <= now:
            thing = heappop(self._heap)[2]
            del self._number[thing]
            yield thing

    def drop_due(self, now: float) -> None:
        """Take off what is due: the moment alone mattered."""
        for _ in self.due(now):
            pass

    def _sweep(self) -> None:
        self._heap = [item for item in self._heap if self._number.get(item[2]) == item[1]]
        heapify(self._heap)
