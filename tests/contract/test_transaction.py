"""Transactions: jobs that are added with a commit, or leave no trace."""

from __future__ import annotations

import pytest

from poolhand.contract import JobBatch, Refusal
from poolhand.errors import Conflict, StoreError, Unsupported
from poolhand.rules.queue.backpressure import OnFull, Policy, bounded, fail_fast, ring_buffer
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.support import Hand, entries, ids, order, refused, spec


async def test_jobs_are_accepted_with_the_commit(hand: Hand) -> None:
    made = await hand.store.begin()
    assert entries(await made.add(JobBatch((order("a"), order("b", "other"))))) == [
        "accepted",
        "accepted",
    ]
    assert entries(await made.add(JobBatch((order("c"),)))) == ["accepted"]
    assert await hand.store.get(["a", "b", "c"]) == [None] * 3
    await made.commit()
    assert await hand.serve(("pool",)) == ["a", "c"]
    assert await hand.serve() == ["b"]


async def test_a_rolled_back_transaction_leaves_no_trace(hand: Hand) -> None:
    made = await hand.store.begin()
    await made.add(JobBatch((order("a", idempotency_key="k"), order("b", "new"))))
    await made.roll_back()
    assert await hand.store.get(["a", "b"]) == [None, None]
    assert await hand.pools() == []
    assert await hand.audited() == []
    await hand.take_in("c", idempotency_key="k")


async def test_a_commit_of_nothing_is_harmless(hand: Hand) -> None:
    await (await hand.store.begin()).commit()
    await (await hand.store.begin()).roll_back()
    await hand.take_in("a")


@pytest.mark.parametrize(
    "policy",
    [bounded(1, OnFull.FAIL_SUBMITTER), bounded(1), fail_fast()],
    ids=["fail", "block", "fail_fast"],
)
async def test_a_job_without_a_place_is_refused_and_the_rest_is_committed(
    hand: Hand, policy: Policy
) -> None:
    await hand.store.declare(spec(backpressure=policy, slots=1))
    made = await hand.store.begin()
    assert entries(await made.add(JobBatch((order("a"),)))) == ["accepted"]
    assert refused(await made.add(JobBatch((order("b"),)))).pool == "pool"
    assert refused(await made.add(JobBatch((order("c", "other"), order("d"))))).pool == "pool"
    await made.commit()
    assert await hand.store.get(["b", "c", "d"]) == [None] * 3
    assert await hand.serve() == ["a"]


async def test_a_rejection_by_policy_is_returned_before_the_commit(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(2, OnFull.DROP_NEWEST), slots=0))
    await hand.take_in("a")
    made = await hand.store.begin()
    for names, wanted in [("bc", ["accepted", "rejected"]), ("d", ["rejected"])]:
        answer = await made.add(JobBatch(tuple(order(name) for name in names)))
        assert entries(answer) == wanted
        assert not isinstance(answer, Refusal)
        assert [added.job.status.value for added in answer][-1] == "rejected"
        assert answer[-1].job.rejection_policy == "drop_newest"
    await made.commit()
    assert await hand.statuses("a", "b", "c", "d") == "queued queued rejected rejected"


async def test_a_job_evicted_by_a_later_one_of_its_transaction_was_accepted(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=ring_buffer(1), slots=0))
    made = await hand.store.begin()
    assert entries(await made.add(JobBatch((order("a"), order("b"))))) == ["accepted", "accepted"]
    await made.commit()
    assert await hand.statuses("a", "b") == "rejected queued"


async def test_a_known_id_is_refused_and_the_rest_is_committed(hand: Hand) -> None:
    await hand.take_in("a")
    made = await hand.store.begin()
    await made.add(JobBatch((order("b"),)))
    for known in ("a", "b"):
        with pytest.raises(Conflict):
            await made.add(JobBatch((order("c"), order(known))))
    await made.commit()
    assert await hand.serve() == ["a", "b"]


async def test_a_key_returns_its_job_inside_and_outside_of_a_transaction(hand: Hand) -> None:
    await hand.take_in("a", idempotency_key="k")
    made = await hand.store.begin()
    for name, key, found in [("b", "k", "a"), ("c", "l", "c"), ("d", "l", "c")]:
        answer = await made.add(JobBatch((order(name, idempotency_key=key),)))
        assert not isinstance(answer, Refusal)
        assert ids(answer) == [found]
    await made.commit()
    assert await hand.serve() == ["a", "c"]


async def test_a_finished_transaction_accepts_nothing_more(hand: Hand) -> None:
    made = await hand.store.begin()
    await made.commit()
    with pytest.raises(StoreError):
        await made.add(JobBatch((order("a"),)))
    with pytest.raises(StoreError):
        await made.commit()
    await made.roll_back()
    await hand.take_in("a")


async def test_job_requests_are_prepared_for_a_user_transaction_or_unsupported(
    hand: Hand,
) -> None:
    if isinstance(hand.store, PostgresStore):
        await hand.store.insertion([order("a"), order("b", "new")])
        assert await hand.store.get(["a", "b"]) == [None, None]
    else:
        with pytest.raises(Unsupported, match="submit_in"):
            await hand.store.insertion([order("a")])
