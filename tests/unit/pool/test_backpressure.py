"""Backpressure: what happens to a submit when the pool is full."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import (
    Pool,
    Refused,
    Retry,
    Ticket,
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    ring_buffer,
    unbounded,
    wait,
)
from poolhand.errors import Draining, JobRejected, NoFreeSlot, PoolFull
from poolhand.observe import events
from poolhand.settings import Backpressure
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Heard, Journal, occupied, park, seeded, until

EVICTING = [bounded(2, on_full="drop_oldest"), ring_buffer(2)]
BOUNDED = [
    bounded(2),
    bounded(2, on_full="drop_oldest"),
    bounded(2, on_full="drop_newest"),
    bounded(2, on_full="fail_submitter"),
    ring_buffer(2),
]
REFUSING: list[tuple[Any, type[Refused], str, str]] = [
    (bounded(1, on_full="fail_submitter"), PoolFull, "PH-POL-001", "bounded(1, fail_submitter)"),
    (fail_fast(), NoFreeSlot, "PH-POL-002", "fail_fast"),
]


def full(pool: Pool) -> None:
    """Fill the places of a pool whose slots are busy."""
    policy: Any = pool.snapshot().config.backpressure
    for _ in range(getattr(policy, "max_depth", 0)):
        pool.submit_nowait(Journal().note, "filler")


# Accepted at once


@pytest.mark.parametrize("policy", [unbounded(), *BOUNDED, fail_fast()], ids=str)
@seeded
async def test_every_policy_accepts_a_job_at_once_while_a_slot_is_free_and_no_job_waits(
    runtime: SeededRuntime, policy: Any
) -> None:
    async with Pool(runtime=runtime, max_concurrent=2, backpressure=policy) as pool:
        async with occupied(pool):
            for _ in range(5):
                assert await pool.run(Journal().note, "x") == "x"
        assert pool.snapshot().completed == 6


@pytest.mark.parametrize("policy", BOUNDED, ids=str)
@seeded
async def test_a_bounded_pool_holds_its_slots_and_its_depth_and_no_more(
    runtime: SeededRuntime, policy: Any
) -> None:
    async with Pool(runtime=runtime, max_concurrent=3, backpressure=policy) as pool:
        async with occupied(pool, 3):
            full(pool)
            assert pool.size() == 5
            submit = asyncio.create_task(wait_for_place(pool))
            await until(lambda: submit.done() or bool(pool.snapshot().blocked_submitters))
            assert pool.size() == 5
            assert pool.snapshot().queued == 2
        await submit


async def wait_for_place(pool: Pool) -> None:
    try:
        await pool.submit(Journal().note, "one more")
    except PoolFull:
        return


@pytest.mark.parametrize("waits_for", ["slot", "session", "key", "time"])
@seeded
async def test_queued_blocked_and_scheduled_jobs_all_count_as_waiting(
    runtime: SeededRuntime, waits_for: str
) -> None:
    by_wait: dict[str, dict[str, Any]] = {
        "slot": {},
        "session": {"session": "s"},
        "key": {"key": "k"},
        "time": {"delay": 5},
    }
    options = by_wait[waits_for]
    policy = bounded(1, on_full="fail_submitter")
    async with Pool(runtime=runtime, max_concurrent=2, max_per_key=1, backpressure=policy) as pool:
        gate = asyncio.Event()
        holder = pool.with_options(session="s", key="k").submit_nowait(gate.wait)
        async with occupied(pool):
            pool.with_options(**options).submit_nowait(Journal().note, "waits")
            with pytest.raises(PoolFull):
                pool.with_options(**options).submit_nowait(Journal().note, "too much")
            with pytest.raises(PoolFull):
                pool.submit_nowait(Journal().note, "too much")
        gate.set()
        await holder


@seeded
async def test_a_retry_returns_without_admission_even_to_a_full_pool(
    runtime: SeededRuntime,
) -> None:
    attempts: list[int] = []

    async def flaky() -> int:
        attempts.append(1)
        if len(attempts) == 1:
            full(pool)
            raise LookupError("again")
        return len(attempts)

    policy = bounded(2, on_full="fail_submitter")
    retry = Retry(attempts=2, first=1)
    async with Pool(runtime=runtime, backpressure=policy, retry=retry) as pool:
        assert await pool.run(flaky) == 2
        assert pool.snapshot().rejected == 0


@seeded
async def test_unbounded_is_the_default_and_queues_everything(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        assert pool.snapshot().backpressure == "unbounded"
        async with occupied(pool):
            for number in range(500):
                await pool.submit(journal.note, str(number))
            assert pool.snapshot().queued == 500
    assert len(journal.ran) == 500


# block_submitter


@seeded
async def test_a_blocked_submitter_waits_until_a_place_is_free(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        async with occupied(pool):
            full(pool)
            parked = await park(pool, pool, Journal().note, "x")
            await asyncio.sleep(1000)
            assert not parked.done()
            assert pool.snapshot().total == 2
        ticket = await parked
        assert await ticket == "x"
        assert pool.snapshot().blocked_submitters == 0


@seeded
async def test_blocked_submitters_are_admitted_first_come_first_served(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue="fifo", backpressure=bounded(2)) as pool:
        async with occupied(pool):
            full(pool)
            tasks = [await park(pool, pool, journal.note, str(n)) for n in range(10)]
        tickets = await asyncio.gather(*tasks)
        await wait(tickets)
    assert journal.ran == [str(n) for n in range(10)]


@seeded
async def test_one_blocked_submitter_is_admitted_per_freed_place(runtime: SeededRuntime) -> None:
    gates = [asyncio.Event() for _ in range(8)]
    async with Pool(runtime=runtime, queue="fifo", backpressure=bounded(2)) as pool:
        for gate in gates[:3]:
            await pool.submit(gate.wait)
        tasks = [await park(pool, pool, gate.wait) for gate in gates[3:]]
        for number, gate in enumerate(gates[:5], start=1):
            gate.set()
            await until(lambda: pool.snapshot().completed == number)  # noqa: B023
            await asyncio.sleep(1)
            assert [task.done() for task in tasks] == [True] * number + [False] * (5 - number)
            assert pool.snapshot().blocked_submitters == 5 - number
            assert pool.size() == 3
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks)


@seeded
async def test_a_cancelled_waiting_job_frees_its_place_for_a_blocked_submitter(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool, occupied(pool):
        waiting = await pool.submit(Journal().note, "waiting")
        task = await park(pool, pool, Journal().note, "parked")
        await waiting.cancel()
        ticket = await task
        assert ticket.status is Status.QUEUED


@seeded
async def test_an_expired_waiting_job_frees_its_place_for_a_blocked_submitter(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool, occupied(pool):
        waiting = await pool.with_options(expires=5).submit(Journal().note, "waiting")
        ticket = await (await park(pool, pool, Journal().note, "parked"))
        assert waiting.status is Status.EXPIRED
        assert ticket.status is Status.QUEUED


@seeded
async def test_a_new_submit_queues_behind_blocked_submitters(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue="fifo", backpressure=bounded(1)) as pool:
        gate = asyncio.Event()
        await pool.submit(gate.wait)
        full(pool)
        parked = [await park(pool, pool, journal.note, str(n)) for n in range(3)]
        gate.set()
        urgent = pool.with_options(priority=9)
        late = [asyncio.create_task(urgent.submit(journal.note, "late")) for _ in range(3)]
        await wait(await asyncio.gather(*parked, *late))
    assert journal.ran == ["0", "1", "2", "late", "late", "late"]


@seeded
async def test_submit_nowait_does_not_overtake_blocked_submitters(
    runtime: SeededRuntime,
) -> None:
    refused: list[PoolFull] = []
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:

        async def intrude() -> None:
            try:
                pool.submit_nowait(Journal().note, "intruder")
            except PoolFull as error:
                refused.append(error)

        async with occupied(pool):
            await pool.submit(intrude)
            tasks = [await park(pool, pool, Journal().note, "x") for _ in range(3)]
        await asyncio.gather(*tasks)
    assert len(refused) == 1


@seeded
async def test_a_cancelled_blocked_submitter_leaves_at_once_and_the_next_moves_up(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue="fifo", backpressure=bounded(1)) as pool:
        async with occupied(pool):
            full(pool)
            tasks = [await park(pool, pool, journal.note, name) for name in "abcd"]
            for gone in (tasks[0], tasks[2]):
                gone.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await gone
            assert pool.snapshot().blocked_submitters == 2
            assert pool.snapshot().total == 2
        await asyncio.gather(tasks[1], tasks[3])
    assert journal.ran == ["b", "d"]


@seeded
async def test_after_wait_timeout_a_blocked_submitter_gets_pool_full_and_leaves_nothing(
    runtime: SeededRuntime,
) -> None:
    policy = bounded(1, wait_timeout=7)
    async with Pool(runtime=runtime, backpressure=policy) as pool, occupied(pool):
        full(pool)
        start = runtime.monotonic()
        with pytest.raises(PoolFull) as caught:
            await pool.submit(Journal().note, "x")
        assert runtime.monotonic() - start == pytest.approx(7)
        assert caught.value.code == "PH-POL-001"
        assert caught.value.policy == "bounded(1, block_submitter)"
        snapshot = pool.snapshot()
        assert (snapshot.total, snapshot.blocked_submitters) == (2, 0)


@seeded
async def test_a_wait_timeout_of_zero_refuses_at_once(runtime: SeededRuntime) -> None:
    policy = bounded(1, wait_timeout=0)
    async with Pool(runtime=runtime, backpressure=policy) as pool, occupied(pool):
        full(pool)
        start = runtime.monotonic()
        with pytest.raises(PoolFull):
            await pool.submit(Journal().note, "x")
        assert runtime.monotonic() == start


@seeded
async def test_a_place_within_wait_timeout_is_taken(runtime: SeededRuntime) -> None:
    async def job() -> None:
        await asyncio.sleep(5)

    async with Pool(runtime=runtime, backpressure=bounded(1, wait_timeout=7)) as pool:
        await pool.submit(job)
        await pool.submit(job)
        assert await pool.run(Journal().note, "x") == "x"


@seeded
async def test_wait_timeout_counts_for_each_submitter_from_its_own_start(
    runtime: SeededRuntime,
) -> None:
    policy = bounded(1, wait_timeout=10)
    async with Pool(runtime=runtime, backpressure=policy) as pool, occupied(pool):
        full(pool)
        first = await park(pool, pool, Journal().note, "first")
        await asyncio.sleep(6)
        second = await park(pool, pool, Journal().note, "second")
        await asyncio.sleep(5)
        assert first.done()
        assert not second.done()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(result) for result in results] == [PoolFull, PoolFull]


@seeded
async def test_submit_nowait_raises_pool_full_where_submit_would_wait(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool, occupied(pool):
        full(pool)
        with pytest.raises(PoolFull) as caught:
            pool.submit_nowait(Journal().note, "x")
        assert caught.value.code == "PH-POL-001"
        snapshot = pool.snapshot()
        assert (snapshot.total, snapshot.blocked_submitters) == (2, 0)


@seeded
async def test_a_drain_refuses_blocked_submitters_with_draining(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime, backpressure=bounded(1)).start()
    gate = asyncio.Event()
    await pool.submit(gate.wait)
    full(pool)
    tasks = [await park(pool, pool, Journal().note, "x") for _ in range(3)]
    drain = asyncio.create_task(pool.drain(60))
    for task in tasks:
        with pytest.raises(Draining) as caught:
            await task
        assert caught.value.policy == "draining"
    gate.set()
    assert (await drain).submitted == 2


@seeded
async def test_growing_a_full_pool_admits_blocked_submitters(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool, occupied(pool):
        full(pool)
        task = await park(pool, pool, Journal().note, "x")
        await pool.resize(3)
        assert await (await task) == "x"


@seeded
async def test_a_blocked_submit_emits_blocked_once_and_submitted_once(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, backpressure=bounded(1), events=heard.events) as pool:
        async with occupied(pool):
            full(pool)
            task = await park(pool, pool, Journal().note, "x")
            (parked,) = heard.of(events.SubmitterParked)
            assert parked.blocked_submitters == 1
            assert len(heard.of(events.JobSubmitted)) == 2
        ticket = await task
        submitted = [event.job.id for event in heard.of(events.JobSubmitted)]
        assert submitted.count(ticket.id) == 1


# drop_oldest and ring_buffer


@pytest.mark.parametrize(
    ("policy", "reason", "name"),
    [
        (bounded(2, on_full="drop_oldest"), "drop_oldest_queue_full", "drop_oldest"),
        (ring_buffer(2), "ring_buffer_drop_oldest", "ring_buffer"),
    ],
    ids=str,
)
@seeded
async def test_the_oldest_waiting_job_is_rejected_and_the_new_one_taken(
    runtime: SeededRuntime, policy: Any, reason: str, name: str
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        async with occupied(pool):
            tickets = [await pool.submit(journal.note, letter) for letter in "abcd"]
            jobs = [ticket.snapshot() for ticket in tickets]
        assert [job.status.value for job in jobs] == ["rejected", "rejected", "queued", "queued"]
        for job in jobs[:2]:
            assert (job.rejection_reason, job.rejection_policy) == (reason, name)
            assert job.finished_at is not None
            assert job.started_at is None
        with pytest.raises(JobRejected) as caught:
            await tickets[0]
        assert (caught.value.reason, caught.value.policy) == (reason, name)
        assert caught.value.job_id == tickets[0].id
        assert caught.value.code == "PH-JOB-004"
        assert pool.snapshot().rejected == 2
        assert pool.snapshot().total == 5
    assert journal.ran == ["c", "d"]


@pytest.mark.parametrize("policy", EVICTING, ids=str)
@pytest.mark.parametrize("queue", [fifo(), lifo(), priority(), priority(aging=1)], ids=str)
@seeded
async def test_the_oldest_job_by_arrival_is_evicted_whatever_the_strategy(
    runtime: SeededRuntime, policy: Any, queue: Any
) -> None:
    async with Pool(runtime=runtime, backpressure=policy, queue=queue) as pool, occupied(pool):
        tickets = [
            await pool.with_options(priority=-n).submit(Journal().note, str(n)) for n in range(4)
        ]
        assert [ticket.status.value for ticket in tickets] == ["rejected"] * 2 + ["queued"] * 2


@pytest.mark.parametrize("policy", EVICTING, ids=str)
@seeded
async def test_a_running_job_is_never_evicted(runtime: SeededRuntime, policy: Any) -> None:
    async with Pool(runtime=runtime, max_concurrent=3, backpressure=policy) as pool:
        async with occupied(pool, 3) as running:
            for number in range(100):
                pool.submit_nowait(Journal().note, str(number))
                assert [ticket.status for ticket in running] == [Status.RUNNING] * 3
        assert [ticket.status for ticket in running] == [Status.COMPLETED] * 3
        assert pool.snapshot().rejected == 98


@pytest.mark.parametrize("policy", EVICTING, ids=str)
@seeded
async def test_blocked_and_scheduled_jobs_can_be_the_oldest(
    runtime: SeededRuntime, policy: Any
) -> None:
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        gate = asyncio.Event()
        turn = pool.with_options(session="s").submit_nowait(gate.wait)
        scheduled = pool.with_options(delay=60).submit_nowait(Journal().note, "x")
        blocked = pool.with_options(session="s").submit_nowait(Journal().note, "x")
        newer = [pool.submit_nowait(Journal().note, "x") for _ in range(2)]
        assert scheduled.status is Status.REJECTED
        assert blocked.status is Status.REJECTED
        gate.set()
        await asyncio.gather(turn, *newer)
        assert await pool.with_options(session="s").run(Journal().note, "free") == "free"


@pytest.mark.parametrize("policy", EVICTING, ids=str)
@seeded
async def test_callers_waiting_for_an_evicted_job_get_its_rejection_at_once(
    runtime: SeededRuntime, policy: Any
) -> None:
    async with Pool(runtime=runtime, backpressure=policy) as pool, occupied(pool):
        victim = await pool.submit(Journal().note, "victim")
        waiters = [asyncio.create_task(victim.result()) for _ in range(3)]
        await asyncio.sleep(1)
        start = runtime.monotonic()
        pool.submit_nowait(Journal().note, "a")
        pool.submit_nowait(Journal().note, "b")
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [JobRejected] * 3
        assert runtime.monotonic() == start


@pytest.mark.parametrize("policy", EVICTING, ids=str)
@seeded
async def test_submit_nowait_drops_as_submit_does(runtime: SeededRuntime, policy: Any) -> None:
    async with Pool(runtime=runtime, backpressure=policy) as pool, occupied(pool):
        tickets = [pool.submit_nowait(Journal().note, str(n)) for n in range(3)]
        assert [ticket.status.value for ticket in tickets] == ["rejected", "queued", "queued"]


@pytest.mark.parametrize(
    "policy",
    [ring_buffer(1), bounded(1, on_full="drop_oldest"), bounded(1, on_full="drop_newest")],
    ids=str,
)
@seeded
async def test_a_pool_resized_below_its_running_jobs_still_accepts_up_to_its_depth(
    runtime: SeededRuntime, policy: Any
) -> None:
    async with Pool(runtime=runtime, max_concurrent=4, backpressure=policy) as pool:
        async with occupied(pool, 4) as running:
            await pool.resize(1)
            ticket = await pool.submit(Journal().note, "x")
            assert ticket.status is Status.QUEUED
        assert [one.status for one in running] == [Status.COMPLETED] * 4
        assert await ticket == "x"


# The victim under a fair strategy


def fair(depth: int, kind: str) -> dict[str, Any]:
    policy = ring_buffer(depth) if kind == "ring" else bounded(depth, on_full="drop_oldest")
    return {"queue": fair_round_robin(), "backpressure": policy}


def submit(pool: Pool, keys: str) -> list[Ticket[str]]:
    return [pool.with_options(key=key).submit_nowait(Journal().note, key) for key in keys]


def left(tickets: list[Ticket[str]]) -> str:
    return "".join(one.snapshot().key for one in tickets if one.status is Status.QUEUED)


@pytest.mark.parametrize("kind", ["ring", "drop"])
@seeded
async def test_a_bursting_key_never_pushes_out_a_quiet_one(
    runtime: SeededRuntime, kind: str
) -> None:
    async with Pool(runtime=runtime, **fair(4, kind)) as pool, occupied(pool):
        tickets = submit(pool, "Q" + "B" * 100)
        assert left(tickets) == "QBBB"
        assert tickets[0].status is Status.QUEUED


@pytest.mark.parametrize("kind", ["ring", "drop"])
@seeded
async def test_the_oldest_job_of_the_key_with_the_most_waiting_jobs_is_evicted(
    runtime: SeededRuntime, kind: str
) -> None:
    async with Pool(runtime=runtime, **fair(5, kind)) as pool, occupied(pool):
        tickets = submit(pool, "ABBBA" + "C")
        assert [one.status.value for one in tickets] == [
            "queued", "rejected", "queued", "queued", "queued", "queued",
        ]  # fmt: skip


@pytest.mark.parametrize("kind", ["ring", "drop"])
@seeded
async def test_the_new_job_counts_for_its_key_when_choosing_an_eviction(
    runtime: SeededRuntime, kind: str
) -> None:
    async with Pool(runtime=runtime, **fair(4, kind)) as pool, occupied(pool):
        tickets = submit(pool, "AABB" + "B")
        assert left(tickets) == "AABB"
        assert tickets[2].status is Status.REJECTED


@pytest.mark.parametrize("kind", ["ring", "drop"])
@seeded
async def test_equally_crowded_keys_lose_the_oldest_job_among_them(
    runtime: SeededRuntime, kind: str
) -> None:
    async with Pool(runtime=runtime, **fair(4, kind)) as pool, occupied(pool):
        tickets = submit(pool, "BAAB" + "C")
        assert tickets[0].status is Status.REJECTED
        assert left(tickets) == "AABC"
    async with Pool(runtime=runtime, **fair(3, kind)) as pool, occupied(pool):
        tickets = submit(pool, "AAB" + "B")  # two each, the new job included: A is older
        assert tickets[0].status is Status.REJECTED
        assert left(tickets) == "ABB"


# drop_newest


@seeded
async def test_drop_newest_gives_the_new_job_an_id_and_rejects_it_at_once(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    policy = bounded(1, on_full="drop_newest")
    async with Pool(runtime=runtime, backpressure=policy) as pool, occupied(pool):
        kept = await pool.submit(journal.note, "kept")
        for ticket in (
            await pool.submit(journal.note, "dropped"),
            pool.submit_nowait(journal.note, "dropped"),
        ):
            job = ticket.snapshot()
            assert job.id
            assert job.id != kept.id
            assert job.status is Status.REJECTED
            assert job.rejection_reason == "drop_newest_queue_full"
            assert job.rejection_policy == "drop_newest"
            assert job.finished_at is not None
            with pytest.raises(JobRejected) as caught:
                await ticket
            assert caught.value.reason == "drop_newest_queue_full"
        assert kept.status is Status.QUEUED
        assert pool.snapshot().rejected == 2
        assert pool.snapshot().total == 4
    assert journal.ran == ["kept"]


# Refusals


@pytest.mark.parametrize(("policy", "kind", "code", "name"), REFUSING)
@seeded
async def test_a_refusal_is_raised_with_its_code_and_policy_and_nothing_is_recorded(
    runtime: SeededRuntime, policy: Any, kind: type[Refused], code: str, name: str
) -> None:
    heard = Heard()
    async with Pool(
        "narrow", runtime=runtime, max_concurrent=2, backpressure=policy, events=heard.events
    ) as pool:
        async with occupied(pool, 2):
            full(pool)
            before = pool.snapshot()
            with pytest.raises(kind) as caught:
                await pool.submit(Journal().note, "x")
            with pytest.raises(kind):
                pool.submit_nowait(Journal().note, "x")
            error = caught.value
            assert error.code == code
            assert error.policy == name
            assert isinstance(error, asyncio.QueueFull)
            assert isinstance(error, Refused)
            assert "'narrow'" in str(error)
            assert "2 running" in str(error)
            assert pool.snapshot() == before
        told = [(event.code, event.policy) for event in heard.of(events.SubmitRefused)]
        assert told == [(code, name)] * 2


@pytest.mark.parametrize(("policy", "kind", "code", "name"), REFUSING)
@seeded
async def test_a_refusal_carries_retry_after_once_it_can_be_estimated(
    runtime: SeededRuntime, policy: Any, kind: type[Refused], code: str, name: str
) -> None:
    async def job() -> None:
        await asyncio.sleep(4)

    async def refused(pool: Pool) -> float | None:
        async with occupied(pool):
            full(pool)
            with pytest.raises(kind) as caught:
                await pool.submit(job)
            return caught.value.retry_after

    async with Pool(runtime=runtime, backpressure=policy) as pool:
        assert await refused(pool) is None
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        await pool.run(job)
        assert await refused(pool) == pytest.approx(4)


@seeded
async def test_pool_full_after_a_wait_carries_retry_after(runtime: SeededRuntime) -> None:
    async def job() -> None:
        await asyncio.sleep(4)

    async with Pool(runtime=runtime, backpressure=bounded(1, wait_timeout=1)) as pool:
        await pool.run(job)
        async with occupied(pool):
            full(pool)
            with pytest.raises(PoolFull) as caught:
                await pool.submit(job)
            assert caught.value.retry_after == pytest.approx(4)
            with pytest.raises(PoolFull) as caught:
                pool.submit_nowait(job)
            assert caught.value.retry_after == pytest.approx(4)


@seeded
async def test_four_parallel_submits_on_an_idle_fail_fast_pool_of_four_are_all_accepted(
    runtime: SeededRuntime,
) -> None:
    gate = asyncio.Event()
    async with Pool(runtime=runtime, max_concurrent=4, backpressure=fail_fast()) as pool:
        tickets = await asyncio.gather(*(pool.submit(gate.wait) for _ in range(4)))
        with pytest.raises(NoFreeSlot):
            await pool.submit(gate.wait)
        assert pool.snapshot().queued == 0
        gate.set()
        await wait(tickets)
        assert await pool.run(Journal().note, "again") == "again"


@seeded
async def test_fail_fast_takes_four_at_a_time_round_after_round(runtime: SeededRuntime) -> None:
    async def job() -> None:
        await asyncio.sleep(1)

    async with Pool(runtime=runtime, max_concurrent=4, backpressure=fail_fast()) as pool:
        for _ in range(5):
            tickets = await asyncio.gather(*(pool.submit(job) for _ in range(4)))
            with pytest.raises(NoFreeSlot):
                pool.submit_nowait(job)
            await wait(tickets)
        assert pool.snapshot().completed == 20


@seeded
async def test_fail_fast_keeps_no_queue_even_when_paused(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2, backpressure=fail_fast()) as pool:
        pool.pause()
        for _ in range(2):
            pool.submit_nowait(Journal().note, "x")
        with pytest.raises(NoFreeSlot):
            pool.submit_nowait(Journal().note, "x")
        pool.resume()


# By name and by text


@pytest.mark.parametrize(
    ("name", "made"),
    [("unbounded", unbounded()), ("queue", unbounded()), ("fail_fast", fail_fast())],
)
@seeded
async def test_a_policy_without_a_depth_may_be_given_by_name(
    runtime: SeededRuntime, name: str, made: object
) -> None:
    async with Pool(runtime=runtime, backpressure=name) as pool:
        assert pool.snapshot().config.backpressure == made


def test_the_namespace_holds_every_policy() -> None:
    assert Backpressure.queue() == Backpressure.unbounded() == unbounded()
    assert Backpressure.bounded(3, "drop_newest") == bounded(3, on_full="drop_newest")
    assert Backpressure.bounded(3, wait_timeout=2) == bounded(3, "block_submitter", 2)
    assert Backpressure.fail_fast() == fail_fast()
    assert Backpressure.ring_buffer(4) == ring_buffer(4)
