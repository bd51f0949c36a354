"""The ready set: entries that only wait for a slot, in the order of the strategy."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic

from poolhand.rules.queue.entry import E, Lane
from poolhand.rules.queue.strategy import FairRoundRobin, Lifo, Priority, Strategy, aged_rank

MOST_RESTING = 10_000


class Ready(Generic[E]):
    """Lanes under a heap: a strategy decides which lane a job joins and how the lane is ranked.

    fifo and lifo have one lane, priorities one per level, fair strategies one per key. A lane is
    first come first served (lifo: last come), so no pick ever scans a whole queue. The heap may
    hold a lane under a stale rank; such items are fixed when they reach the top.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.size = 0
        self._strategy = strategy
        self._aging = strategy.aging if isinstance(strategy, Priority) else None
        self._by_priority = isinstance(strategy, Priority)
        self._fair = isinstance(strategy, FairRoundRobin)
        self._newest_first = isinstance(strategy, Lifo)
        self._lanes: dict[Hashable, Lane[E]] = {}
        self._heap: list[tuple[float, int, Lane[E]]] = []
        self._resting: list[tuple[float, int, Lane[E]]] = []
        self._orders = 0
        self._round: float = 0

    def __iter__(self) -> Iterator[E]:
        for lane in self._lanes.values():
            yield from lane

    def add(self, entry: E, first: bool = False) -> None:
        """Add an entry to its lane, at the end or `first` among its equals."""
        job = entry.job
        key = job.priority if self._by_priority else job.key if self._fair else None
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._open(key)
        if first or self._newest_first or self._aging is not None:
            self._insert(lane, entry, first)
        else:
            lane.append(entry)
        self.size += 1
        if lane.first is entry:
            self._join(lane)

    def take(self) -> E | None:
        """Remove and return the entry that is next."""
        heap = self._heap
        if not heap:
            return None
        rank, _, lane = heap[0]
        if rank != lane.heaped or not lane.size or self._aging is not None:
            best = self._best()
            if best is None:
                return None
            lane = best
        if self._newest_first and lane.last is not None:
            entry = lane.last
            lane.remove(entry)
        else:
            entry = lane.pop()
        self.size -= 1
        if self._fair:
            self._charge(lane)
        elif not lane.size:
            self._close(lane)
        return entry

    def remove(self, entry: E) -> None:
        """Remove an entry before its turn; its lane is not charged."""
        lane: Lane[E] = entry.place
        lane.remove(entry)
        self.size -= 1
        if not lane.size:
            self._rest(lane)

    def charge(self, key: str) -> None:
        """Charge the lane of a key for a job that starts without having been queued."""
        if self._fair:
            lane = self._lanes.get(key) or self._open(key)
            self._rank_anew(lane, max(self._round, lane.rank) + lane.step)

    def refund(self, key: str) -> None:
        """Refund the lane of a key for a job that was not started."""
        lane = self._lanes.get(key) if self._fair else None
        if lane is not None:
            self._rank_anew(lane, lane.rank - lane.step)

    def _rank_anew(self, lane: Lane[E], rank: float) -> None:
        lane.rank = rank
        if lane.size:
            lane.heaped = rank
            heappush(self._heap, (rank, lane.order, lane))
        else:
            self._rest(lane)

    def ahead_of(self, entry: E) -> int:
        """Count the entries that would be served before this one if no others arrived."""
        lane: Lane[E] = entry.place
        place = _place(entry, self._newest_first)
        others = (other for other in self._lanes.values() if other is not lane and other.size)
        if self._fair:
            turn = (lane.rank + place * lane.step, lane.order)
            return place + sum(_turns_before(other, turn) for other in others)
        if self._aging is not None:
            rank = (aged_rank(entry, self._aging), lane.order)
            return place + sum(_older(other, rank, self._aging) for other in others)
        return place + sum(other.size for other in others if other.rank < lane.rank)

    def _insert(self, lane: Lane[E], entry: E, first: bool) -> None:
        """Insert an entry by its age: passing a gate late does not make it younger."""
        older = lane.last
        if self._newest_first:
            while older is not None and older.seq > entry.seq:
                older = older.before
        elif self._aging is not None:
            while older is not None and older.ready_at > entry.ready_at:
                older = older.before
        elif first:
            older = None
        lane.insert_after(entry, older)

    def _open(self, key: Hashable) -> Lane[E]:
        strategy = self._strategy
        rank: float = 0
        step = 0
        if isinstance(strategy, FairRoundRobin):
            rank, step = self._round, strategy.step(str(key))
        elif isinstance(key, int):
            rank = -key
        self._orders += 1
        order = self._orders
        if self._aging is not None and isinstance(key, int):
            # When aging makes two levels equal, the entry of the lower level is older.
            order += key << 48
        lane: Lane[E] = Lane(key, order, rank, step)
        self._lanes[key] = lane
        return lane

    def _join(self, lane: Lane[E]) -> None:
        """Put a lane with a new first entry on the heap."""
        if self._fair and lane.size == 1:
            lane.rank = max(self._round, lane.rank)
        elif self._aging is not None and lane.first is not None:
            lane.rank = aged_rank(lane.first, self._aging)
        if lane.heaped != lane.rank:
            lane.heaped = lane.rank
            heappush(self._heap, (lane.rank, lane.order, lane))

    def _best(self) -> Lane[E] | None:
        heap = self._heap
        while heap:
            rank, order, lane = heap[0]
            if rank != lane.heaped or not lane.size:
                heappop(heap)
                if rank == lane.heaped:
                    lane.heaped = None
            elif self._aging is not None and self._grown(lane, rank):
                heapreplace(heap, (lane.rank, order, lane))
            else:
                return lane
        return None

    def _grown(self, lane: Lane[E], rank: float) -> bool:
        """Return whether the oldest entry of an aging lane has left since the lane was ranked."""
        assert lane.first is not None and self._aging is not None
        lane.rank = aged_rank(lane.first, self._aging)
        lane.heaped = lane.rank
        return lane.rank > rank

    def _charge(self, lane: Lane[E]) -> None:
        """Charge the lane that was served for its turn."""
        self._round = lane.rank
        lane.rank += lane.step
        if lane.size:
            lane.heaped = lane.rank
            heapreplace(self._heap, (lane.rank, lane.order, lane))
        else:
            heappop(self._heap)
            lane.heaped = None
            self._rest(lane)
        self._forget()

    def _rest(self, lane: Lane[E]) -> None:
        """Remember an empty fair lane until the round has passed it; otherwise it gains a turn."""
        if not self._fair or lane.rank <= self._round:
            self._close(lane)
        elif not lane.resting:
            lane.resting = True
            heappush(self._resting, (lane.rank, lane.order, lane))
            if len(self._resting) > MOST_RESTING:
                # Keys that occur only once must not fill the memory.
                self._awake(heappop(self._resting)[2])

    def _awake(self, lane: Lane[E]) -> None:
        """Close a resting lane, or only end its rest if it has entries again."""
        lane.resting = False
        if not lane.size:
            self._close(lane)

    def _forget(self) -> None:
        """Close the resting lanes that the round has passed."""
        resting = self._resting
        while resting and resting[0][0] <= self._round:
            lane = heappop(resting)[2]
            lane.resting = False
            if not lane.size:
                self._rest(lane)

    def _close(self, lane: Lane[E]) -> None:
        """Remove an empty lane; its stale heap items are skipped or dropped."""
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
        if self._heap and self._heap[0][2] is lane:
            heappop(self._heap)
        lane.heaped = None
        if len(self._heap) > 2 * len(self._lanes) + 64:
            self._heap = [item for item in self._heap if item[0] == item[2].heaped]
            heapify(self._heap)


def _place(entry: E, newest_first: bool) -> int:
    """Count the entries of its own lane that are served before an entry."""
    count = 0
    one = entry.after if newest_first else entry.before
    while one is not None:
        count += 1
        one = one.after if newest_first else one.before
    return count


def _turns_before(lane: Lane[E], turn: tuple[float, int]) -> int:
    """Count the turns a fair lane gets before the given one."""
    rank, order = turn
    whole, rest = divmod(rank - lane.rank, lane.step)
    turns = whole + (1 if rest > 0 or lane.order < order else 0)
    return max(0, min(lane.size, int(turns)))


def _older(lane: Lane[E], rank: tuple[float, int], aging: float) -> int:
    """Count the entries of another priority whose age ranks them before the given rank."""
    return sum(1 for one in lane if (aged_rank(one, aging), lane.order) < rank)
