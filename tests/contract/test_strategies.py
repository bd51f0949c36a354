"""Strategies: every strategy serves in the same order as a pool in memory."""

from __future__ import annotations

import pytest

from poolhand.rules.queue.backpressure import ring_buffer
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from tests.contract.support import Hand, ids, spec


async def take_in(hand: Hand, keys: str) -> None:
    """Add one job for each letter; its id is the letter and its number."""
    for number, key in enumerate(keys.split()):
        await hand.take_in(f"{key}{number:03}", key=key)


async def served_keys(hand: Hand) -> str:
    return " ".join([name[0] for name in await hand.serve()])


async def test_fifo_serves_in_the_order_of_arrival(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fifo()))
    for name, level in [("a", 0), ("b", 9), ("c", 5)]:
        await hand.take_in(name, priority=level)
    assert await hand.serve() == ["a", "b", "c"]


async def test_lifo_serves_the_newest_first(hand: Hand) -> None:
    await hand.store.declare(spec(queue=lifo()))
    await hand.take_in(*"abc")
    assert ids(await hand.claim(1)) == ["c"]
    await hand.take_in("d")
    assert await hand.serve() == ["d", "b", "a"]


async def test_lifo_orders_by_arrival_not_by_when_a_job_was_unblocked(hand: Hand) -> None:
    await hand.store.declare(spec(queue=lifo(), slots=1))
    claim = await hand.start("first", session="s")
    await hand.take_in("second", session="s")
    await hand.take_in("third")
    await hand.take_in("fourth", session="t")
    await hand.finish(claim)
    assert await hand.serve() == ["fourth", "third", "second"]


async def test_the_highest_priority_goes_first_ties_by_arrival(hand: Hand) -> None:
    await hand.store.declare(spec(queue=priority()))
    for name, level in [("a", 0), ("b", 5), ("c", -3), ("d", 5), ("e", 0)]:
        await hand.take_in(name, priority=level)
    assert await hand.serve() == ["b", "d", "a", "e", "c"]


async def test_with_aging_a_waiting_job_gains_levels(hand: Hand) -> None:
    await hand.store.declare(spec(queue=priority(aging=10.0)))
    await hand.take_in("old", priority=0)
    hand.clock.wait(15)
    await hand.take_in("one above", priority=1)
    await hand.take_in("two above", priority=2)
    assert await hand.serve() == ["two above", "old", "one above"]


async def test_two_keys_alternate_whatever_their_arrival_order(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await take_in(hand, "A B B A A B B A")
    assert await served_keys(hand) == "A B A B A B A B"


async def test_two_keys_with_a_hundred_jobs_each_alternate_strictly(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await take_in(hand, " ".join(["A"] * 100 + ["B"] * 100))
    assert await served_keys(hand) == " ".join(["A B"] * 100)


async def test_a_key_with_many_jobs_waits_its_turn(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await take_in(hand, "A A A A A B C D")
    assert await served_keys(hand) == "A B C D A A A A"


async def test_a_key_that_joins_is_served_in_the_current_round(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await take_in(hand, "A A A B B B")
    assert [claim.job.key for claim in await hand.claim(2)] == ["A", "B"]
    await hand.take_in("C006", key="C")
    assert await served_keys(hand) == "C A B A B"


async def test_evicted_jobs_cost_their_key_no_turn(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin(), backpressure=ring_buffer(6), slots=1))
    claim = await hand.start("running", key="R")
    await take_in(hand, " ".join(["A"] * 40))
    for name in ("B1", "B2", "B3"):
        await hand.take_in(name, key="B")
    await hand.finish(claim)
    assert await served_keys(hand) == "A B A B A B"


async def test_a_cancelled_turn_costs_its_key_nothing(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await take_in(hand, "A A A B B B")
    await hand.store.cancel(["A000", "A001"], "me")
    assert await served_keys(hand) == "A B B B"


async def test_a_key_gains_nothing_by_being_idle(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await take_in(hand, "B A A A A")
    assert [claim.job.key for claim in await hand.claim(3)] == ["B", "A", "A"]
    for number in range(3):
        await hand.take_in(f"B9{number}", key="B")
    assert await served_keys(hand) == "B A B A B"


async def test_a_key_loses_nothing_by_being_idle(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await take_in(hand, "A A B B")
    (claim, _) = await hand.claim(2)
    await hand.store.cancel(["A001"], "me")
    await hand.take_in("A99", key="A")
    assert claim.job.key == "A"
    assert await served_keys(hand) == "A B"


async def test_a_weight_is_the_number_of_turns_per_round(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin(weights={"A": 3})))
    await take_in(hand, "A A A A A A B B B")
    assert await served_keys(hand) == "A B A A A B A A B"


async def test_an_expired_job_costs_its_key_no_turn(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await hand.take_in("A1", key="A", expires=5.0)
    await hand.take_in("A2", key="A")
    await hand.take_in("B1", key="B")
    hand.clock.wait(5)
    assert await served_keys(hand) == "A B"


STRATEGIES = pytest.mark.parametrize(
    "queue",
    [fifo(), lifo(), priority(), priority(aging=3.0), fair_round_robin()],
    ids=["fifo", "lifo", "priority", "aging", "fair"],
)


@STRATEGIES
async def test_every_strategy_serves_everything_once(hand: Hand, queue: Strategy) -> None:
    await hand.store.declare(spec(queue=queue, slots=3))
    names = [f"{'ABC'[n % 3]}{n:02}" for n in range(30)]
    for n, name in enumerate(names):
        await hand.take_in(name, key=name[0], priority=n % 4)
        hand.clock.wait(0.5)
    assert sorted(await hand.serve()) == sorted(names)


@STRATEGIES
async def test_a_requeued_job_is_served_again(hand: Hand, queue: Strategy) -> None:
    await hand.store.declare(spec(queue=queue, slots=1))
    claim = await hand.start("A1", key="A")
    await hand.take_in("B1", key="B")
    assert await hand.retry(claim)
    assert sorted(await hand.serve()) == ["A1", "B1"]


@STRATEGIES
async def test_a_session_is_served_in_submit_order(hand: Hand, queue: Strategy) -> None:
    await hand.store.declare(spec(queue=queue))
    for n in range(5):
        await hand.take_in(f"s{n}", session="s", priority=n, key="AB"[n % 2])
    assert await hand.serve() == ["s0", "s1", "s2", "s3", "s4"]
