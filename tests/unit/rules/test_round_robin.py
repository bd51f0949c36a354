"""How the slots of one claim are shared between pools: one of each in turn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from poolhand.rules.queue.strategy import behind, round_robin

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 6), min_size=1)


def taker(counts: dict[str, int]) -> Callable[[str], int | None]:
    """Return as many as a pool has, numbered from 1."""
    given_out = dict.fromkeys(counts, 0)

    def take(pool: str) -> int | None:
        if given_out[pool] == counts[pool]:
            return None
        given_out[pool] += 1
        return given_out[pool]

    return take


def dealt(counts: dict[str, int]) -> list[str]:
    return [f"{pool}{number}" for pool, number in round_robin(list(counts), taker(counts))]


def test_pools_take_turns_until_all_are_empty() -> None:
    assert dealt({"a": 3, "b": 1, "c": 2}) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_an_empty_pool_costs_no_turn() -> None:
    assert dealt({"a": 0, "b": 2, "c": 0}) == ["b1", "b2"]
    assert dealt({}) == []


def test_jobs_are_taken_lazily() -> None:
    asked: list[str] = []

    def take(pool: str) -> str:
        asked.append(pool)
        return pool

    assert [pool for pool, _ in islice(round_robin(["a", "b", "c"], take), 4)] == [
        "a",
        "b",
        "c",
        "a",
    ]
    assert asked == ["a", "b", "c", "a"]


def test_the_pool_behind_the_one_that_was_served_last_begins() -> None:
    assert behind(["a", "b", "c"], None) == ["a", "b", "c"]
    assert behind(["a", "b", "c"], "a") == ["b", "c", "a"]
    assert behind(["a", "b", "c"], "c") == ["a", "b", "c"]
    assert behind([], None) == []


@given(COUNTS)
def test_every_job_is_dealt_once_and_pools_differ_by_at_most_one_turn(
    counts: dict[str, int],
) -> None:
    pools = [pool for pool, _ in round_robin(list(counts), taker(counts))]
    assert {pool: pools.count(pool) for pool in counts} == counts
    for end in range(len(pools)):
        got = {pool: pools[:end].count(pool) for pool in counts}
        waiting = [got[pool] for pool in counts if got[pool] < counts[pool]]
        assert not waiting or max(got.values()) - min(waiting) <= 1


@given(COUNTS, st.integers(1, 4))
def test_successive_claims_deal_like_a_single_one(counts: dict[str, int], size: int) -> None:
    pools, take = list(counts), taker(counts)
    last: str | None = None
    found: list[str] = []
    while part := list(islice(round_robin(behind(pools, last), take), size)):
        last = part[-1][0]
        found += [f"{pool}{number}" for pool, number in part]
    assert found == dealt(counts)
