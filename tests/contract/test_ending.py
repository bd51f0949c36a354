"""Ending jobs: cancellation, and dead letters."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from poolhand.contract import Added, Change, Filter
from poolhand.rules import lifecycle
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import OnFull, bounded, fail_fast
from tests.contract.support import Another, Hand, entries, ids, order, refused, spec


async def test_a_waiting_job_is_cancelled_at_once_wherever_it_waits(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=1))
    await hand.start("running", key="A", session="s")
    await hand.take_in("queued")
    await hand.take_in("of key", key="A")
    await hand.take_in("of session", session="s")
    await hand.take_in("scheduled", delay=9.0)
    names = ["queued", "of key", "of session", "scheduled"]
    found = await hand.store.cancel(names, "me")
    assert [one and one.job.status for one in found] == [Status.CANCELLED] * 4
    job = (await hand.get("of key")).job
    assert (job.finished_at, job.blocked_on) == (hand.clock.date, None)
    row = await hand.pool()
    assert (row.queued, row.blocked, row.scheduled) == (0, 0, 0)
    hand.clock.wait(10)
    await hand.store.promote()
    assert await hand.claim() == []


async def test_cancelling_a_running_job_sets_cancel_requested(hand: Hand) -> None:
    claim = await hand.start("a")
    (stored,) = await hand.store.cancel(["a"], "me")
    assert stored == await hand.get("a")
    assert stored is not None
    assert stored.cancel_requested
    assert stored.job.status is Status.RUNNING
    await hand.finish(claim, status=Status.CANCELLED)
    assert await hand.status("a") == "cancelled"


async def test_a_finished_job_is_not_cancelled(hand: Hand) -> None:
    await hand.finish(await hand.start("a"))
    before, records = await hand.get("a"), await hand.audited()
    assert await hand.store.cancel(["a", "none"], "me") == [before, None]
    assert await hand.get("a") == before
    assert await hand.audited() == records


async def test_a_cancel_requested_job_is_not_retried(hand: Hand) -> None:
    claim = await hand.start("a", session="s")
    await hand.take_in("b", session="s")
    await hand.store.cancel(["a"], "me")
    assert await hand.retry(claim, wait=5.0)
    job = (await hand.get("a")).job
    assert (job.status, job.finished_at) == (Status.CANCELLED, hand.clock.date)
    assert ids(await hand.claim()) == ["b"]


async def test_a_cancel_requested_job_may_still_complete(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.store.cancel(["a"], "me")
    await hand.finish(claim)
    assert await hand.status("a") == "completed"


async def test_a_cancelled_turn_releases_its_session(hand: Hand) -> None:
    await hand.take_in("a", "b", "c", session="s")
    await hand.store.cancel(["b", "a"], "me")
    assert ids(await hand.claim()) == ["c"]


async def test_a_failed_job_is_dead_until_it_is_run_again(hand: Hand) -> None:
    await hand.finish(await hand.start("a"), status=Status.FAILED)
    assert (await hand.get("a")).dead
    assert await hand.found(Filter(dead=True)) == ["a"]
    await hand.take_in("b", revives="a")
    assert not (await hand.get("a")).dead
    assert await hand.status("a") == "failed"
    assert await hand.found(Filter(dead=True)) == []
    assert await hand.found(Filter(dead=False)) == ["b", "a"]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
async def test_only_dead_jobs_are_rerun(hand: Hand, status: Status) -> None:
    await hand.finish(await hand.start("a"), status=status)
    assert refused(await hand.submit("b", revives="a")).reason == "not_dead"
    assert refused(await hand.submit("b", revives="none")).reason == "not_dead"
    assert await hand.store.get(["b"]) == [None]


async def test_a_dead_job_is_rerun_once(hand: Hand) -> None:
    await hand.finish(await hand.start("a"), status=Status.FAILED)
    refused(await hand.add(order("b", revives="a"), order("c", revives="a")))
    await hand.take_in("b", revives="a")
    assert refused(await hand.submit("c", revives="a")).reason == "not_dead"


async def test_a_refused_rerun_leaves_the_job_dead(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=fail_fast(), slots=1))
    await hand.finish(await hand.start("a"), status=Status.FAILED)
    await hand.start("running")
    assert refused(await hand.submit("b", revives="a")).reason == "no_slot"
    assert (await hand.get("a")).dead


async def test_a_dropped_rerun_leaves_the_job_dead(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.DROP_NEWEST), slots=1))
    await hand.finish(await hand.start("a"), status=Status.FAILED)
    await hand.start("running")
    await hand.take_in("waiting")
    assert entries(await hand.add(order("b", revives="a"))) == ["rejected"]
    assert (await hand.get("a")).dead
    assert await hand.audited("rerun") == []


async def test_a_rerun_into_a_full_pool_is_refused_and_blocks_no_submitter(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.finish(await hand.start("a"), status=Status.FAILED)
    await hand.start("running")
    await hand.take_in("waiting")
    assert refused(await hand.add(order("b", revives="a"))).reason == "full"
    assert refused(await hand.add(order("c", "other"), order("b", revives="a"))).reason == "full"
    assert (await hand.get("a")).dead
    assert (await hand.pool()).blocked_submitters == 0


async def test_a_rerun_joins_the_newer_job_of_its_idempotency_key(hand: Hand) -> None:
    await hand.finish(await hand.start("a", idempotency_key="k"), status=Status.FAILED)
    await hand.take_in("b", idempotency_key="k", rerun_failed=True)
    revival = order("c", idempotency_key="k", revives="a", rerun_failed=True)
    assert entries(await hand.add(revival)) == ["joined"]
    assert not (await hand.get("a")).dead
    (line,) = await hand.store.read(STREAM, kind="pool_rerun")
    assert msgspec.json.decode(line.body)["detail"] == "b"


async def test_a_rerun_keeps_the_idempotency_key(hand: Hand) -> None:
    await hand.finish(await hand.start("a", idempotency_key="k"), status=Status.FAILED)
    revival = order("b", idempotency_key="k", revives="a", rerun_failed=True)
    assert entries(await hand.add(revival)) == ["accepted"]
    added = await hand.submit("c", idempotency_key="k")
    assert isinstance(added, Added)
    assert added.job.id == "b"


async def test_the_last_crash_is_stored_with_a_dead_job(hand: Hand) -> None:
    claim = await hand.start("a")
    job = lifecycle.crash(claim.job, None, False, hand.clock.date, proven=True)
    job = replace(job, status=Status.FAILED)
    assert await hand.change(Change(job, claim.token)) == (True,)
    stored = await hand.get("a")
    assert stored.dead
    assert stored.job.crashes == 1


async def test_many_jobs_are_cancelled_at_once_in_every_waiting_state(hand: Hand) -> None:
    await hand.store.declare(spec("one", slots=2, max_per_key=1))
    await hand.start("runs", pool="one", key="k")
    await hand.take_in("gated", "gated-too", pool="one", key="k")
    await hand.take_in("turn", "next", "last", pool="one", session="s", key="x")
    await hand.take_in("delayed", pool="one", delay=60.0)
    asked = ["last", "gated", "nothing", "turn", "runs", "delayed", "gated"]
    found = await hand.store.cancel(asked, "ops")
    assert [None if one is None else one.job.status.value for one in found] == [
        "cancelled", "cancelled", None, "cancelled", "running", "cancelled", "cancelled",
    ]  # fmt: skip
    assert found[4] is not None
    assert found[4].cancel_requested
    assert await hand.statuses("gated-too", "next") == "blocked queued"


async def test_keys_of_jobs_cancelled_together_still_return_them(hand: Hand) -> None:
    names = [f"job-{number}" for number in range(6)]
    for name in names:
        await hand.take_in(name, idempotency_key=name, tenant="t")
    await hand.take_in("other", idempotency_key="job-0", tenant="u")
    await hand.store.cancel(names[:5], "ops")
    for name in names:
        joined = await hand.submit(f"again-{name}", idempotency_key=name, tenant="t")
        assert isinstance(joined, Added)
        assert joined.job.id == name
    (other,) = await hand.store.get(["other"])
    assert other is not None
    assert other.job.status is Status.QUEUED
    rerun = await hand.submit("rerun", idempotency_key="job-1", tenant="t", rerun_failed=True)
    assert isinstance(rerun, Added)
    assert rerun.entry == "accepted"


async def test_a_limited_number_of_keys_of_cancelled_jobs_is_kept(hand: Hand) -> None:
    await hand.store.declare(spec("few", max_keys=2))
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        await hand.take_in(name, pool="few", idempotency_key=name)
    await hand.store.cancel(names, "ops")
    came = []
    for name in reversed(names):
        added = await hand.submit(f"again-{name}", pool="few", idempotency_key=name)
        assert isinstance(added, Added)
        came.append(added.entry.value)
    assert came == ["joined", "joined", "accepted", "accepted", "accepted"]


async def test_concurrent_cancels_each_get_their_own_answer(hand: Hand, another: Another) -> None:
    names = [f"job-{number}" for number in range(60)]
    await hand.take_in(*names)
    other = await another()
    asked = [(hand.store, name, "ops") for name in names] + [(other, name, "me") for name in names]
    answers = await asyncio.gather(*(store.cancel([id], by) for store, id, by in asked))
    assert [one.job.id for (one,) in answers if one is not None] == names + names
    assert len(await hand.audited("cancel")) == 60
