"""max_per_key: how many jobs of one key run at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from poolhand import Pool, Retry, fair_round_robin, fifo, lifo, priority, wait
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Journal, occupied, seeded

STRATEGIES = [fifo(), lifo(), priority(), priority(aging=1), fair_round_robin()]


@pytest.mark.parametrize("queue", STRATEGIES, ids=str)
@seeded
async def test_at_most_max_per_key_jobs_of_a_key_run_under_every_strategy(
    runtime: SeededRuntime, queue: Any
) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: list[str] = []

    async def job(key: str) -> None:
        running[key] += 1
        most[key] = max(most[key], running[key])
        await asyncio.sleep(runtime.random.choice([0, 0.1, 1]))
        running[key] -= 1
        done.append(key)

    async with Pool(runtime=runtime, max_concurrent=5, max_per_key=2, queue=queue) as pool:
        for _ in range(60):
            key = runtime.random.choice("AAAABC")
            level = runtime.random.randrange(3)
            await pool.with_options(key=key, priority=level).submit(job, key)
            if runtime.random.random() < 0.2:
                await asyncio.sleep(0.3)
    assert len(done) == 60
    assert most["A"] == 2
    assert max(most.values()) == 2


@seeded
async def test_a_capped_key_leaves_the_other_slots_to_others(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=3, max_per_key=1) as pool:
        gate = asyncio.Event()
        tickets = [await pool.with_options(key="A").submit(gate.wait) for _ in range(5)]
        assert [ticket.status for ticket in tickets] == [Status.RUNNING] + [Status.BLOCKED] * 4
        assert await pool.with_options(key="B").run(Journal().note, "b") == "b"
        gate.set()
        await wait(tickets)


@seeded
async def test_a_job_that_waits_for_its_key_explains_why(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=3, max_per_key=1) as pool:
        gate = asyncio.Event()
        view = pool.with_options(key="A")
        first = await view.submit(gate.wait)
        second = await view.submit(Journal().note, "x")
        job = second.snapshot()
        assert (job.status, job.blocked_on) == (Status.BLOCKED, "key")
        assert (pool.snapshot().blocked, pool.snapshot().queued) == (1, 0)
        gate.set()
        done = await wait(second)
        assert (done.status, done.blocked_on) == (Status.COMPLETED, None)
        await first


@pytest.mark.parametrize(
    ("queue", "order"),
    [
        (fifo(), "abcd"),
        (lifo(), "dcba"),
        (priority(), "dbac"),
        (fair_round_robin(), "abcd"),
    ],
    ids=str,
)
@seeded
async def test_inside_a_capped_key_the_strategy_decides(
    runtime: SeededRuntime, queue: Any, order: str
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, max_concurrent=2, max_per_key=1, queue=queue) as pool:
        gate = asyncio.Event()
        first = await pool.with_options(key="A").submit(gate.wait)
        tickets = [
            await pool.with_options(key="A", priority=level).submit(journal.note, name)
            for name, level in [("a", 0), ("b", 3), ("c", 0), ("d", 5)]
        ]
        gate.set()
        await wait([first, *tickets])
    assert "".join(journal.ran) == order


@seeded
async def test_with_a_key_cap_an_urgent_job_overtakes_queued_jobs_of_lower_priority(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, max_concurrent=1, max_per_key=1) as pool:
        async with occupied(pool):
            view = pool.with_options(key="A")
            low = await view.with_options(priority=1).submit(journal.note, "low")
            other = await pool.with_options(key="B", priority=5).submit(journal.note, "other")
            high = await view.with_options(priority=9).submit(journal.note, "high")
        await wait([low, other, high])
    assert journal.ran == ["high", "other", "low"]


@seeded
async def test_the_field_of_the_strategy_is_the_capped_key(runtime: SeededRuntime) -> None:
    queue = fair_round_robin("tenant_id")
    async with Pool(runtime=runtime, max_concurrent=4, max_per_key=1, queue=queue) as pool:
        gate = asyncio.Event()
        tickets = [
            await pool.with_options(tenant_id=tenant, key=key).submit(gate.wait)
            for tenant, key in [("t", "1"), ("t", "2"), ("u", "1")]
        ]
        statuses = [ticket.status.value for ticket in tickets]
        assert statuses == ["running", "blocked", "running"]
        gate.set()
        await wait(tickets)


@seeded
async def test_without_max_per_key_one_key_may_take_every_slot(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=4) as pool:
        gate = asyncio.Event()
        tickets = [await pool.with_options(key="A").submit(gate.wait) for _ in range(4)]
        assert [ticket.status for ticket in tickets] == [Status.RUNNING] * 4
        gate.set()
        await wait(tickets)


@pytest.mark.parametrize("end", ["cancel", "expire"])
@seeded
async def test_a_cancelled_or_expired_waiting_job_passes_its_permit_on(
    runtime: SeededRuntime, end: str
) -> None:
    async with Pool(runtime=runtime, max_concurrent=1, max_per_key=1, queue=fifo()) as pool:
        async with occupied(pool):
            view = pool.with_options(key="A")
            first = await view.with_options(expires=5).submit(Journal().note, "first")
            second = await view.submit(Journal().note, "second")
            assert (first.status, second.status) == (Status.QUEUED, Status.BLOCKED)
            if end == "cancel":
                await first.cancel()
            else:
                await wait(first)
            assert second.status is Status.QUEUED
        assert await second == "second"


@seeded
async def test_a_blocked_job_can_be_cancelled(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, max_concurrent=2, max_per_key=1) as pool:
        gate = asyncio.Event()
        view = pool.with_options(key="A")
        first = await view.submit(gate.wait)
        tickets = [await view.submit(journal.note, name) for name in "abc"]
        assert await tickets[1].cancel()
        gate.set()
        await wait([first, *tickets])
    assert journal.ran == ["a", "c"]


@seeded
async def test_a_job_that_waits_for_its_retry_holds_no_permit(runtime: SeededRuntime) -> None:
    ran: list[str] = []

    async def flaky() -> None:
        ran.append("flaky")
        if len(ran) == 1:
            raise LookupError

    async def other() -> None:
        ran.append("other")

    async with Pool(runtime=runtime, max_concurrent=2, max_per_key=1) as pool:
        view = pool.with_options(key="A")
        retry = Retry(attempts=2, first=60, jitter=0)
        first = await view.with_options(retry=retry).submit(flaky)
        await wait([await view.submit(other), first])
    assert ran == ["flaky", "other", "flaky"]


@seeded
async def test_a_retry_without_a_delay_needs_a_permit_again(runtime: SeededRuntime) -> None:
    ran: list[int] = []

    async def flaky() -> int:
        ran.append(1)
        if len(ran) < 3:
            raise LookupError
        return len(ran)

    async with Pool(
        runtime=runtime, max_per_key=1, retry=Retry(attempts=3, first=0, jitter=0)
    ) as pool:
        assert await pool.with_options(key="A").run(flaky) == 3
        assert await pool.with_options(key="A").run(Journal().note, "next") == "next"


@seeded
async def test_sessions_and_key_caps_hold_together(runtime: SeededRuntime) -> None:
    inside: Counter[str] = Counter()
    order: dict[str, list[int]] = {}

    async def job(key: str, session: str, number: int) -> None:
        order.setdefault(session, []).append(number)
        for name in (key, session):
            inside[name] += 1
        assert inside[key] <= 2
        assert inside[session] == 1
        await asyncio.sleep(runtime.random.choice([0, 0.5]))
        for name in (key, session):
            inside[name] -= 1

    async with Pool(runtime=runtime, max_concurrent=4, max_per_key=2) as pool:
        for number in range(50):
            key, session = runtime.random.choice("AB"), runtime.random.choice("stu")
            view = pool.with_options(key=key, session=session, priority=number % 3)
            await view.submit(job, key, session, number)
    assert pool.snapshot().completed == 50
    assert all(numbers == sorted(numbers) for numbers in order.values())


@seeded
async def test_aging_raises_a_job_that_was_overtaken_by_urgent_ones(runtime: SeededRuntime) -> None:
    journal = Journal()

    async def job(name: str) -> None:
        await journal.note(name)
        await asyncio.sleep(1)

    queue = priority(aging=10)
    async with Pool(runtime=runtime, queue=queue, max_per_key=1, drain_timeout=1000) as pool:
        await pool.submit(job, "first")
        await pool.submit(job, "lesser")
        for number in range(40):
            await pool.with_options(priority=2).submit(job, f"urgent{number}")
            await asyncio.sleep(1)
    assert 15 <= journal.ran.index("lesser") <= 25


@seeded
async def test_a_large_key_cap_serves_the_highest_priorities_first(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, max_per_key=50) as pool, occupied(pool):
        for number in range(60):
            await pool.with_options(priority=number % 7).submit(journal.note, f"{number % 7}")
    assert journal.ran == sorted(journal.ran, reverse=True)


@seeded
async def test_jobs_without_a_key_are_not_capped(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=3, max_per_key=1) as pool:
        gate = asyncio.Event()
        tickets = [await pool.submit(gate.wait) for _ in range(4)]
        assert pool.snapshot().active == 3
        assert tickets[3].status is Status.QUEUED
        await tickets[3].cancel()
        gate.set()
        await wait(tickets)
        assert pool.snapshot().blocked == 0
