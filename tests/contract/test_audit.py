"""The audit: every action is recorded, in order, with the same bytes in every store."""

from __future__ import annotations

from pathlib import Path

import msgspec

from poolhand.contract import Admission, Filter, JobBatch, Refusal, Store
from poolhand.rules.audit import SCHEDULE_TRIGGER, STREAM
from poolhand.rules.job import Fault, Status
from poolhand.rules.queue.backpressure import OnFull, bounded, ring_buffer
from poolhand.stores.sqlite.store import MemoryStore, SqliteStore
from tests.contract.support import Clock, Hand, order, owner, spec


async def records(hand: Hand, kind: str) -> list[dict[str, object]]:
    lines = await hand.store.read(STREAM, hand.audited_before, kind=f"pool_{kind}")
    return [msgspec.json.decode(line.body) for line in lines]


async def test_a_job_is_audited_from_submit_to_outcome(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.retry(claim)
    (claim,) = await hand.claim(1)
    await hand.finish(claim)
    told = ["submit a", "dequeue a", "retry a", "dequeue a", "outcome a"]
    assert await hand.audited() == told


async def test_a_submit_record_contains_the_submitted_fields(hand: Hand) -> None:
    hand.clock.wait(1)
    await hand.take_in("a", key="k", priority=3, idempotency_key="i", submitted_by="job-1")
    (record,) = await records(hand, "submit")
    assert record == {
        "schema": "poolhand.pool_submit.v1",
        "pool_id": (await hand.pool()).spec.id,
        "pool": "pool",
        "task_id": "a",
        "submitted_at": "2030-01-01T00:00:01Z",
        "priority": 3,
        "key": "k",
        "idempotency_key": "i",
        "submitted_by": "job-1",
    }


async def test_a_dequeue_record_contains_job_slot_and_queue_time(hand: Hand) -> None:
    await hand.take_in("a", "b")
    hand.clock.wait(2.5)
    await hand.claim(2)
    told = await records(hand, "dequeue")
    assert [(one["task_id"], one["slot_index"]) for one in told] == [("a", 0), ("b", 1)]
    assert told[0]["dequeued_at"] == "2030-01-01T00:00:02.500000Z"
    assert (told[0]["queued_for_ms"], told[0]["attempt"]) == (2500, 1)


async def test_an_outcome_record_contains_status_attempt_and_error(hand: Hand) -> None:
    claim = await hand.start("a")
    change = hand.ended(claim, Status.FAILED)
    job = msgspec.structs.replace(change.job, error=Fault("OSError", "secret"))
    await hand.change(msgspec.structs.replace(change, job=job))
    (told,) = await records(hand, "outcome")
    assert (told["status"], told["attempt"], told["error"]) == ("failed", 1, "OSError")


async def test_an_eviction_is_audited_after_the_submit_that_caused_it(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=ring_buffer(1), slots=1))
    await hand.start("running")
    await hand.take_in("a", "b")
    assert (await hand.audited())[-2:] == ["submit b", "drop a"]
    (told,) = await records(hand, "drop")
    assert (told["replacement_task_id"], told["policy"]) == ("b", "ring_buffer")
    assert told["reason"] == "ring_buffer_drop_oldest"
    assert (told["queue_depth"], told["max_depth"]) == (1, 1)


async def test_a_job_rejected_by_drop_newest_is_audited(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.DROP_NEWEST), slots=1))
    await hand.start("running")
    await hand.take_in("a")
    await hand.submit("b")
    assert (await hand.audited())[-2:] == ["submit b", "drop b"]
    (told,) = await records(hand, "drop")
    assert (told["replacement_task_id"], told["queue_depth"]) == (None, 1)


async def test_refused_and_joined_submits_are_not_audited(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.FAIL_SUBMITTER), slots=1))
    await hand.start("a", idempotency_key="k")
    await hand.take_in("b")
    before = await hand.audited()
    await hand.submit("c")
    await hand.submit("d", idempotency_key="k")
    assert await hand.audited() == before


async def test_a_cancel_record_names_the_actor(hand: Hand) -> None:
    await hand.start("a")
    await hand.take_in("b")
    await hand.store.cancel(["a", "b"], "ops")
    await hand.store.cancel(["a", "b"], "again")
    assert (await hand.audited())[-3:] == ["cancel a", "cancel b", "outcome b"]
    told = await records(hand, "cancel")
    assert [one["by"] for one in told] == ["ops", "ops"]


async def test_an_expiry_is_audited(hand: Hand) -> None:
    await hand.take_in("a", expires=1.0)
    hand.clock.wait(1)
    await hand.store.promote()
    (told,) = await records(hand, "outcome")
    assert (told["status"], told["occurred_at"]) == ("expired", "2030-01-01T00:00:01Z")


async def test_a_retry_of_a_cancel_requested_job_is_audited_as_cancelled(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.store.cancel(["a"], "me")
    await hand.retry(claim)
    assert await hand.audited("retry", "outcome") == ["outcome a"]


async def test_a_rerun_names_the_old_job_and_the_new_one(hand: Hand) -> None:
    await hand.finish(await hand.start("a"), status=Status.FAILED)
    await hand.take_in("b", revives="a", submitted_by="ops")
    assert (await hand.audited())[-2:] == ["submit b", "rerun a"]
    (told,) = await records(hand, "rerun")
    assert (told["task_id"], told["detail"], told["by"]) == ("a", "b", "ops")


async def test_operator_actions_on_a_pool_are_audited(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    await hand.store.declare(spec(slots=2))
    await hand.store.set_pool("pool", "ops", slots=7)
    await hand.store.set_pool("pool", "ops", paused=True)
    await hand.store.set_pool("pool", "ops", paused=False)
    await hand.store.set_pool("pool", "ops", declared=True)
    assert await hand.audited() == ["create", "resize", "pause", "resume", "resize"]
    assert [one["detail"] for one in await records(hand, "resize")] == ["7", ""]
    assert {one["by"] for one in await records(hand, "p")} == {"ops"}
    (told,) = await records(hand, "create")
    assert (told["pool"], told["pool_id"]) == ("pool", spec().id)


async def test_an_undeclared_pool_is_not_audited(hand: Hand) -> None:
    await hand.take_in("a")
    await hand.store.declare(spec())
    assert await hand.audited() == ["submit a"]


async def test_a_blocked_submitter_is_audited_when_its_job_is_accepted(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.start("a")
    await hand.take_in("b")
    await hand.submit("c")
    await hand.store.cancel(["b"], "me")
    told = (await hand.audited())[-4:]
    assert told == ["submit b", "cancel b", "outcome b", "submit c"]


async def play(store: Store, clock: Clock) -> list[tuple[str, bytes]]:
    """Do everything that is audited once; return the records."""
    await store.open()
    await store.enroll(owner("hand"))
    hand = Hand(store, clock)
    await store.declare(spec(backpressure=ring_buffer(2), slots=1))
    first = await hand.start("a", key="k")
    for name in ("b", "c", "d"):
        await hand.take_in(name, priority=2, submitted_by="ops")
        clock.wait(0.125)
    await hand.retry(first, wait=1.0)
    clock.wait(1)
    await store.promote()
    await hand.finish(*await hand.claim(), status=Status.FAILED)
    await store.cancel(["a"], "ops")
    await hand.take_in("e", expires=1.0)
    await hand.take_in("f", revives="c", pool="other")
    clock.wait(1)
    await store.promote()
    await store.set_pool("pool", "ops", paused=True)
    await store.set_pool("pool", "ops", paused=False)
    await store.set_pool("pool", "ops", slots=3)
    await hand.serve()
    assert not (await store.find(Filter(statuses=(Status.QUEUED,)))).jobs
    told = [(line.kind, line.body) for line in await store.read(STREAM)]
    await store.close()
    return told


KINDS = [
    "create", "submit", "dequeue", "drop", "outcome", "retry", "cancel", "rerun", "pause", "resume",
    "resize",
]  # fmt: skip


async def test_every_store_writes_the_same_audit_bytes_for_the_same_run(tmp_path: Path) -> None:
    told = []
    for name in ("one", "two"):
        clock = Clock()
        told.append(await play(MemoryStore(clock), clock))
        clock = Clock()
        told.append(await play(SqliteStore(tmp_path / name, clock), clock))
    assert told == [told[0]] * 4
    assert {kind.removeprefix("pool_") for kind, _ in told[0]} == set(KINDS)


async def test_a_triggered_schedule_is_audited_with_the_submit_of_its_job(hand: Hand) -> None:
    await hand.take_in("a", submitted_by="anna", triggers="nightly:@daily")
    lines = await hand.store.read(STREAM, hand.audited_before)
    # Some stores create a pool with its first job.
    told = [line for line in lines if line.kind in ("pool_submit", SCHEDULE_TRIGGER)]
    assert [line.kind for line in told] == ["pool_submit", SCHEDULE_TRIGGER]
    record = msgspec.json.decode(told[1].body)
    assert record == {
        "schema": "poolhand.schedule_trigger.v1",
        "pool_id": (await hand.pool()).spec.id,
        "pool": "pool",
        "task_id": "a",
        "by": "anna",
        "detail": "nightly:@daily",
        "occurred_at": "2030-01-01T00:00:00Z",
    }


async def test_a_trigger_whose_job_is_refused_is_not_audited(hand: Hand) -> None:
    await hand.store.declare(spec("pool", slots=1, backpressure=bounded(1, OnFull.FAIL_SUBMITTER)))
    await hand.take_in("a")
    await hand.claim(1)
    await hand.take_in("b")
    (answer,) = await hand.store.add([JobBatch((order("c", triggers="nightly"),))])
    assert isinstance(answer, Refusal)
    await hand.store.declare(spec("pool", slots=1, backpressure=bounded(1, OnFull.DROP_NEWEST)))
    (answer,) = await hand.store.add([JobBatch((order("d", triggers="nightly"),))])
    assert not isinstance(answer, Refusal)
    assert answer[0].entry is Admission.REJECTED
    lines = await hand.store.read(STREAM, hand.audited_before, kind=SCHEDULE_TRIGGER)
    assert lines == []
