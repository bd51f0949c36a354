"""Idempotency: one job per pool, tenant and key, decided with the insert."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from poolhand.contract import Added, JobBatch, JobRequest, Refusal
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import OnFull, bounded, fail_fast, ring_buffer
from tests.contract.support import Another, Hand, entries, ids, order, refused, spec


async def joined(hand: Hand, id: str, **options: Any) -> str:
    """Submit the same key again; return the id of the job it belongs to."""
    added = await hand.submit(id, idempotency_key="k", **options)
    assert isinstance(added, Added)
    assert added.entry == ("accepted" if added.job.id == id else "joined")
    return added.job.id


async def test_a_key_stands_for_one_job_from_its_submit(hand: Hand) -> None:
    claim = await hand.start("a", idempotency_key="k")
    assert await joined(hand, "b") == "a"
    await hand.finish(claim)
    assert await joined(hand, "c") == "a"
    assert await hand.store.get(["b", "c"]) == [None, None]


async def test_a_key_returns_the_job_as_it_is_now(hand: Hand) -> None:
    claim = await hand.start("a", idempotency_key="k")
    done = hand.ended(claim)
    await hand.change(done)
    added = await hand.submit("b", idempotency_key="k")
    assert isinstance(added, Added)
    assert added.job == done.job


async def test_a_hundred_submits_of_one_key_make_one_job(hand: Hand, another: Another) -> None:
    other = await another()
    for n in range(50):
        for store in (hand.store, other):
            (answer,) = await store.add([JobBatch((order(f"{n}", idempotency_key="k"),))])
            assert not isinstance(answer, Refusal)
            assert ids(answer) == ["0"]
    assert await hand.serve() == ["0"]


async def test_keys_are_distinct_per_tenant_and_pool(hand: Hand) -> None:
    await hand.take_in("a", idempotency_key="k")
    await hand.take_in("b", idempotency_key="k", tenant="acme")
    await hand.take_in("c", idempotency_key="k", tenant="other")
    await hand.take_in("d", idempotency_key="k", pool="other")
    await hand.take_in("e", idempotency_key="l")
    assert await joined(hand, "f", tenant="acme") == "b"
    assert await joined(hand, "g") == "a"


async def test_a_key_is_kept_for_its_time_after_the_outcome(hand: Hand) -> None:
    await hand.store.declare(spec(key_ttl=10.0))
    claim = await hand.start("a", idempotency_key="k")
    hand.clock.wait(100)
    assert await joined(hand, "b") == "a"
    await hand.finish(claim)
    hand.clock.wait(9)
    assert await joined(hand, "c") == "a"
    hand.clock.wait(1)
    assert await joined(hand, "d") == "d"


async def test_a_limited_number_of_keys_of_finished_jobs_is_kept(hand: Hand) -> None:
    await hand.store.declare(spec(max_keys=2))
    alive = await hand.start("alive", idempotency_key="k")
    for name in ("a", "b", "c"):
        await hand.finish(await hand.start(name, idempotency_key=name))
    assert await joined(hand, "x") == "alive"
    for name, entry in [("b", "joined"), ("c", "joined"), ("a", "accepted")]:
        assert entries(await hand.add(order(f"{name} again", idempotency_key=name))) == [entry]
    await hand.finish(alive)


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
async def test_a_failed_key_runs_again_with_rerun_failed(hand: Hand, status: Status) -> None:
    claim = await hand.start("a", idempotency_key="k")
    assert await joined(hand, "b", rerun_failed=True) == "a"
    await hand.finish(claim, status=status)
    assert await joined(hand, "c") == "a"
    assert await joined(hand, "d", rerun_failed=True) == "d"
    assert await joined(hand, "e", rerun_failed=True) == "d"
    assert await joined(hand, "f") == "d"


async def test_an_expired_job_runs_again_with_rerun_failed(hand: Hand) -> None:
    await hand.take_in("a", idempotency_key="k", expires=5.0)
    hand.clock.wait(5)
    await hand.store.promote()
    assert await hand.status("a") == "expired"
    assert await joined(hand, "b") == "a"
    assert await joined(hand, "c", rerun_failed=True) == "c"


async def test_a_completed_key_never_runs_again(hand: Hand) -> None:
    await hand.finish(await hand.start("a", idempotency_key="k"))
    assert await joined(hand, "b", rerun_failed=True) == "a"


async def test_a_rejection_frees_the_key(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.DROP_NEWEST), slots=1))
    claim = await hand.start("running")
    await hand.take_in("waiting")
    assert entries(await hand.add(order("a", idempotency_key="k"))) == ["rejected"]
    await hand.finish(claim)
    await hand.claim(1)
    await hand.take_in("b", idempotency_key="k")


async def test_an_eviction_frees_the_key(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=ring_buffer(1), slots=1))
    await hand.start("running")
    await hand.take_in("a", idempotency_key="k")
    await hand.take_in("b")
    assert await hand.status("a") == "rejected"
    await hand.take_in("c", idempotency_key="k")
    assert await joined(hand, "d") == "c"


async def test_a_refusal_frees_the_key(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=fail_fast(), slots=1))
    claim = await hand.start("running")
    refused(await hand.submit("a", idempotency_key="k"))
    await hand.finish(claim)
    await hand.take_in("b", idempotency_key="k")


async def test_a_refused_rerun_leaves_the_key_with_its_old_job(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=fail_fast(), slots=1))
    await hand.finish(await hand.start("a", idempotency_key="k"), status=Status.FAILED)
    await hand.start("running")
    refused(await hand.submit("b", idempotency_key="k", rerun_failed=True))
    assert await joined(hand, "c") == "a"


async def test_a_key_survives_the_retries_of_its_job(hand: Hand) -> None:
    await hand.store.declare(spec(key_ttl=10.0))
    claim = await hand.start("a", idempotency_key="k")
    await hand.retry(claim, wait=50.0)
    hand.clock.wait(50)
    await hand.store.promote()
    assert await joined(hand, "b") == "a"


async def test_a_joined_submit_needs_no_place_in_the_queue(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.FAIL_SUBMITTER), slots=1))
    await hand.start("a", idempotency_key="k")
    await hand.take_in("b")
    assert await joined(hand, "c") == "a"
    refused(await hand.submit("d"))


# One call per key


def call(id: str, digest: bytes | None = None, **options: Any) -> JobRequest:
    """Return an order under the key "k" whose call record has a digest of its arguments."""
    fields: list[Any] = [None] * 13
    made = order(id, **{"idempotency_key": "k", **options})
    return replace(made, call_record=msgspec.msgpack.encode([*fields, digest]))


ONE, TWO, OLDER = b"version2" + b"1" * 32, b"version2" + b"2" * 32, b"version1" + b"2" * 32


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_key_of_another_call_is_refused_with_the_job_that_has_it(
    hand: Hand, is_over: bool
) -> None:
    added = await hand.add(call("a", ONE))
    assert isinstance(added, tuple)
    if is_over:
        (claim,) = await hand.claim()
        await hand.finish(claim)
    for other in (call("b", TWO), call("b", ONE, name="other"), call("b", None, name="other")):
        answer = await hand.add(other)
        assert isinstance(answer, Refusal)
        assert answer.holder is not None
        assert (answer.reason, answer.holder.id, answer.holder.name) == ("key", "a", "task")
    assert await hand.store.get(["b"]) == [None]


@pytest.mark.parametrize("digest", [ONE, OLDER, None])
async def test_the_same_call_and_one_that_cannot_be_compared_join(
    hand: Hand, digest: bytes | None
) -> None:
    await hand.add(call("a", ONE, name="proj.agents.task"))
    answer = await hand.add(call("b", digest, name="agents.task"))
    assert isinstance(answer, tuple)
    assert ids(answer) == ["a"]


async def test_a_refused_call_does_not_fail_those_of_the_same_write(hand: Hand) -> None:
    orders = [call("a", ONE), call("b", TWO), call("c", ONE), call("d", idempotency_key="l")]
    answers = await hand.store.add([JobBatch((one,)) for one in orders])
    found = [isinstance(one, Refusal) or ids(one) for one in answers]
    assert found == [["a"], True, ["a"], ["d"]]


async def test_a_batch_with_a_key_of_another_call_is_refused_as_a_whole(hand: Hand) -> None:
    answer = await hand.add(order("a"), call("b", ONE), call("c", TWO))
    assert isinstance(answer, Refusal)
    assert answer.reason == "key"
    assert await hand.store.get(["a", "b", "c"]) == [None] * 3
    await hand.add(call("d", TWO))
    assert await hand.status("d") == "queued"


async def test_a_rerun_is_one_of_the_same_call(hand: Hand) -> None:
    await hand.add(call("a", ONE))
    (claim,) = await hand.claim()
    await hand.finish(claim, status=Status.FAILED)
    assert isinstance(await hand.add(call("b", TWO, rerun_failed=True)), Refusal)
    answer = await hand.add(call("c", ONE, rerun_failed=True))
    assert isinstance(answer, tuple)
    assert ids(answer) == ["c"]


async def test_a_dead_job_is_not_replaced_by_another_call(hand: Hand) -> None:
    await hand.store.declare(spec(key_ttl=10.0))
    await hand.add(call("a", ONE))
    (claim,) = await hand.claim()
    await hand.finish(claim, status=Status.FAILED)
    hand.clock.wait(20)
    await hand.add(call("b", TWO))
    answer = await hand.add(call("c", ONE, rerun_failed=True, revives="a"))
    assert isinstance(answer, Refusal)
    assert answer.reason == "key"
    (dead,) = await hand.store.get(["a"])
    assert dead is not None
    assert dead.dead


async def test_a_blocked_submitter_has_its_key_against_another_call(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=1))
    await hand.start("running")
    await hand.take_in("waiting")
    await hand.add(call("a", ONE))
    answer = await hand.add(call("b", TWO))
    assert isinstance(answer, Refusal)
    assert answer.reason == "key"
    same = await hand.add(call("c", ONE))
    assert isinstance(same, tuple)
    assert (ids(same), entries(same)) == (["a"], ["blocked_submitter"])
