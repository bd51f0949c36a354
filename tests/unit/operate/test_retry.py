"""Retrying dead letters: one or many, as new jobs; failures to retry are reported."""

from __future__ import annotations

import asyncio

import pytest

from poolhand.contract import Filter
from poolhand.operate import bulk
from poolhand.operate.bulk import Progress
from poolhand.rules.audit import RERUN
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Bounded, FailFast, OnFull
from tests.unit.operate.world import World


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use batches of ten here."""
    monkeypatch.setattr(bulk, "AT_ONCE", 10)


async def test_a_dead_job_is_rerun_as_a_new_job_with_the_same_call_record(world: World) -> None:
    old = await world.dead(
        "fetch", key="k", session="s", tenant="t", user="u", priority=4, idempotency_key="i"
    )
    (answer,) = await world.operator.retry([old], "anna")
    assert answer.done
    assert answer.id == old
    assert answer.new_id not in (None, old)
    (claim,) = await world.claim()
    job = claim.job
    assert (job.id, claim.call_record) == (answer.new_id, f"brief of {old}".encode())
    assert (job.name, job.key, job.session, job.tenant) == ("fetch", "k", "s", "t")
    assert (job.user, job.priority, job.idempotency_key) == ("u", 4, "i")
    assert (job.submitted_by, job.attempts, job.error) == ("anna", 1, None)


async def test_a_rerun_job_is_no_longer_a_dead_letter_and_the_audit_names_the_actor(
    world: World,
) -> None:
    old = await world.dead()
    (answer,) = await world.operator.retry([old], "anna")
    assert (await world.operator.jobs(Filter(dead=True))).jobs == ()
    assert (await world.get(old)).job.status is Status.FAILED
    (line,) = await world.operator.audit(0, kind=RERUN)
    assert (line.job, line.by, line.text) == (old, "anna", f"as {answer.new_id}")


async def test_retrying_a_job_that_is_not_a_dead_letter_returns_the_reason(world: World) -> None:
    twice = await world.dead()
    await world.operator.retry([twice], "anna")
    cancelled = await world.add(pool="other")
    await world.operator.cancel([cancelled], "anna")
    waiting = await world.add(pool="other")
    answers = await world.operator.retry([twice, cancelled, waiting, "nothing"], "anna")
    assert [(one.done, one.reason) for one in answers] == [
        (False, "not_dead"),
        (False, "not_dead"),
        (False, "not_dead"),
        (False, "not_found"),
    ]
    assert [one.text for one in answers] == [
        "it was already retried; retry the job that replaced it",
        "it is cancelled; only a failed job can be retried",
        "it has not ended yet: queued",
        "there is no such job",
    ]


async def test_one_id_named_twice_runs_once(world: World) -> None:
    old = await world.dead()
    first, second = await world.operator.retry([old, old], "anna")
    assert first.done
    assert (second.done, second.reason) == (False, "not_dead")
    assert second.text == "it was already retried by someone else"
    assert await world.operator.count(Filter(pool="chat")) == {Status.FAILED: 1, Status.QUEUED: 1}


async def test_a_retry_gets_the_time_to_wait_that_the_old_one_had(world: World) -> None:
    old = await world.dead(expires=60.0)
    (answer,) = await world.operator.retry([old], "anna")
    assert answer.new_id is not None
    new = (await world.get(answer.new_id)).job
    assert new.expires_at is not None
    assert (new.expires_at - new.submitted_at).total_seconds() == pytest.approx(60.0)


async def test_a_full_pool_is_reported_and_the_dead_letter_stays(world: World) -> None:
    await world.declare("small", slots=1, backpressure=Bounded(1, OnFull.FAIL_SUBMITTER))
    old = await world.dead(pool="small")
    await world.add(pool="small")
    await world.claim()
    await world.add(pool="small")
    (answer,) = await world.operator.retry([old], "anna")
    assert (answer.done, answer.reason) == (False, "full")
    assert answer.text == (
        "pool 'small' is full (1 running, 1 waiting, bounded(1, fail_submitter)); "
        "try again later or resize the pool"
    )
    assert (await world.get(old)).dead


async def test_a_pool_without_a_free_slot_is_reported(world: World) -> None:
    await world.declare("small", slots=1, backpressure=FailFast())
    old = await world.dead(pool="small")
    await world.add(pool="small")
    (answer,) = await world.operator.retry([old], "anna")
    assert (answer.done, answer.reason) == (False, "no_slot")
    assert (await world.get(old)).dead


async def test_a_retry_that_failed_is_a_dead_letter_of_its_own(world: World) -> None:
    old = await world.dead(idempotency_key="i")
    (first,) = await world.operator.retry([old], "anna")
    (claim,) = await world.claim()
    await world.end(claim, Status.FAILED)
    assert first.new_id is not None
    (second,) = await world.operator.retry([first.new_id], "anna")
    assert (second.done, second.reason) == (True, "retried")
    assert await world.operator.count(Filter(dead=True)) == {}


async def test_a_retry_joins_the_newer_job_of_its_key(world: World) -> None:
    old = await world.dead(idempotency_key="i")
    other = await world.add(idempotency_key="i", rerun_failed=True)
    assert other != old
    (answer,) = await world.operator.retry([old], "anna")
    assert (answer.done, answer.reason, answer.new_id) == (True, "joined", other)
    assert answer.text == f"job {other} replaces it: it already has the idempotency key 'i'"
    assert len(await world.claim(5)) == 1
    assert await world.operator.count(Filter(dead=True)) == {}


async def test_all_dead_letters_of_a_filter_are_rerun(world: World) -> None:
    wanted = [await world.dead("fetch", tenant="t") for _ in range(3)]
    left = [await world.dead("fetch", tenant="u"), await world.dead("other", tenant="t")]
    summary = await world.operator.retry_all(Filter(name="fetch", tenant="t"), "anna")
    assert (summary.done, summary.not_done, summary.answers) == (3, 0, ())
    dead = (await world.operator.jobs(Filter(dead=True))).jobs
    assert sorted(job.id for job in dead) == left
    lines = await world.operator.audit(0, kind=RERUN)
    assert sorted(str(line.job) for line in lines) == wanted


async def test_a_bulk_retry_keeps_the_order_of_the_dead_letters(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LARGEST_PAGE", 4)
    dead = [await world.dead() for _ in range(25)]
    await world.operator.retry_all(Filter(), "anna")
    lines = await world.operator.audit(0, kind=RERUN)
    assert [str(line.job) for line in lines] == dead


async def test_a_bulk_retry_reports_its_progress(world: World) -> None:
    for _ in range(25):
        await world.dead()
    told: list[Progress] = []
    summary = await world.operator.retry_all(Filter(), "anna", told.append)
    assert summary.done == 25
    assert told == [Progress(10, 0, 25), Progress(20, 0, 25), Progress(25, 0, 25)]


async def test_a_retry_of_no_jobs_succeeds(world: World) -> None:
    told: list[Progress] = []
    summary = await world.operator.retry_all(Filter(), "anna", told.append)
    assert (summary.done, summary.not_done, told) == (0, 0, [])


async def test_jobs_that_die_during_a_bulk_retry_are_not_rerun(world: World) -> None:
    for _ in range(15):
        await world.dead()
    later: list[asyncio.Task[str]] = []

    def let_one_die(_: Progress) -> None:
        later.append(asyncio.create_task(world.dead(pool="other")))

    summary = await world.operator.retry_all(Filter(), "anna", let_one_die)
    assert summary.done == 15
    died = await asyncio.gather(*later)
    assert [job.id for job in (await world.operator.jobs(Filter(dead=True))).jobs] == died[::-1]


async def test_a_full_pool_accepts_what_fits_and_the_rest_is_reported(world: World) -> None:
    await world.declare("small", slots=1, backpressure=Bounded(12, OnFull.FAIL_SUBMITTER))
    for _ in range(25):
        await world.dead(pool="small")
    other = await world.dead(pool="wide")
    summary = await world.operator.retry_all(Filter(), "anna")
    assert (summary.done, summary.not_done) == (13, 13)
    assert {answer.reason for answer in summary.answers} == {"full"}
    assert len({answer.id for answer in summary.answers}) == 13
    assert not (await world.get(other)).dead
    assert await world.operator.count(Filter(dead=True)) == {Status.FAILED: 13}


async def test_the_number_of_results_kept_of_a_bulk_retry_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST_ANSWERS", 20)
    await world.declare("small", slots=1, backpressure=FailFast())
    for _ in range(25):
        await world.dead(pool="small")
    await world.add(pool="small")
    summary = await world.operator.retry_all(Filter(), "anna")
    assert (summary.done, summary.not_done) == (0, 25)
    assert len(summary.answers) == 20


async def test_many_ids_are_taken_in_parts(world: World) -> None:
    ids = [await world.dead() for _ in range(23)]
    answers = await world.operator.retry(ids, "anna")
    assert [answer.id for answer in answers] == ids
    assert all(answer.done for answer in answers)
    assert len({answer.new_id for answer in answers}) == 23
