"""Time: due jobs, expiry, and which clock counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from poolhand.contract import Change, Filter, Promoted
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import bounded
from poolhand.stores.sql.tables import EXPIRED_AT_ONCE
from tests.contract.support import START, Hand, entries, ids, order, spec


async def test_a_delayed_job_waits_for_its_time(hand: Hand) -> None:
    await hand.take_in("a", delay=10.0)
    assert await hand.status("a") == "scheduled"
    assert (await hand.pool()).scheduled == 1
    assert await hand.claim() == []
    hand.clock.wait(9)
    assert await hand.store.promote() == Promoted(0, 0, 1.0)
    hand.clock.wait(1)
    assert await hand.claim() == []
    assert await hand.store.promote() == Promoted(1, 0, None)
    assert await hand.status("a") == "queued"
    assert (await hand.pool()).scheduled == 0
    (claim,) = await hand.claim()
    assert claim.job.waited == 10.0
    assert claim.job.run_at is None


async def test_a_delay_of_nothing_is_no_delay(hand: Hand) -> None:
    await hand.take_in("a", delay=0.0)
    assert await hand.status("a") == "queued"


async def test_a_job_with_a_date_follows_the_wall_clock(hand: Hand) -> None:
    await hand.take_in("a", run_at=START + timedelta(hours=1))
    assert await hand.status("a") == "scheduled"
    hand.clock.wait(10)
    assert (await hand.store.promote()).next_in == 3590.0
    hand.clock.set_date(3600)
    assert await hand.store.promote() == Promoted(1, 0, None)


async def test_a_wall_clock_set_back_makes_a_dated_job_wait_longer(hand: Hand) -> None:
    await hand.take_in("a", run_at=START + timedelta(seconds=60))
    hand.clock.set_date(-3600)
    hand.clock.wait(100)
    assert await hand.store.promote() == Promoted(0, 0, 3560.0)


async def test_a_date_in_the_past_runs_now(hand: Hand) -> None:
    await hand.take_in("a", run_at=START - timedelta(hours=1))
    assert await hand.status("a") == "queued"


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_changed_wall_clock_moves_no_delay_and_no_expiry(hand: Hand, hours: int) -> None:
    await hand.take_in("a", delay=10.0)
    await hand.take_in("b", expires=20.0)
    hand.clock.set_date(hours * 3600)
    assert await hand.store.promote() == Promoted(0, 0, 10.0)
    hand.clock.wait(10)
    assert await hand.store.promote() == Promoted(1, 0, 10.0)
    hand.clock.wait(10)
    assert await hand.store.promote() == Promoted(0, 1, None)


async def test_due_jobs_are_promoted_in_the_order_of_their_time(hand: Hand) -> None:
    await hand.store.declare(spec())
    await hand.take_in("c", delay=3.0)
    await hand.take_in("a", delay=1.0)
    await hand.take_in("b", run_at=START + timedelta(seconds=2))
    await hand.take_in("d", delay=3.0)
    hand.clock.wait(5)
    assert (await hand.store.promote()).moved == 4
    assert await hand.serve() == ["a", "b", "c", "d"]


async def test_a_due_job_queues_behind_the_jobs_already_queued(
    hand: Hand,
) -> None:
    await hand.store.declare(spec())
    await hand.take_in("later", delay=5.0)
    await hand.take_in("now")
    hand.clock.wait(5)
    await hand.store.promote()
    assert await hand.serve() == ["now", "later"]


async def test_a_promote_is_bounded(hand: Hand) -> None:
    await hand.take_in("a", "b", "c", delay=1.0)
    await hand.take_in("d", "e", "f", expires=1.0)
    await hand.take_in("g", delay=100.0)
    hand.clock.wait(2)
    assert await hand.store.promote(limit=2) == Promoted(2, 2, 0.0)
    assert await hand.store.promote(limit=2) == Promoted(1, 1, 98.0)


@pytest.mark.parametrize("rest", ["claim", "promote"])
@pytest.mark.parametrize("parked", [False, True], ids=["", "with parked"])
async def test_a_claim_expires_a_bounded_number_of_jobs_and_returns_no_expired_one(
    hand: Hand, rest: str, parked: bool
) -> None:
    count = 2 * EXPIRED_AT_ONCE + 50
    await hand.store.declare(spec(backpressure=bounded(count + 1)))
    await hand.add(*[order(f"old-{number}", expires=5.0) for number in range(count)])
    await hand.take_in("a")
    await hand.take_in("b", pool="other")
    if parked:
        assert entries(await hand.add(order("p", expires=9.0))) == ["blocked_submitter"]
    hand.clock.wait(5)
    assert ids(await hand.claim()) == ["b"]
    assert await hand.store.count(Filter(statuses=(Status.EXPIRED,))) == {
        Status.EXPIRED: EXPIRED_AT_ONCE
    }
    if rest == "promote":
        assert (await hand.store.promote()).expired == count - EXPIRED_AT_ONCE
    else:
        assert await hand.claim() == []
    assert ids(await hand.claim()) == ["a", *["p"] * parked]
    assert (await hand.store.count(Filter()))[Status.EXPIRED] == count


async def test_a_job_expires_in_every_waiting_state(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=1))
    await hand.start("running", key="A", session="s")
    await hand.take_in("queued", expires=5.0)
    await hand.take_in("of key", key="A", expires=5.0)
    await hand.take_in("of session", session="s", expires=5.0)
    await hand.take_in("scheduled", delay=9.0, expires=5.0)
    names = ["queued", "of key", "of session", "scheduled"]
    assert await hand.statuses(*names) == "queued blocked blocked scheduled"
    hand.clock.wait(5)
    assert await hand.store.promote() == Promoted(0, 4, None)
    assert await hand.statuses(*names) == "expired expired expired expired"
    job = (await hand.get("queued")).job
    assert (job.finished_at, job.blocked_on) == (hand.clock.date, None)
    assert (await hand.pool()).queued == 0


async def test_an_expired_job_is_never_claimed(hand: Hand) -> None:
    await hand.take_in("a", expires=5.0)
    await hand.take_in("b")
    hand.clock.wait(5)
    assert ids(await hand.claim()) == ["b"]
    assert await hand.status("a") == "expired"


async def test_a_job_that_runs_does_not_expire(hand: Hand) -> None:
    claim = await hand.start("a", expires=5.0)
    hand.clock.wait(50)
    assert await hand.store.promote() == Promoted(0, 0, None)
    await hand.finish(claim)


async def test_an_expiry_holds_for_the_wait_before_a_retry_too(hand: Hand) -> None:
    claim = await hand.start("a", expires=5.0)
    await hand.retry(claim, wait=10.0)
    assert await hand.store.promote() == Promoted(0, 0, 5.0)
    hand.clock.wait(5)
    assert await hand.store.promote() == Promoted(0, 1, None)
    assert await hand.status("a") == "expired"


async def test_a_finished_job_neither_expires_nor_becomes_due(hand: Hand) -> None:
    await hand.take_in("a", expires=5.0)
    await hand.take_in("b", delay=5.0)
    await hand.retry(await hand.start("c", "other"), wait=5.0)
    await hand.store.cancel(["a", "b", "c"], "me")
    assert await hand.store.promote() == Promoted(0, 0, None)
    hand.clock.wait(5)
    assert await hand.store.promote() == Promoted(0, 0, None)


async def test_an_expired_turn_releases_its_session(hand: Hand) -> None:
    await hand.take_in("a", session="s", expires=5.0)
    await hand.take_in("b", session="s")
    hand.clock.wait(5)
    assert ids(await hand.claim()) == ["b"]


async def test_a_retry_waits_for_its_delay(hand: Hand) -> None:
    claim = await hand.start("a")
    job = replace(claim.job, status=Status.SCHEDULED, run_at=START + timedelta(seconds=30))
    await hand.change(Change(job, claim.token, wait=30.0))
    assert await hand.status("a") == "scheduled"
    hand.clock.set_date(3600)
    assert await hand.store.promote() == Promoted(0, 0, 30.0)
    hand.clock.wait(30)
    assert await hand.store.promote() == Promoted(1, 0, None)
    (claim,) = await hand.claim()
    assert (claim.job.attempts, claim.job.waited) == (2, 30.0)


async def test_a_snooze_until_a_date_follows_the_wall_clock(hand: Hand) -> None:
    claim = await hand.start("a")
    job = replace(claim.job, status=Status.SCHEDULED, run_at=START + timedelta(seconds=30))
    await hand.change(Change(job, claim.token))
    assert await hand.status("a") == "scheduled"
    hand.clock.set_date(30)
    assert await hand.store.promote() == Promoted(1, 0, None)


async def test_a_snooze_until_a_past_date_ends_at_once(hand: Hand) -> None:
    claim = await hand.start("a")
    job = replace(claim.job, status=Status.SCHEDULED, run_at=START - timedelta(seconds=30))
    await hand.change(Change(job, claim.token))
    assert await hand.status("a") == "queued"


async def test_a_job_requeued_without_a_delay_waits_for_no_date(hand: Hand) -> None:
    claim = await hand.start("a")
    job = replace(claim.job, status=Status.QUEUED, run_at=START + timedelta(seconds=30))
    await hand.change(Change(job, claim.token))
    assert await hand.status("a") == "queued"


async def test_a_job_requeued_with_a_delay_waits(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.change(Change(replace(claim.job, status=Status.QUEUED), claim.token, wait=5.0))
    assert await hand.status("a") == "scheduled"
    assert (await hand.store.promote()).next_in == 5.0


async def test_the_next_due_time_is_the_earliest_of_all(hand: Hand) -> None:
    assert await hand.store.promote() == Promoted(0, 0, None)
    await hand.take_in("a", delay=50.0)
    assert (await hand.store.promote()).next_in == 50.0
    await hand.take_in("b", expires=40.0)
    assert (await hand.store.promote()).next_in == 40.0
    await hand.take_in("c", run_at=START + timedelta(seconds=30))
    assert (await hand.store.promote()).next_in == 30.0
    await hand.store.cancel(["c"], "me")
    assert (await hand.store.promote()).next_in == 40.0
    await hand.claim()
    assert (await hand.store.promote()).next_in == 50.0
