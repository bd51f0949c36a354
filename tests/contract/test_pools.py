"""Pools: declarations, and what operators do to pools while they work."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from poolhand.contract import PoolRow
from poolhand.errors import Conflict
from poolhand.rules.queue.backpressure import OnFull, bounded, fail_fast, ring_buffer
from poolhand.rules.queue.stored_desk import undeclared
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from tests.contract.support import Another, Hand, entries, ids, order, refused, spec


async def test_a_declared_pool_is_seen_as_it_was_declared(hand: Hand, another: Another) -> None:
    rules = [
        spec("a", fair_round_robin("tenant_id", {"x": 2.0}), bounded(3), slots=4),
        spec("b", priority(aging=2.5), ring_buffer(5), max_per_key=2, key_ttl=7.0, max_keys=9),
        spec("c", lifo(), fail_fast(), slots=1),
    ]
    for one in rules:
        await hand.store.declare(one)
    assert await Hand(await another(), hand.clock).pools() == [PoolRow(one) for one in rules]


async def test_pools_are_listed_in_the_order_they_first_appeared(hand: Hand) -> None:
    await hand.take_in("x", pool="b")
    await hand.store.declare(spec("c"))
    await hand.store.declare(spec("a"))
    await hand.store.declare(spec("b"))
    assert [row.spec.name for row in await hand.pools()] == ["b", "c", "a"]
    some = await hand.store.pools(["a", "b", "x\ud800", "nowhere", "a"])
    assert [row.spec.name for row in some] == ["b", "a"]
    assert await hand.store.pools([]) == []


async def test_a_pool_counts_its_jobs_by_state(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(4), slots=1, max_per_key=1))
    await hand.start("running", key="A", session="s")
    await hand.take_in("of key", key="A")
    await hand.take_in("of session", session="s")
    await hand.take_in("scheduled", delay=5.0)
    await hand.take_in("queued")
    await hand.submit("parked")
    row = await hand.pool()
    assert (row.running, row.queued, row.blocked) == (1, 1, 2)
    assert (row.scheduled, row.blocked_submitters) == (1, 1)


async def test_declaring_again_puts_the_new_rules_in_force(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    await hand.take_in(*"abc")
    assert len(await hand.claim()) == 1
    await hand.store.declare(spec(slots=2, backpressure=bounded(1, OnFull.FAIL_SUBMITTER)))
    assert len(await hand.claim()) == 1
    refused(await hand.submit("d"))


async def test_declaring_the_same_again_changes_nothing(hand: Hand) -> None:
    rules = spec(queue=fair_round_robin(), slots=1)
    await hand.store.declare(rules)
    for name in ("A1", "A2", "B1", "B2"):
        await hand.take_in(name, key=name[0])
    await hand.finish(*await hand.claim(1))
    await hand.store.declare(rules)
    assert await hand.serve() == ["B1", "A2", "B2"]


async def test_a_pool_that_was_used_before_it_is_declared_gets_its_rules(hand: Hand) -> None:
    await hand.take_in(*"abc")
    rules = replace(spec(queue=lifo(), slots=1), id="pool-declared")
    await hand.store.declare(rules)
    assert (await hand.pool()).spec == rules
    assert ids(await hand.claim()) == ["c"]
    assert (await hand.get("a")).job.pool_id == undeclared("pool").id


async def test_a_declaration_keeps_operator_overrides(hand: Hand) -> None:
    await hand.store.declare(spec(slots=5))
    await hand.store.set_pool("pool", "me", slots=1)
    await hand.store.set_pool("pool", "me", paused=True)
    await hand.store.declare(spec(slots=3, queue=lifo()))
    row = await hand.pool()
    assert (row.paused, row.resized, row.slots) == (True, 1, 1)
    await hand.store.set_pool("pool", "me", declared=True)
    assert (await hand.pool()).slots == 3
    await hand.take_in(*"abcd")
    assert await hand.claim() == []
    await hand.store.set_pool("pool", "me", paused=False)
    assert ids(await hand.claim()) == ["d", "c", "b"]


RANKED = [
    (fifo(), ["A1", "A2", "A3", "B4", "C5"]),
    (lifo(), ["C5", "B4", "A3", "A2", "A1"]),
    (priority(), ["B4", "A2", "C5", "A1", "A3"]),
    (fair_round_robin(), ["A1", "B4", "C5", "A2", "A3"]),
]
LEVELS = {"A1": 0, "A2": 1, "A3": 0, "B4": 2, "C5": 1}


@pytest.mark.parametrize("before", [fifo(), lifo(), priority(), fair_round_robin()], ids=str)
async def test_a_changed_strategy_reorders_queued_jobs(hand: Hand, before: Strategy) -> None:
    for after, served in RANKED:
        pool = str(after)
        await hand.store.declare(spec(pool, queue=before, slots=1))
        claim = await hand.start(f"{pool} running", pool, key="R")
        for name, level in LEVELS.items():
            await hand.take_in(f"{pool} {name}", pool=pool, key=name[0], priority=level)
        await hand.store.declare(spec(pool, queue=after, slots=1))
        await hand.finish(claim)
        assert await hand.serve((pool,)) == [f"{pool} {name}" for name in served]


async def test_a_changed_declaration_keeps_the_arrival_order(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    for name, session in [("a", "s"), ("b", None), ("c", "t"), ("d", None)]:
        await hand.take_in(name, session=session)
    await hand.store.declare(spec(slots=1, queue=lifo()))
    await hand.take_in("e")
    await hand.store.declare(spec(slots=1, queue=lifo(), max_per_key=9))
    await hand.take_in("f", session="u")
    await hand.store.declare(spec(slots=1, queue=lifo(), max_per_key=9, key_ttl=5.0))
    await hand.take_in("g")
    assert await hand.serve() == ["g", "f", "e", "d", "c", "b", "a"]


async def test_with_new_aging_queued_jobs_keep_their_age(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    await hand.take_in("old")
    hand.clock.wait(15)
    await hand.take_in("one above", priority=1)
    await hand.take_in("two above", priority=2)
    await hand.store.declare(spec(slots=1, queue=priority(aging=10.0)))
    assert await hand.serve() == ["two above", "old", "one above"]


async def test_a_new_key_cap_counts_running_jobs(hand: Hand) -> None:
    await hand.take_in("a1", "a2", "a3", "a4", key="A")
    one, two = await hand.claim(2)
    await hand.store.declare(spec(max_per_key=1))
    assert await hand.statuses("a3", "a4") == "blocked blocked"
    await hand.finish(one)
    assert await hand.claim() == []
    await hand.finish(two)
    assert ids(await hand.claim()) == ["a3"]


async def test_a_new_key_cap_does_not_count_finished_jobs(hand: Hand) -> None:
    await hand.take_in("a1", "a2", "a3", key="A")
    one, two = await hand.claim(2)
    await hand.finish(one)
    await hand.retry(two)
    await hand.store.declare(spec(max_per_key=1))
    assert await hand.statuses("a1", "a2", "a3") == "completed queued blocked"
    assert await hand.serve() == ["a2", "a3"]


async def test_a_new_key_cap_counts_stuck_jobs(hand: Hand) -> None:
    claim = await hand.start("a1", key="A")
    await hand.change(hand.ended(claim, stuck=True))
    await hand.take_in("a2", key="A")
    await hand.store.declare(spec(max_per_key=1))
    assert await hand.claim() == []
    await hand.store.replace(released=[claim.token])
    assert await hand.serve() == ["a2"]


async def test_removing_a_key_cap_unblocks_its_waiting_jobs(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=1))
    await hand.take_in("a1", "a2", "a3", key="A")
    await hand.store.declare(spec())
    assert await hand.serve() == ["a1", "a2", "a3"]


async def test_turns_of_a_session_stay_in_their_order_under_new_rules(hand: Hand) -> None:
    await hand.take_in("s1", "s2", "s3", session="s")
    claim = (await hand.claim(1))[0]
    await hand.store.declare(spec(queue=lifo(), max_per_key=1))
    await hand.take_in("s4", session="s")
    await hand.finish(claim)
    assert await hand.serve() == ["s2", "s3", "s4"]


async def test_a_new_drop_policy_evicts_the_oldest_of_the_existing_jobs(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    await hand.start("running")
    await hand.take_in("a", delay=50.0)
    await hand.take_in("b", "c")
    await hand.store.declare(spec(slots=1, backpressure=ring_buffer(3)))
    await hand.take_in("d", "e")
    assert await hand.statuses(*"abcde") == "rejected rejected queued queued queued"


async def test_blocked_submitters_stay_blocked_under_new_settings_without_room(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1, backpressure=bounded(1)))
    await hand.start("running")
    await hand.take_in("a")
    assert entries(await hand.add(order("b"))) == ["blocked_submitter"]
    await hand.store.declare(spec(slots=1, backpressure=bounded(1), queue=lifo()))
    row = await hand.pool()
    assert (row.queued, row.blocked_submitters) == (1, 1)
    await hand.store.declare(spec(slots=1, backpressure=ring_buffer(1)))
    await hand.take_in("c")
    assert await hand.statuses("a", "c") == "rejected queued"
    assert (await hand.get("b")).submitter_blocked


async def test_a_paused_pool_takes_jobs_but_gives_none_out(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.store.set_pool("pool", "me", paused=True)
    await hand.take_in("b")
    assert await hand.claim() == []
    await hand.finish(claim)
    assert (await hand.store.replace([])).claims == ()
    await hand.store.set_pool("pool", "me", paused=False)
    assert ids(await hand.claim()) == ["b"]


async def test_a_pool_can_be_resized_below_its_running_jobs(hand: Hand) -> None:
    await hand.store.declare(spec(slots=3))
    await hand.take_in(*"abcde")
    claims = await hand.claim()
    await hand.store.set_pool("pool", "me", slots=1)
    await hand.finish(claims[0], claims[1])
    assert await hand.claim() == []
    await hand.finish(claims[2])
    assert ids(await hand.claim()) == ["d"]


async def test_a_resize_changes_the_queue_bound_too(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1, backpressure=fail_fast()))
    await hand.take_in("a")
    refused(await hand.submit("b"))
    await hand.store.set_pool("pool", "me", slots=2)
    assert entries(await hand.add(order("b"))) == ["accepted"]


async def test_an_operator_action_on_an_unknown_pool_is_an_error(hand: Hand) -> None:
    await hand.take_in("a", pool="known")
    with pytest.raises(Conflict, match=r"'unknown'.*'known'"):
        await hand.store.set_pool("unknown", "me", paused=True)
    with pytest.raises(Conflict, match="'unknown'"):
        await hand.store.set_pool("unknown", "me", slots=3)
    assert [row.spec.name for row in await hand.pools()] == ["known"]
