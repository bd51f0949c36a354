"""The arithmetic of fairness: what a turn costs a lane, and whose turn is next.

Ranks are ticks. The lane with the lowest rank is served, ties by the order in which lanes appeared;
the round is the rank of the lane that was served last. `Ready` does the same in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from msgspec import Struct


class LaneFacts(Struct, frozen=True):
    """All that a turn of a lane depends on: `size` jobs of it wait, a turn costs `step` ticks."""

    rank: int
    order: int
    size: int
    step: int


class Picks(Struct, frozen=True):
    """Whose turn it is, one after the other, by the place of a lane in what was asked about.

    `ranks` are those of all these lanes afterwards.
    """

    turns: list[int]
    ranks: list[int]
    round: int


def rejoin(round: int, own: int) -> int:
    """Return the rank of a lane that was empty: it gains nothing by that and loses nothing."""
    return max(round, own)


def is_passed(round: int, own: int) -> bool:
    """Tell whether an empty lane can be forgotten: one that comes anew would rank as it does."""
    return own <= round


def picks(lanes: Sequence[LaneFacts], round: int, limit: int) -> Picks:
    """Say which lanes give the next `limit` jobs, and what they have paid then.

    Lanes that rank behind the first `limit` ones can be left out.
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
