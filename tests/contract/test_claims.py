"""Claims: one owner for each job, caps that hold, fencing tokens."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from poolhand.contract import Change, Claim, ClaimRequest, Filter, LogLine, Put
from poolhand.rules.job import Status
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from tests.contract.support import START, Another, Hand, ids, owner, spec


async def test_a_claimed_job_runs(hand: Hand) -> None:
    await hand.take_in("a")
    hand.clock.wait(3)
    (claim,) = (await hand.store.replace((), ClaimRequest("hand", (7,)))).claims
    assert claim.slot == 7
    assert claim.call_record == b"brief of a"
    assert claim.job == (await hand.get("a")).job
    assert (claim.job.status, claim.job.attempts) == (Status.RUNNING, 1)
    assert claim.job.started_at == START + timedelta(seconds=3)
    assert claim.job.waited == 3.0


async def test_as_many_jobs_are_claimed_as_slots_are_given(hand: Hand) -> None:
    await hand.take_in(*"abcde")
    claims = (await hand.store.replace((), ClaimRequest("hand", (4, 2, 9)))).claims
    assert [(claim.job.id, claim.slot) for claim in claims] == [("a", 4), ("b", 2), ("c", 9)]
    assert (await hand.store.replace((), ClaimRequest("hand", ()))).claims == ()
    assert ids(await hand.claim()) == ["d", "e"]
    assert await hand.claim() == []


async def test_tokens_grow_over_the_whole_store(hand: Hand, another: Another) -> None:
    await hand.take_in("a", "b")
    await hand.take_in("c", pool="other")
    first = await hand.claim(1)
    await hand.finish(*first)
    (second,) = await hand.claim(1)
    await hand.retry(second)
    rest = (await (await another()).replace((), ClaimRequest("hand", (0, 1)))).claims
    tokens = [claim.token for claim in [*first, second, *rest]]
    assert tokens == sorted(set(tokens))


async def test_no_job_is_claimed_by_two_owners(hand: Hand, another: Another) -> None:
    stores = [hand.store, await another(), await another()]
    names = [f"job-{n:02}" for n in range(60)]
    await hand.take_in(*names)
    for n, store in enumerate(stores):
        await store.enroll(owner(f"owner-{n}"))

    async def work(number: int) -> list[Claim]:
        found: list[Claim] = []
        store = stores[number]
        wanted = ClaimRequest(f"owner-{number}", (0, 1, 2))
        while claims := (await store.replace((), wanted)).claims:
            found += claims
        return found

    claimed = [claim for found in await asyncio.gather(*map(work, range(3))) for claim in found]
    assert sorted(ids(claimed)) == names
    assert len({claim.token for claim in claimed}) == 60


async def test_an_unknown_owner_claims_nothing(hand: Hand) -> None:
    await hand.take_in("a")
    assert await hand.claim(owner="nobody") == []
    assert (await hand.store.replace([], ClaimRequest("nobody", (0,)))).claims == ()
    assert await hand.status("a") == "queued"


async def test_the_cap_of_a_pool_holds_over_all_owners(hand: Hand, another: Another) -> None:
    await hand.store.declare(spec(slots=2))
    await hand.take_in(*"abcd")
    other = await another()
    await other.enroll(owner("other"))
    theirs = (await other.replace((), ClaimRequest("other", (0, 1, 2)))).claims
    claims = [*await hand.claim(1), *theirs]
    assert ids(claims) == ["a", "b"]
    assert (await hand.pool()).running == 2
    assert await hand.claim() == []
    await hand.finish(claims[1])
    assert ids(await hand.claim()) == ["c"]


async def test_the_cap_of_a_key_holds_over_all_owners(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=2))
    await hand.take_in("a1", "a2", "a3", "a4", key="A")
    await hand.take_in("b1", key="B")
    assert await hand.statuses("a1", "a2", "a3", "a4") == "queued queued blocked blocked"
    assert (await hand.get("a3")).job.blocked_on == "key"
    claims = await hand.claim()
    assert ids(claims) == ["a1", "a2", "b1"]
    await hand.finish(claims[2])
    assert await hand.claim() == []
    await hand.finish(claims[0])
    assert ids(await hand.claim()) == ["a3"]


async def test_an_urgent_job_takes_the_permit_of_a_lesser_one_that_waits(hand: Hand) -> None:
    await hand.store.declare(spec(queue=priority(), max_per_key=1))
    await hand.take_in("low", key="A")
    await hand.take_in("high", key="A", priority=5)
    assert await hand.statuses("low", "high") == "blocked queued"
    assert await hand.serve() == ["high", "low"]


async def test_a_key_permit_goes_to_the_first_waiting_job_by_strategy(hand: Hand) -> None:
    await hand.store.declare(spec(queue=lifo(), max_per_key=1))
    claim = await hand.start("a", key="A")
    await hand.take_in("b", "c", key="A")
    await hand.finish(claim)
    assert await hand.serve() == ["c", "b"]


async def test_a_cancelled_job_passes_its_key_permit_on(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=1))
    await hand.take_in("a", "b", key="A")
    await hand.store.cancel(["a"], "me")
    assert await hand.serve() == ["b"]


async def test_turns_of_a_session_run_one_at_a_time_in_submit_order(hand: Hand) -> None:
    await hand.store.declare(spec(queue=priority()))
    for n in range(3):
        await hand.take_in(f"s{n}", session="s", priority=n)
    await hand.take_in("t0", session="t")
    assert await hand.statuses("s0", "s1", "s2", "t0") == "queued blocked blocked queued"
    assert (await hand.get("s1")).job.blocked_on == "session"
    claims = await hand.claim()
    assert ids(claims) == ["s0", "t0"]
    await hand.finish(*claims)
    assert await hand.serve() == ["s1", "s2"]


async def test_a_turn_keeps_its_session_while_it_waits_for_a_retry(hand: Hand) -> None:
    claim = await hand.start("a", session="s")
    await hand.take_in("b", session="s")
    await hand.retry(claim, wait=10.0)
    assert await hand.claim() == []
    hand.clock.wait(10)
    await hand.store.promote()
    assert await hand.serve() == ["a", "b"]


async def test_sessions_are_distinct_per_tenant_and_pool(hand: Hand) -> None:
    await hand.take_in("a", session="s")
    await hand.take_in("b", session="s", tenant="acme")
    await hand.take_in("c", session="s", pool="other")
    assert len(await hand.claim()) == 3


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
async def test_a_finished_turn_releases_its_session(hand: Hand, status: Status) -> None:
    claim = await hand.start("a", session="s")
    await hand.take_in("b", session="s")
    await hand.finish(claim, status=status)
    assert await hand.status("b") == "queued"


async def test_a_scheduled_turn_does_not_hold_its_session(hand: Hand) -> None:
    await hand.take_in("later", session="s", delay=10.0)
    claim = await hand.start("now", session="s")
    hand.clock.wait(10)
    await hand.store.promote()
    assert await hand.status("later") == "blocked"
    await hand.finish(claim)
    assert await hand.status("later") == "queued"


async def test_pools_take_turns(hand: Hand) -> None:
    for pool, count in [("a", 3), ("b", 1), ("c", 2)]:
        await hand.take_in(*[f"{pool}{n}" for n in range(count)], pool=pool)
    assert ids(await hand.claim(4)) == ["a0", "b0", "c0", "a1"]
    assert ids(await hand.claim(1)) == ["c1"]
    assert ids(await hand.claim()) == ["a2"]


async def test_a_claim_begins_behind_the_pool_that_was_served_last(hand: Hand) -> None:
    for pool in "abc":
        await hand.take_in(*[f"{pool}{n}" for n in range(4)], pool=pool)
    got = []
    for _ in range(6):
        got += ids(await hand.claim(1))
    assert got == ["a0", "b0", "c0", "a1", "b1", "c1"]


async def test_only_the_requested_pools_are_served(hand: Hand) -> None:
    for pool in "abc":
        await hand.take_in(*[f"{pool}{n}" for n in range(3)], pool=pool)
    assert ids(await hand.claim(3, ("c", "a", "none"))) == ["a0", "c0", "a1"]
    assert ids(await hand.claim(1, ("b",))) == ["b0"]
    assert ids(await hand.claim(1, ("a", "c"))) == ["c1"]
    assert ids(await hand.claim(1)) == ["a2"]


async def test_pools_without_a_claimable_job_lose_no_turn_to_wait_for(hand: Hand) -> None:
    await hand.store.declare(spec("capped", slots=1))
    await hand.take_in("x0", "x1", pool="capped")
    await hand.take_in("y0", "y1", pool="open")
    await hand.take_in("z0", pool="paused")
    await hand.store.set_pool("paused", "me", paused=True)
    assert ids(await hand.claim()) == ["x0", "y0", "y1"]


async def test_a_late_result_is_refused(hand: Hand) -> None:
    old = await hand.start("a")
    await hand.retry(old)
    (new,) = await hand.claim(1)
    assert await hand.change(hand.ended(old)) == (False,)
    assert await hand.change(hand.ended(new)) == (True,)
    assert await hand.change(hand.ended(new)) == (False,)


async def test_a_token_is_valid_only_for_its_own_job(hand: Hand) -> None:
    one, two = await hand.start("a"), await hand.start("b")
    wrong = Change(hand.ended(one).job, two.token)
    assert await hand.change(wrong, hand.ended(two)) == (False, True)
    assert await hand.status("a") == "running"
    assert await hand.change(Change(hand.ended(one).job, 10_000)) == (False,)


async def test_a_refused_change_writes_nothing(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.finish(claim)
    before = await hand.audited()
    change = hand.ended(claim, documents=(Put("d", b"v"),), log=(LogLine("s", "k", b"body"),))
    assert await hand.change(change) == (False,)
    assert await hand.store.get_document("d") is None
    assert await hand.store.read("s") == []
    assert await hand.audited() == before


async def test_each_change_is_applied_independently_and_before_the_claim(hand: Hand) -> None:
    await hand.store.declare(spec(slots=2))
    one, two = await hand.start("a"), await hand.start("b")
    await hand.take_in("c", "d", "e")
    bad = replace(hand.ended(one), token=0)
    answer = await hand.store.replace([bad, hand.ended(two)], ClaimRequest("hand", (5, 6)))
    assert answer.made == (False, True)
    assert [(claim.job.id, claim.slot) for claim in answer.claims] == [("c", 5)]


async def test_an_empty_replace_only_claims(hand: Hand) -> None:
    await hand.take_in("a")
    answer = await hand.store.replace([], ClaimRequest("hand", (0,)))
    assert answer.made == ()
    assert ids(answer.claims) == ["a"]
    assert (await hand.store.replace([])).claims == ()


async def test_the_outcome_of_a_job_is_stored_as_given(hand: Hand) -> None:
    claim = await hand.start("a")
    job = replace(
        hand.ended(claim).job, result=b"\x00bytes", ran=2.5, marks=("soft_timeout",), crashes=1
    )
    assert await hand.change(Change(job, claim.token)) == (True,)
    stored = await hand.get("a")
    assert stored.job == job
    assert not stored.dead
    assert await hand.call_record("a") == b"brief of a"


async def test_a_job_that_is_requeued_at_once_counts_its_attempts(hand: Hand) -> None:
    claim = await hand.start("a")
    hand.clock.wait(5)
    job = replace(claim.job, status=Status.QUEUED)
    assert await hand.change(Change(job, claim.token)) == (True,)
    hand.clock.wait(2)
    (again,) = await hand.claim(1)
    assert (again.job.attempts, again.job.waited) == (2, 2.0)
    assert again.token > claim.token


@pytest.mark.parametrize(
    ("queue", "order", "order_one_per_key"),
    [
        (fifo(), "abcd", "acbd"),
        (lifo(), "dcba", "cadb"),
        (priority(), "abcd", "acbd"),
        (priority(aging=10.0), "abcd", "abcd"),
        (fair_round_robin(), "acbd", "cabd"),
    ],
    ids=str,
)
async def test_a_job_that_is_handed_back_returns_to_its_place(
    hand: Hand, queue: Strategy, order: str, order_one_per_key: str
) -> None:
    for pool, cap, expected in [("free", None, order), ("capped", 1, order_one_per_key)]:
        await hand.store.declare(spec(pool, queue=queue, slots=1, max_per_key=cap))
        first = await hand.start("a" + pool, key="A", pool=pool)
        for id, key in [("b", "A"), ("c", "B"), ("d", "A")]:
            hand.clock.wait(1)
            await hand.take_in(id + pool, key=key, pool=pool)
        await hand.hand_back(first)
        stored = await hand.get("a" + pool)
        assert (stored.job.status, stored.job.attempts) == (Status.QUEUED, 0)
        assert (await hand.pool(pool)).queued == (4 if cap is None else 2)
        assert [id[0] for id in await hand.serve((pool,))] == list(expected)


async def test_jobs_that_are_handed_back_run_before_jobs_that_came_later(hand: Hand) -> None:
    await hand.store.declare(spec(queue=priority(), slots=3))
    claims = [await hand.start(id) for id in "abc"]
    await hand.take_in("d")
    await hand.take_in("e", priority=1)
    await hand.hand_back(*reversed(claims))
    assert await hand.serve() == ["e", "a", "b", "c", "d"]


async def test_a_retry_waits_behind_the_jobs_that_came_before_it(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    first = await hand.start("a")
    await hand.take_in("b")
    assert await hand.retry(first)
    assert await hand.serve() == ["b", "a"]


async def test_a_job_handed_back_beyond_a_lowered_cap_waits_for_its_key(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=2))
    one, other = await hand.start("a", key="A"), await hand.start("b", key="A")
    await hand.store.declare(spec(max_per_key=1))
    await hand.hand_back(one)
    assert (await hand.get("a")).job.blocked_on == "key"
    assert await hand.claim() == []
    await hand.finish(other)
    assert await hand.serve() == ["a"]


async def test_a_stuck_job_is_finished_but_keeps_its_slot(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1, max_per_key=1))
    claim = await hand.start("a", key="A", session="s")
    await hand.take_in("b", key="A", session="s")
    assert await hand.change(hand.ended(claim, Status.FAILED, stuck=True)) == (True,)
    assert await hand.status("a") == "failed"
    assert (await hand.get("b")).job.blocked_on == "key"
    assert (await hand.pool()).running == 1
    assert await hand.claim() == []
    assert [one.held for one in await hand.store.leases() if one.owner.id == "hand"] == [1]
    assert (await hand.store.extend("hand", [claim.token])).lost == ()
    await hand.store.replace(released=[claim.token, 10_000])
    assert [one.held for one in await hand.store.leases() if one.owner.id == "hand"] == [0]
    assert ids(await hand.claim()) == ["b"]


async def test_a_job_rerun_beside_its_stuck_code_is_one_job(hand: Hand) -> None:
    await hand.store.declare(spec(slots=2))
    stuck = await hand.start("a")
    assert await hand.retry(stuck, stuck=True)
    assert (await hand.pool()).running == 1
    (again,) = await hand.claim()
    assert (await hand.pool()).running == 2
    for statuses in ((), (Status.RUNNING,)):
        assert await hand.found(Filter(statuses=statuses)) == ["a"]
    assert await hand.count() == {Status.RUNNING: 1}
    assert (await hand.store.extend("hand", [stuck.token, again.token])).lost == ()
    await hand.finish(again)
    assert (await hand.pool()).running == 1
    await hand.store.replace(released=[stuck.token])
    assert (await hand.pool()).running == 0


async def test_a_slot_is_released_once(hand: Hand) -> None:
    await hand.store.declare(spec(slots=2))
    stuck, other = await hand.start("a"), await hand.start("b")
    await hand.change(hand.ended(stuck, stuck=True))
    await hand.store.replace(released=[stuck.token, stuck.token])
    await hand.store.replace(released=[stuck.token, other.token])
    assert (await hand.pool()).running == 1
    await hand.finish(other)


async def test_a_stuck_job_takes_no_second_result(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.change(hand.ended(claim, Status.FAILED, stuck=True))
    assert await hand.change(hand.ended(claim)) == (False,)
    assert await hand.status("a") == "failed"


async def test_the_cap_of_a_key_does_not_hold_for_jobs_without_a_key(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=1))
    await hand.take_in("a", "b", "c")
    await hand.take_in("k1", "k2", key="K")
    assert await hand.statuses("a", "b", "c", "k1", "k2") == "queued queued queued queued blocked"
    claims = await hand.claim()
    assert sorted(ids(claims)) == ["a", "b", "c", "k1"]
    for claim in claims:
        await hand.finish(claim)
    assert ids(await hand.claim()) == ["k2"]


async def test_a_cap_that_is_declared_later_lets_jobs_without_a_key_be(hand: Hand) -> None:
    await hand.store.declare(spec())
    claim = await hand.start("a")
    await hand.take_in("b", "c")
    await hand.store.declare(spec(max_per_key=1))
    assert await hand.statuses("b", "c") == "queued queued"
    await hand.finish(claim)
    assert await hand.serve() == ["b", "c"]
