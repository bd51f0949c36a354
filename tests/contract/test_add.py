"""Adding jobs: places, times, bounds, and batches that are accepted whole or not at all."""

from __future__ import annotations

from datetime import timedelta

import pytest

from poolhand.contract import Filter, JobBatch, JobRequest, Refusal
from poolhand.errors import Conflict, UsageError
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import OnFull, Policy, bounded, fail_fast, ring_buffer
from poolhand.rules.queue.stored_desk import undeclared
from poolhand.rules.queue.strategy import fair_round_robin, lifo
from tests.contract.support import START, Hand, entries, ids, order, refused, spec

VERY_MANY = 600  # so many that a store may write them in another way


async def test_an_accepted_job_is_stored_as_it_was_requested(hand: Hand) -> None:
    added = await hand.submit(
        "a", key="k", priority=3, session="s", tenant="t", user="u", idempotency_key="i"
    )
    assert not isinstance(added, Refusal)
    job = added.job
    assert (job.id, job.pool, job.status, job.name) == ("a", "pool", Status.QUEUED, "task")
    assert (job.key, job.priority, job.session) == ("k", 3, "s")
    assert (job.tenant, job.user, job.idempotency_key) == ("t", "u", "i")
    assert (await hand.get("a")).job == job
    assert await hand.call_record("a") == b"brief of a"


async def test_the_store_sets_the_pool_id_and_timestamps_of_a_job(hand: Hand) -> None:
    hand.clock.wait(60)
    added = await hand.submit("a", delay=5.0, expires=9.0)
    assert not isinstance(added, Refusal)
    at = START + timedelta(seconds=60)
    assert added.job.pool_id == undeclared("pool").id
    assert added.job.submitted_at == at
    assert added.job.run_at == at + timedelta(seconds=5)
    assert added.job.expires_at == at + timedelta(seconds=9)


async def test_an_unknown_job_id_is_not_found(hand: Hand) -> None:
    await hand.take_in("a")
    got = await hand.store.get(["none", "a", "none"])
    assert [one and one.job.id for one in got] == [None, "a", None]
    assert await hand.call_record("none") is None


async def test_an_undeclared_pool_accepts_every_job_and_has_no_cap(hand: Hand) -> None:
    await hand.take_in(*[f"job-{n:02}" for n in range(50)], pool="new")
    assert (await hand.pool("new")).spec == undeclared("new")
    assert (await hand.pool("new")).slots is None
    assert len(await hand.claim()) == 50


async def test_an_empty_batch_is_taken(hand: Hand) -> None:
    assert await hand.add() == ()
    assert await hand.store.add([]) == []


async def test_a_batch_is_taken_whole_in_its_order(hand: Hand) -> None:
    answer = await hand.add(order("a"), order("b", "other"), order("c"))
    assert entries(answer) == ["accepted"] * 3
    assert await hand.serve(("pool",)) == ["a", "c"]
    assert await hand.serve() == ["b"]


async def test_a_very_large_batch_is_accepted_whole_and_in_order(hand: Hand) -> None:
    await hand.take_in("first")
    names = [f'{number:03} \\ "é"' for number in range(VERY_MANY)]
    terms = [{"key": f"key {number // 100}"} for number in range(VERY_MANY)]
    answer = await hand.add(*[order(name, **one) for name, one in zip(names, terms, strict=True)])
    assert entries(answer) == ["accepted"] * VERY_MANY
    kept = await hand.store.get(names)
    assert not isinstance(answer, Refusal)
    assert [one and one.job for one in kept] == [one.job for one in answer]
    assert [one.job.key for one in answer] == [one["key"] for one in terms]
    assert await hand.audited() == [f"submit {name}" for name in ["first", *names]]
    claims = await hand.claim(VERY_MANY + 1)
    assert ids(claims) == ["first", *names]
    records = [claim.call_record for claim in claims[1:]]
    assert records == [f"brief of {name}".encode() for name in names]


async def test_a_very_large_batch_with_one_known_id_adds_nothing(hand: Hand) -> None:
    await hand.take_in("known")
    names = [f"{number:03}" for number in range(VERY_MANY)]
    with pytest.raises(Conflict, match="ids must be unique"):
        await hand.add(*map(order, names), order("known"))
    assert await hand.store.get(names) == [None] * VERY_MANY
    assert await hand.audited() == ["submit known"]
    assert await hand.serve() == ["known"]


REFUSING = pytest.mark.parametrize(
    "policy", [bounded(2, OnFull.FAIL_SUBMITTER), bounded(2)], ids=["fail", "block without owner"]
)


@REFUSING
async def test_a_batch_that_does_not_fit_leaves_nothing(hand: Hand, policy: Policy) -> None:
    await hand.store.declare(spec(backpressure=policy, slots=1))
    await hand.start("running")
    before = await hand.audited()
    batch = [order("a", idempotency_key="k"), order("b"), order("c"), order("d", "new pool")]
    answer = refused(await hand.add(*batch, owner=None))
    assert answer == Refusal("full", "pool", str(policy), running=1, waiting=2)
    assert await hand.store.get(["a", "b", "c", "d"]) == [None] * 4
    assert [row.spec.name for row in await hand.pools()] == ["pool"]
    assert (await hand.pool()).queued == 0
    assert await hand.audited() == before
    assert entries(await hand.add(order("e", idempotency_key="k"), owner=None)) == ["accepted"]


async def test_a_refused_batch_evicts_no_job_of_another_pool(hand: Hand) -> None:
    await hand.store.declare(spec("ring", backpressure=ring_buffer(2), slots=1))
    await hand.store.declare(spec("small", backpressure=fail_fast(), slots=1))
    await hand.start("ring-running", "ring")
    await hand.take_in("first", "second", pool="ring")
    await hand.start("small-running", "small")
    refused(await hand.add(order("third", "ring"), order("no", "small")))
    assert await hand.statuses("first", "second") == "queued queued"
    assert entries(await hand.add(order("third", "ring"))) == ["accepted"]
    assert await hand.statuses("first", "second") == "rejected queued"


async def test_batches_of_one_call_are_accepted_or_refused_independently(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(2, OnFull.FAIL_SUBMITTER), slots=1))
    await hand.start("running")
    big = JobBatch((order("a"), order("b"), order("c")))
    answers = await hand.store.add(
        [big, JobBatch((order("d"),)), JobBatch((order("e"), order("f")))]
    )
    assert [isinstance(answer, Refusal) for answer in answers] == [True, False, True]
    assert [one and one.job.id for one in await hand.store.get(["a", "d", "e"])] == [
        None,
        "d",
        None,
    ]


async def test_the_first_refused_job_request_gives_the_reason(hand: Hand) -> None:
    await hand.store.declare(spec("one", backpressure=fail_fast(), slots=1))
    await hand.store.declare(spec("two", backpressure=bounded(1, OnFull.FAIL_SUBMITTER), slots=1))
    one = [order("a", "one"), order("b", "one")]
    two = [order("c", "two"), order("d", "two"), order("e", "two")]
    revival = order("f", revives="none")
    assert refused(await hand.add(*one, *two, revival)).reason == "no_slot"
    assert refused(await hand.add(*two, *one, revival)).pool == "two"
    assert refused(await hand.add(revival, *one)).reason == "not_dead"


async def test_earlier_job_requests_of_a_batch_count_towards_the_queue_bound(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(2, OnFull.FAIL_SUBMITTER), slots=3))
    await hand.take_in("s1", "s2", delay=9.0)
    # The queue is full, but one job can start at once; then it counts before the next one.
    assert refused(await hand.add(order("a"), order("b"))).waiting == 3
    assert entries(await hand.add(order("a"))) == ["accepted"]
    refused(await hand.add(order("b")))


async def test_a_batch_with_one_key_twice_is_one_job(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.FAIL_SUBMITTER), slots=1))
    await hand.start("running")
    answer = await hand.add(order("a", idempotency_key="k"), order("b", idempotency_key="k"))
    assert entries(answer) == ["accepted", "joined"]
    assert (await hand.pool()).queued == 1


@pytest.mark.parametrize(
    "batches",
    [
        [[order("a")]],
        [[order("b"), order("a")]],
        [[order("b"), order("b")]],
        [[order("b", "new")], [order("b", session="s")]],
        [[order("b", idempotency_key="k"), order("b")]],
        [[order("b", "new"), order("a", delay=5.0)]],
    ],
    ids=["alone", "last", "twice", "in two batches", "once with a key", "in another pool"],
)
async def test_a_known_id_is_refused_and_adds_nothing(
    hand: Hand, batches: list[list[JobRequest]]
) -> None:
    await hand.take_in("a")
    audited = await hand.audited()
    with pytest.raises(Conflict, match="ids must be unique"):
        await hand.store.add([JobBatch(tuple(orders), "hand") for orders in batches])
    assert [row.spec.name for row in await hand.pools()] == ["pool"]
    assert await hand.audited() == audited
    assert (await hand.pool()).queued == 1
    await hand.take_in("b", idempotency_key="k")
    assert await hand.serve() == ["a", "b"]


async def test_a_known_id_with_its_own_idempotency_key_joins_the_existing_job(
    hand: Hand,
) -> None:
    await hand.take_in("a", idempotency_key="k")
    again, twice = order("a", idempotency_key="k"), order("b", idempotency_key="l")
    assert entries(await hand.add(again)) == ["joined"]
    assert entries(await hand.add(twice, twice, again)) == ["accepted", "joined", "joined"]
    assert await hand.serve() == ["a", "b"]


async def test_a_value_out_of_all_bounds_is_refused_and_leaves_nothing(hand: Hand) -> None:
    delay, expires = order("c", delay=1e300), order("c", expires=1e300)
    for wrong in (delay, expires, order("c", delay=float("nan"))):
        with pytest.raises(UsageError, match="cannot be stored"):
            await hand.add(order("a"), order("b", "other", session="s"), wrong)
    assert await hand.pools() == []
    assert await hand.audited() == []
    await hand.take_in("a", "b", session="s")
    assert await hand.serve() == ["a", "b"]


async def test_a_bounded_pool_holds_its_running_jobs_plus_its_depth(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(2, OnFull.FAIL_SUBMITTER), slots=2))
    for name in "abcd":
        await hand.take_in(name)
        await hand.claim()
    answer = refused(await hand.submit("e"))
    assert answer == Refusal("full", "pool", "bounded(2, fail_submitter)", running=2, waiting=2)
    assert await hand.store.get(["e"]) == [None]


async def test_scheduled_and_session_blocked_jobs_count_towards_the_queue_bound(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(3, OnFull.FAIL_SUBMITTER), slots=1))
    await hand.start("a", session="s")
    await hand.take_in("b", session="s")
    await hand.take_in("c", delay=5.0)
    await hand.take_in("d")
    assert (await hand.pool()).blocked == (await hand.pool()).scheduled == 1
    refused(await hand.submit("e"))


async def test_fail_fast_takes_as_many_as_there_are_slots(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=fail_fast(), slots=4))
    await hand.take_in(*"abcd")
    answer = refused(await hand.submit("e"))
    assert answer == Refusal("no_slot", "pool", "fail_fast", running=0, waiting=4)
    claims = await hand.claim(2)
    refused(await hand.submit("e"))
    await hand.finish(*claims)
    await hand.take_in("e", "f")


async def test_drop_newest_stores_a_record_of_the_rejected_job(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.DROP_NEWEST), slots=1))
    await hand.start("a")
    await hand.take_in("b")
    answer = await hand.add(order("c"))
    assert entries(answer) == ["rejected"]
    job = (await hand.get("c")).job
    assert (job.status, job.finished_at) == (Status.REJECTED, START)
    assert job.rejection_reason == "drop_newest_queue_full"
    assert job.rejection_policy == "drop_newest"
    assert await hand.statuses("a", "b") == "running queued"


@pytest.mark.parametrize(
    ("policy", "reason", "name"),
    [
        (bounded(2, OnFull.DROP_OLDEST), "drop_oldest_queue_full", "drop_oldest"),
        (ring_buffer(2), "ring_buffer_drop_oldest", "ring_buffer"),
    ],
    ids=["drop_oldest", "ring_buffer"],
)
async def test_the_oldest_waiting_job_is_evicted(
    hand: Hand, policy: Policy, reason: str, name: str
) -> None:
    await hand.store.declare(spec(queue=lifo(), backpressure=policy, slots=1))
    await hand.start("running")
    await hand.take_in(*"abcd")
    assert await hand.statuses(*"abcd") == "rejected rejected queued queued"
    job = (await hand.get("a")).job
    assert (job.rejection_reason, job.rejection_policy) == (reason, name)
    assert job.finished_at == START
    assert await hand.status("running") == "running"


async def test_the_oldest_job_is_evicted_whether_scheduled_or_blocked(hand: Hand) -> None:
    await hand.store.declare(
        spec(backpressure=ring_buffer(3), slots=1, max_per_key=1, queue=lifo())
    )
    await hand.start("running", key="k", session="s")
    await hand.take_in("scheduled", delay=100.0)
    await hand.take_in("in session", session="s")
    await hand.take_in("of key", key="k")
    assert await hand.statuses("scheduled", "in session", "of key") == "scheduled blocked blocked"
    for name, gone in [("x", "scheduled"), ("y", "in session"), ("z", "of key")]:
        await hand.take_in(name, key=name)
        assert await hand.status(gone) == "rejected"
    # A dropped job does not come back when what it waited for is free.
    assert await hand.claim() == []
    hand.clock.wait(200)
    await hand.store.promote()
    assert (await hand.pool()).queued == 3


async def test_a_fair_strategy_evicts_from_the_key_with_the_most_jobs(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin(), backpressure=ring_buffer(4), slots=1))
    await hand.start("running")
    await hand.take_in("quiet", key="Q")
    for name in ("b1", "b2", "b3", "b4", "b5"):
        await hand.take_in(name, key="B")
    assert await hand.statuses("quiet", "b1", "b2", "b3") == "queued rejected rejected queued"


async def test_an_eviction_releases_the_session_of_the_evicted_job(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=ring_buffer(2), slots=1))
    await hand.start("running")
    await hand.take_in("a", "b", session="s")
    assert await hand.statuses("a", "b") == "queued blocked"
    await hand.take_in("c")
    assert await hand.statuses("a", "b", "c") == "rejected queued queued"


async def test_retries_are_queued_even_when_the_queue_is_full(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.FAIL_SUBMITTER), slots=1))
    claim = await hand.start("a")
    await hand.take_in("b")
    assert await hand.retry(claim)
    assert (await hand.pool()).queued == 2
    refused(await hand.submit("c"))
    assert await hand.serve() == ["b", "a"]


async def test_a_rejected_job_is_found_among_the_others(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, OnFull.DROP_NEWEST), slots=1))
    await hand.start("a")
    await hand.take_in("b")
    await hand.submit("c")
    page = await hand.store.find(Filter(statuses=(Status.REJECTED,)))
    assert ids(page.jobs) == ["c"]
