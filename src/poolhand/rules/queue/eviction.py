"""The eviction index: waiting jobs by key, so that a drop policy needs no scan for its victim."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic

from msgspec import Struct

from poolhand.rules.queue.entry import E


class KeyIndex(Struct, frozen=True):
    """The number of waiting jobs of a key, and the arrival number of the oldest one."""

    key: str
    waiting: int
    oldest: int


def payer(newcomer: str, crowds: Iterable[KeyIndex]) -> str:
    """Return the key whose oldest job is evicted for a new job: the key with most waiting jobs.

    The new job counts for its key; of two keys with equally many the one with the oldest job loses.
    """

    def claim(crowd: KeyIndex) -> tuple[int, int]:
        return (-crowd.waiting - (crowd.key == newcomer), crowd.oldest)

    return min(crowds, key=claim).key


class _Queue(Generic[E]):
    """The waiting entries of one key, oldest first; the heap may hold stale items."""

    __slots__ = ("heap", "waiting")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, E]] = []
        self.waiting: dict[E, int] = {}


class EvictionIndex(Generic[E]):
    """Counts waiting entries per key and finds the oldest of the key with the most."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue[E]] = {}
        self._most: list[tuple[int, int, int, str]] = []
        self._count = 0

    def enter(self, key: str, entry: E) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
        self._count += 1
        queue.waiting[entry] = self._count
        heappush(queue.heap, (entry.seq, self._count, entry))
        self._note(key, queue)

    def leave(self, key: str, entry: E) -> None:
        queue = self._queues[key]
        del queue.waiting[entry]
        if queue.waiting:
            self._note(key, queue)
        else:
            del self._queues[key]

    def victim(self, newcomer: str) -> E:
        """Return the entry that a new job of that key evicts."""
        keys = {self._top(), newcomer} & self._queues.keys()
        crowds = [self._crowd(key) for key in keys]
        return _oldest(self._queues[payer(newcomer, crowds)])

    def _crowd(self, key: str) -> KeyIndex:
        queue = self._queues[key]
        return KeyIndex(key, len(queue.waiting), _oldest(queue).seq)

    def _note(self, key: str, queue: _Queue[E]) -> None:
        if len(queue.heap) > 2 * len(queue.waiting) + 32:
            queue.heap = [item for item in queue.heap if queue.waiting.get(item[2]) == item[1]]
            heapify(queue.heap)
        self._count += 1
        heappush(self._most, (-len(queue.waiting), _oldest(queue).seq, self._count, key))
        if len(self._most) > 4 * len(self._queues) + 64:
            self._rebuild()

    def _top(self) -> str:
        """Return the key with most waiting entries, and drop stale heap items on the way."""
        while True:
            size, seq, _, key = self._most[0]
            queue = self._queues.get(key)
            if queue is not None and (-len(queue.waiting), _oldest(queue).seq) == (size, seq):
                return key
            heappop(self._most)

    def _rebuild(self) -> None:
        self._most = [
            (-len(queue.waiting), _oldest(queue).seq, number, key)
            for number, (key, queue) in enumerate(self._queues.items())
        ]
        heapify(self._most)


def _oldest(queue: _Queue[E]) -> E:
    while True:
        _, number, entry = queue.heap[0]
        if queue.waiting.get(entry) == number:
            return entry
        heappop(queue.heap)
