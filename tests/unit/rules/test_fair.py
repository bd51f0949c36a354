"""The arithmetic of fairness, compared with the queue in memory."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from poolhand.rules.queue.entry import Entry
from poolhand.rules.queue.ready import Ready
from poolhand.rules.queue.strategy import FairRoundRobin, LaneFacts, is_passed, picks, rejoin
from tests.unit.rules.floor import new_entry

KEYS = "ABCDE"


def lane(rank: int = 0, order: int = 1, size: int = 10, step: int = 1) -> LaneFacts:
    return LaneFacts(rank, order, size, step)


def test_lanes_of_one_rank_take_turns_in_order_of_appearance() -> None:
    assert picks([lane(order=2), lane(order=1)], 0, 4).turns == [1, 0, 1, 0]


def test_a_lane_with_half_the_cost_gets_twice_the_turns() -> None:
    made = picks([lane(step=1), lane(order=2, step=2)], 0, 9)
    assert Counter(made.turns) == {0: 6, 1: 3}


def test_a_lane_serves_no_more_than_it_has() -> None:
    made = picks([lane(size=1), lane(order=2, size=2), lane(order=3, size=0)], 0, 10)
    assert made.turns == [0, 1, 1]


def test_only_a_served_turn_is_charged() -> None:
    made = picks([lane(rank=5, step=3), lane(rank=50)], 5, 2)
    assert (made.ranks, made.round) == ([11, 50], 8)


def test_the_round_does_not_advance_when_no_job_is_served() -> None:
    assert picks([], 7, 10).round == 7
    assert picks([lane(rank=9)], 7, 0).round == 7


def test_only_as_many_lanes_as_picks_are_considered() -> None:
    lanes = [lane(rank=rank % 5, order=rank, step=2) for rank in range(20)]
    first = sorted(range(20), key=lambda place: (lanes[place].rank, lanes[place].order))[:6]
    assert set(picks(lanes, 0, 6).turns) <= set(first)


def test_a_lane_that_rejoins_is_neither_ahead_of_the_round_nor_of_itself() -> None:
    assert rejoin(round=5, own=3) == 5
    assert rejoin(round=5, own=8) == 8
    assert is_passed(round=5, own=5)
    assert not is_passed(round=5, own=6)


@pytest.mark.parametrize("seed", range(20))
def test_the_queue_in_memory_picks_the_same(seed: int) -> None:
    random = Random(seed)
    strategy = FairRoundRobin(weights=(("A", 2.0), ("B", 0.5)))
    ready: Ready[Entry] = Ready(strategy)
    sizes = Counter(random.choices(KEYS, k=40))
    for key in sizes.elements():
        ready.add(new_entry(key=key))
    lanes = [
        LaneFacts(0, order, size, strategy.step(key))
        for order, (key, size) in enumerate(sizes.items())
    ]
    limit = random.randint(1, 45)
    expected = [entry.job.key for _ in range(limit) if (entry := ready.take()) is not None]
    keys = list(sizes)
    assert [keys[place] for place in picks(lanes, 0, limit).turns] == expected
