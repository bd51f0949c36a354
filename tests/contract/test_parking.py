"""Parked submitters: a submitter without a place waits in order, under its owner's lease."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest_asyncio

from poolhand.contract import Added, JobBatch
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import bounded
from tests.contract.support import (
    START,
    Another,
    Hand,
    entries,
    order,
    owner,
    refused,
    spec,
    withdraw,
)


@pytest_asyncio.fixture(loop_scope="session")
async def full(hand: Hand) -> Hand:
    """A pool of one slot and one place, both taken."""
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.start("running")
    await hand.take_in("waiting")
    return hand


async def park(hand: Hand, *names: str, **options: Any) -> None:
    for name in names:
        assert entries(await hand.add(order(name, **options))) == ["blocked_submitter"]


async def entry_of(hand: Hand, id: str, **options: Any) -> tuple[str, str]:
    added = await hand.submit(id, **options)
    assert isinstance(added, Added)
    return added.job.id, added.entry.value


async def test_the_job_of_a_blocked_submitter_has_no_place_and_no_record(full: Hand) -> None:
    before = await full.audited()
    await park(full, "a")
    stored = await full.get("a")
    assert stored.submitter_blocked
    assert stored.job.status is Status.QUEUED
    assert await full.call_record("a") == b"brief of a"
    row = await full.pool()
    assert (row.running, row.queued, row.blocked_submitters) == (1, 1, 1)
    assert await full.count() == {Status.RUNNING: 1, Status.QUEUED: 1}
    assert len(await full.found()) == 2
    assert await full.audited() == before


async def test_a_submit_without_an_owner_is_refused_instead_of_blocked(full: Hand) -> None:
    assert refused(await full.add(order("a"), owner=None)).reason == "full"
    assert refused(await full.add(order("a"), owner="nobody")).reason == "full"
    assert await full.store.get(["a"]) == [None]
    assert (await full.pool()).blocked_submitters == 0


async def test_a_batch_can_be_blocked_in_part(full: Hand) -> None:
    answer = await full.add(order("a"), order("b", "other"), order("c"))
    assert entries(answer) == ["blocked_submitter", "accepted", "blocked_submitter"]


async def test_blocked_submitters_are_admitted_oldest_first_one_per_free_place(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    claim = await hand.start("a")
    await hand.take_in("b")
    await park(hand, "c", "d", "e")
    await hand.finish(claim)
    assert [(await hand.get(name)).submitter_blocked for name in "cde"] == [True, True, True]
    # A place becomes free when its job starts.
    (claim,) = await hand.claim(1)
    assert [(await hand.get(name)).submitter_blocked for name in "cde"] == [False, True, True]
    assert await hand.status("c") == "queued"
    await hand.finish(claim)
    assert await hand.serve() == ["c", "d", "e"]
    submits = [line.split()[1] for line in await hand.audited("submit")]
    assert submits == list("abcde")


async def test_a_new_submit_queues_behind_blocked_submitters(full: Hand) -> None:
    await park(full, "a", "b")
    assert await full.store.cancel(["waiting"], "me")
    assert [(await full.get(name)).submitter_blocked for name in "ab"] == [False, True]
    assert entries(await full.add(order("c"))) == ["blocked_submitter"]


async def test_a_withdrawn_submit_leaves_no_trace_and_frees_its_turn(full: Hand) -> None:
    await park(full, "a", "b")
    assert await full.withdraw("a") == []
    assert await full.store.get(["a"]) == [None]
    await full.store.cancel(["waiting"], "me")
    assert not (await full.get("b")).submitter_blocked
    assert "submit a" not in await full.audited()


async def test_withdrawing_too_late_returns_the_id_of_the_accepted_job(full: Hand) -> None:
    await park(full, "a", "b")
    await full.store.cancel(["waiting"], "me")
    assert await full.withdraw("b", "none", "a") == ["a"]
    assert await full.status("a") == "queued"
    assert await full.store.get(["b"]) == [None]


async def test_cancelling_the_job_of_a_blocked_submitter_withdraws_it(full: Hand) -> None:
    await park(full, "a", "b")
    assert await full.store.cancel(["a"], "me") == [None]
    assert await full.store.get(["a"]) == [None]
    assert (await full.pool()).blocked_submitters == 1
    assert await full.audited("cancel") == []


async def test_equal_keys_join_the_job_of_a_blocked_submitter(full: Hand) -> None:
    await park(full, "a", idempotency_key="k")
    assert await entry_of(full, "b", idempotency_key="k") == ("a", "blocked_submitter")
    await full.store.cancel(["waiting"], "me")
    assert await entry_of(full, "c", idempotency_key="k") == ("a", "joined")


async def test_a_withdrawn_submit_frees_its_key(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.finish(await hand.start("old", idempotency_key="k"), status=Status.FAILED)
    await hand.start("running")
    await hand.take_in("waiting")
    await park(hand, "a", idempotency_key="k", rerun_failed=True)
    await hand.withdraw("a")
    assert await entry_of(hand, "b", idempotency_key="k") == ("old", "joined")


async def test_expiring_an_owner_withdraws_its_blocked_submitters(full: Hand) -> None:
    await full.store.enroll(owner("other"))
    assert entries(await full.add(order("a"), owner="other")) == ["blocked_submitter"]
    await park(full, "b")
    assert [lease.held for lease in await full.store.leases()] == [2, 1]
    assert await full.store.expire_owner("other", 0) == []
    assert await full.store.get(["a"]) == [None]
    await full.store.cancel(["waiting"], "me")
    assert await full.status("b") == "queued"
    assert [lease.owner.id for lease in await full.store.leases()] == ["hand"]


async def test_all_blocked_submitters_of_an_expired_owner_go_before_any_is_admitted(
    hand: Hand,
) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.store.enroll(owner("other"))
    await hand.take_in("later", delay=100.0)
    # "a" cannot start at once, and no later submitter may overtake it.
    for name, delay, who in [("a", 50.0, "other"), ("b", None, "other"), ("c", None, "hand")]:
        assert entries(await hand.add(order(name, delay=delay), owner=who)) == ["blocked_submitter"]
    await hand.store.expire_owner("other", 0)
    assert await hand.store.get(["a", "b"]) == [None, None]
    assert [(await hand.get("c")).submitter_blocked, await hand.status("c")] == [False, "queued"]


async def test_a_place_freed_through_one_store_admits_a_blocked_submitter_of_another(
    full: Hand, another: Another
) -> None:
    other = await another()
    await other.enroll(owner("other"))
    (answer,) = await other.add([JobBatch((order("a"),), "other")])
    assert entries(answer) == ["blocked_submitter"]
    await full.store.cancel(["waiting"], "me")
    (stored,) = await other.get(["a"])
    assert stored is not None
    assert not stored.submitter_blocked
    assert await withdraw(other, ["a"]) == ["a"]


async def test_more_slots_admit_blocked_submitters(full: Hand) -> None:
    await park(full, "a", "b")
    await full.store.set_pool("pool", "me", slots=2)
    assert (await full.pool()).blocked_submitters == 2  # "waiting" has not left its place yet
    await full.claim(1)
    assert (await full.pool()).blocked_submitters == 1
    await full.store.declare(spec(backpressure=bounded(1), slots=3))
    await full.store.set_pool("pool", "me", declared=True)
    await full.claim(1)
    assert (await full.pool()).blocked_submitters == 0


async def test_a_longer_queue_admits_blocked_submitters(full: Hand) -> None:
    await park(full, "a", "b", "c")
    await full.store.declare(spec(backpressure=bounded(3), slots=1))
    assert [(await full.get(name)).submitter_blocked for name in "abc"] == [False, False, True]


async def test_resuming_a_pool_admits_blocked_submitters(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.take_in("later", delay=100.0)
    await hand.store.set_pool("pool", "me", paused=True)
    await park(hand, "a", "b")
    await hand.store.set_pool("pool", "me", paused=False)
    assert [(await hand.get(name)).submitter_blocked for name in "ab"] == [False, True]


async def test_a_blocked_submit_that_can_start_at_once_needs_no_place_in_the_queue(
    hand: Hand,
) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    claim = await hand.start("a")
    await hand.take_in("later", delay=100.0)
    await park(hand, "b")
    await hand.finish(claim)
    assert await hand.status("b") == "queued"
    assert not (await hand.get("b")).submitter_blocked


async def test_a_blocked_submit_is_admitted_again_when_its_delay_has_passed(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.take_in("later", delay=100.0)
    await park(hand, "b", delay=5.0)
    hand.clock.wait(5)
    await hand.store.promote()
    assert not (await hand.get("b")).submitter_blocked
    assert await hand.status("b") == "queued"


async def test_a_refusal_leaves_blocked_submitters_unchanged(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.take_in("later", delay=100.0)
    await park(hand, "b", delay=5.0)
    hand.clock.wait(5)
    assert refused(await hand.add(order("c"), owner=None)).waiting == 1
    assert (await hand.get("b")).submitter_blocked
    assert (await hand.pool()).blocked_submitters == 1
    await hand.store.promote()
    assert await hand.serve() == ["b"]


async def test_a_blocked_submit_with_a_date_follows_the_wall_clock(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.take_in("later", delay=100.0)
    await park(hand, "b", run_at=START + timedelta(seconds=60))
    await park(hand, "c", run_at=START + timedelta(seconds=7200))
    hand.clock.set_date(60)
    await hand.store.promote()
    assert [(await hand.get(name)).submitter_blocked for name in "bc"] == [False, True]
    assert await hand.status("b") == "queued"
    hand.clock.set_date(-60)
    await hand.store.cancel(["later", "b"], "me")
    assert await hand.status("c") == "scheduled"
    assert (await hand.store.promote()).next_in == 7200.0


async def test_a_blocked_submit_keeps_its_timestamps(full: Hand) -> None:
    await park(full, "a", delay=5.0, expires=50.0)
    submitted_at = (await full.get("a")).job.submitted_at
    full.clock.wait(3)
    await full.store.cancel(["waiting"], "me")
    assert await full.status("a") == "scheduled"
    assert (await full.get("a")).job.submitted_at == submitted_at
    full.clock.wait(2)
    assert (await full.store.promote()).moved == 1
    full.clock.wait(45)
    assert (await full.store.promote()).expired == 1


async def test_the_time_as_a_blocked_submitter_counts_as_waiting(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    claim = await hand.start("running")
    await hand.take_in("waiting")
    await park(hand, "a")
    hand.clock.wait(7)
    await hand.store.cancel(["waiting"], "me")
    hand.clock.wait(2)
    await hand.finish(claim)
    (claim,) = await hand.claim(1)
    assert (claim.job.id, claim.job.waited) == ("a", 9.0)
