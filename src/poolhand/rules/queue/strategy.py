"""Queue strategies: the order in which queued jobs run, and which lane or pool is next.

Fairness is arithmetic in integer ticks: no store and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import TypeVar

from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.queue.entry import Entry
from poolhand.rules.validation import Seconds, is_amount, is_text, raise_faults, shown, to_seconds

SMALLEST_WEIGHT = 1e-9
TICKS_PER_TURN = 720_720  # divisible by every weight up to 16, so that equal shares stay exact


class Fifo(Struct, frozen=True, tag="fifo", tag_field="kind"):
    """First come, first served."""

    def __str__(self) -> str:
        return "fifo"


class Lifo(Struct, frozen=True, tag="lifo", tag_field="kind"):
    """The newest job first."""

    def __str__(self) -> str:
        return "lifo"


class Priority(Struct, frozen=True, tag="priority", tag_field="kind"):
    """The highest priority first, ties by arrival; with aging a waiting job gains levels."""

    aging: float | None = None

    def __str__(self) -> str:
        return "priority" if self.aging is None else f"priority(aging={self.aging:g})"


class FairRoundRobin(Struct, frozen=True, tag="fair_round_robin", tag_field="kind"):
    """One turn per key and round; a key of weight 3 gets three turns."""

    field: str = "key"
    weights: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"fair_round_robin({self.field})"

    def step(self, key: str) -> int:
        """Return the ticks one turn costs this key."""
        for name, weight in self.weights:
            if name == key:
                return max(1, round(TICKS_PER_TURN / weight))
        return TICKS_PER_TURN


Strategy = Fifo | Lifo | Priority | FairRoundRobin


def fifo() -> Strategy:
    """Serve jobs in the order they arrived."""
    return Fifo()


def lifo() -> Strategy:
    """Serve the newest job first."""
    return Lifo()


@explain_misuse
def priority(aging: Seconds | None = None) -> Strategy:
    """Serve the highest priority first; a job gains one level per `aging` seconds of waiting."""
    seconds = to_seconds(aging)
    if seconds is not None and not is_amount(seconds):
        raise UsageError(
            f"priority(aging={shown(seconds)}) is not allowed; give the seconds after which a "
            "waiting job gains one level (a number above 0 and at most 10**18), or None for strict "
            "priorities"
        )
    return Priority(seconds)


@explain_misuse
def fair_round_robin(key: str = "key", weights: Mapping[str, float] | None = None) -> Strategy:
    """Serve one job per key and round; `key` names the submit option that holds the key."""
    faults = []
    if not is_text(key) or not key.isidentifier():
        faults.append(
            f"key={shown(key)} is not allowed; name the submit option that holds the fairness key, "
            'for example "tenant_id"'
        )
    if isinstance(weights, Mapping | None):
        faults += [
            f"weight {shown(name)}: {shown(weight)} is not allowed; weights map a key (text) to a "
            f"number above 0, at least {SMALLEST_WEIGHT} and at most {TICKS_PER_TURN}"
            for name, weight in (weights or {}).items()
            if not (is_text(name) and is_amount(weight) and _is_weight(weight))
        ]
    else:
        faults.append(
            f"weights={shown(weights)} is not allowed; it must map keys to numbers above 0, such "
            'as {"acme": 3}'
        )
    raise_faults("fair_round_robin", faults)
    return FairRoundRobin(key, tuple((weights or {}).items()))


class QueueStrategy:
    """All queue strategies under one name."""

    fifo = staticmethod(fifo)
    lifo = staticmethod(lifo)
    priority = staticmethod(priority)
    fair_round_robin = staticmethod(fair_round_robin)


STRATEGIES = {
    "fifo": fifo,
    "lifo": lifo,
    "priority": priority,
    "fair_round_robin": fair_round_robin,
}


def _is_weight(value: float) -> bool:
    return SMALLEST_WEIGHT <= value <= TICKS_PER_TURN


def job_rank(strategy: Strategy, entry: Entry) -> tuple[float, int]:
    """Return the rank of a ready job; of two jobs of one key the lower rank runs first."""
    match strategy:
        case Lifo():
            return (-entry.seq, 0)
        case Priority(aging=None):
            return (-entry.job.priority, entry.seq)
        case Priority(aging=seconds):
            return (aged_rank(entry, seconds or 0.0), entry.seq)
        case Fifo() | FairRoundRobin():
            return (entry.seq, 0)


def aged_rank(entry: Entry, aging: float) -> float:
    """Return the time at which a job of priority 0 with the same rank would have become ready."""
    return entry.ready_at - entry.job.priority * aging


class LaneFacts(Struct, frozen=True):
    """The facts of one lane: `size` of its jobs wait, and a turn costs `step` ticks."""

    rank: int
    order: int
    size: int
    step: int


class Picks(Struct, frozen=True):
    """The lanes to serve, in order, as indexes into the lanes that were given.

    `ranks` are the ranks of all these lanes afterwards.
    """

    turns: list[int]
    ranks: list[int]
    round: int


def rejoin(round: int, own: int) -> int:
    """Return the rank of a lane that was empty: being empty neither helps nor hurts it."""
    return max(round, own)


def is_passed(round: int, own: int) -> bool:
    """Return whether an empty lane can be forgotten: a new one would get the same rank."""
    return own <= round


def picks(lanes: Sequence[LaneFacts], round: int, limit: int) -> Picks:
    """Return which lanes supply the next `limit` jobs, and their ranks afterwards.

    Lanes that rank behind the first `limit` lanes may be left out.
    """
    ranks = [lane.rank for lane in lanes]
    sizes = [lane.size for lane in lanes]
    heap = [(lane.rank, lane.order, place) for place, lane in enumerate(lanes) if lane.size]
    heapify(heap)
    turns: list[int] = []
    while heap and len(turns) < limit:
        round, order, place = heap[0]
        turns.append(place)
        ranks[place] = rank = round + lanes[place].step
        sizes[place] -= 1
        if sizes[place]:
            heapreplace(heap, (rank, order, place))
        else:
            heappop(heap)
    return Picks(turns, ranks, round)


P = TypeVar("P")
T = TypeVar("T")


def behind(pools: Sequence[P], last: P | None) -> list[P]:
    """Return all pools in order, starting after `last` and ending with it."""
    start = 0 if last is None else pools.index(last) + 1
    return [*pools[start:], *pools[:start]]


def round_robin(pools: Sequence[P], take: Callable[[P], T | None]) -> Iterator[tuple[P, T]]:
    """Yield one item of each pool in turn; a pool that returned None is not polled again."""
    line = deque(pools)
    while line:
        pool = line.popleft()
        given = take(pool)
        if given is not None:
            yield pool, given
            line.append(pool)
