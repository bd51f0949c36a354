"""The arithmetic of fairness: what a turn costs a lane, and which lane is next.

Ranks are counted in ticks. The lane with the lowest rank is served, ties by the order in which
lanes appeared; the round is the rank of the lane served last. `Ready` does the same in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from msgspec import Struct


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
