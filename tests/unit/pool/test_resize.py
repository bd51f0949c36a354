"""Resizing a pool while it works."""

from __future__ import annotations

import asyncio

import pytest

from poolhand import Pool, UsageError, bounded, fail_fast, wait
from poolhand.errors import NoFreeSlot
from poolhand.observe.events import PoolResized
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Heard, large, park, seeded, until


@seeded
async def test_a_growing_pool_starts_waiting_jobs_at_once(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events) as pool:
        tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(6)]
        assert pool.stats().in_flight == 1
        await pool.resize(4)
        assert (pool.stats().in_flight, pool.stats().queue_depth) == (4, 2)
        assert sorted(pool.snapshot().workers) == [f"worker-{n:03d}" for n in range(4)]
        await wait(tickets)
    (resized,) = heard.of(PoolResized)
    assert (resized.before, resized.after) == (1, 4)


@seeded
async def test_a_pool_that_shrinks_cancels_nothing_and_starts_nothing_until_it_fits(
    runtime: SeededRuntime,
) -> None:
    active: list[int] = []

    async def job() -> None:
        await asyncio.sleep(1)

    async def late() -> None:
        active.append(pool.stats().in_flight)
        await asyncio.sleep(1)

    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        early = [await pool.submit(job) for _ in range(5)]
        waiting = [await pool.submit(late) for _ in range(6)]
        await pool.resize(2)
        seen = pool.snapshot()
        assert (seen.active, seen.resizing_to) == (5, 2)
        assert seen.active + seen.stuck <= seen.max_concurrent
        jobs = await wait([*early, *waiting])
        assert {one.status for one in jobs} == {Status.COMPLETED}
        seen = pool.snapshot()
        assert (seen.max_concurrent, seen.resizing_to, seen.cancelled) == (2, None, 0)
    assert max(active) <= 2


@seeded
async def test_surplus_slots_retire_when_they_become_idle(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=4, runtime=runtime) as pool:
        short = [await pool.submit(asyncio.sleep, 1) for _ in range(3)]
        long = await pool.submit(asyncio.sleep, 5)
        await pool.resize(2)
        await wait(short)
        assert long.status is Status.RUNNING
        await wait(long)
        assert len(pool.snapshot().workers) == 2
        tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(6)]
        assert pool.stats().in_flight == 2
        await wait(tickets)


@seeded
async def test_a_stuck_slot_counts_through_a_resize(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async with Pool(max_concurrent=2, timeout=1, runtime=runtime) as pool:
        await wait(await pool.submit(stubborn))
        await pool.resize(1)
        behind = await pool.submit(asyncio.sleep, 0)
        await asyncio.sleep(1)
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.max_concurrent) == (0, 1, 1)
        assert behind.status is Status.QUEUED
        await pool.resize(2)
        await behind
        gate.set()


@seeded
async def test_a_growing_pool_admits_blocked_submitters(runtime: SeededRuntime) -> None:
    async with Pool(backpressure=bounded(1), runtime=runtime) as pool:
        for _ in range(2):
            await pool.submit(asyncio.sleep, 5)
        parked = [await park(pool, pool, asyncio.sleep, 5) for _ in range(3)]
        began = runtime.monotonic()
        await pool.resize(4)
        await wait([await task for task in parked[:2]], timeout=0)
        assert (await parked[2]).status in (Status.QUEUED, Status.RUNNING)
        assert runtime.monotonic() == began
        assert (pool.stats().in_flight, pool.stats().queue_depth) == (4, 1)


@seeded
async def test_fail_fast_uses_the_new_size(runtime: SeededRuntime) -> None:
    async with Pool(backpressure=fail_fast(), runtime=runtime) as pool:
        await pool.submit(asyncio.sleep, 5)
        with pytest.raises(NoFreeSlot):
            await pool.submit(asyncio.sleep, 5)
        await pool.resize(2)
        await pool.submit(asyncio.sleep, 5)
        await pool.resize(1)
        with pytest.raises(NoFreeSlot):
            await pool.submit(asyncio.sleep, 5)


@seeded
async def test_constant_resizing_loses_no_job(runtime: SeededRuntime) -> None:
    running = 0
    total = 0

    async def job() -> None:
        nonlocal running, total
        running += 1
        total += 1
        await asyncio.sleep(runtime.random.random())
        running -= 1

    async with Pool(runtime=runtime) as pool:
        tickets = [await pool.submit(job) for _ in range(200)]
        done = asyncio.create_task(wait(tickets))
        while not done.done():
            await pool.resize(runtime.random.randint(1, 9))
            await asyncio.sleep(0.1)
            seen = pool.snapshot()
            assert running == seen.active <= seen.max_concurrent <= 9
        assert {one.status for one in await done} == {Status.COMPLETED}
    assert total == 200


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", None, True])
@seeded
async def test_a_senseless_size_is_refused_and_changes_nothing(
    runtime: SeededRuntime, size: int
) -> None:
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        with pytest.raises(UsageError, match="resize"):
            await pool.resize(size)
        assert pool.snapshot().max_concurrent == 2


@seeded
async def test_a_draining_pool_can_be_resized_to_get_done_sooner(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    for _ in range(10):
        await pool.submit(asyncio.sleep, 1)
    draining = asyncio.create_task(pool.drain(60))
    await asyncio.sleep(0.5)
    await pool.resize(9)
    report = await draining
    assert report.completed == 10
    assert report.seconds <= 2


@seeded
async def test_slots_whose_tasks_all_vanished_are_recovered_at_once(
    runtime: SeededRuntime,
) -> None:
    async with Pool(max_concurrent=4, runtime=runtime) as pool:
        tickets = [pool.submit_nowait(asyncio.sleep, 1) for _ in range(4)]
        workers = [one for one in asyncio.all_tasks() if one.get_name().startswith(pool.name)]
        for task in workers:
            task.cancel()
        await until(lambda: all(task.done() for task in workers))
        await pool.resize(1)
        began = runtime.monotonic()
        report = await pool.drain(30)
        assert runtime.monotonic() - began < 1
        assert (report.cancelled, report.stuck) == (4, 0)
        assert [ticket.status for ticket in tickets] == [Status.CANCELLED] * 4


@seeded
@large
async def test_a_pool_with_very_many_slots_is_resized_in_one_step(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=100_000, runtime=runtime) as pool:
        await pool.resize(10)
        assert len(pool.health().workers) == 10
        await pool.resize(100_000)
        assert list(pool.health().workers)[-1] == "worker-99999"
