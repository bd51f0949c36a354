"""Pausing and resuming a pool."""

from __future__ import annotations

import asyncio

from poolhand import Pool, Retry, bounded, wait
from poolhand.observe.events import PoolPaused, PoolResumed
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Heard, park, seeded


@seeded
async def test_a_paused_pool_starts_nothing_and_takes_everything(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(max_concurrent=2, runtime=runtime, events=heard.events) as pool:
        running = await pool.submit(asyncio.sleep, 1, result="goes on")
        pool.pause()
        waiting = [await pool.submit(asyncio.sleep, 1, result="later") for _ in range(3)]
        assert await running == "goes on"
        await asyncio.sleep(100)
        seen = pool.snapshot()
        assert (seen.paused, seen.active, seen.queued) == (True, 0, 3)
        assert (await waiting[0].explain()).reason == "paused"
        began = runtime.monotonic()
        pool.resume()
        assert not pool.snapshot().paused
        assert [await ticket for ticket in waiting] == ["later"] * 3
        assert runtime.monotonic() <= began + 2.1
    assert len(heard.of(PoolPaused)) == len(heard.of(PoolResumed)) == 1


@seeded
async def test_pausing_and_resuming_twice_is_harmless(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        pool.resume()
        pool.pause()
        pool.pause()
        ticket = await pool.submit(asyncio.sleep, 0, result="done")
        await asyncio.sleep(1)
        assert ticket.status is Status.QUEUED
        pool.resume()
        pool.resume()
        assert await ticket == "done"


@seeded
async def test_jobs_that_become_due_in_a_pause_wait_for_its_end(runtime: SeededRuntime) -> None:
    attempts: list[float] = []

    async def flaky() -> str:
        attempts.append(runtime.monotonic())
        if len(attempts) == 1:
            raise LookupError
        return "done"

    async with Pool(max_concurrent=2, retry=Retry(first=1), runtime=runtime) as pool:
        retried = await pool.submit(flaky)
        delayed = await pool.with_options(delay=2).submit(asyncio.sleep, 0, result="due")
        await asyncio.sleep(0.1)
        pool.pause()
        await asyncio.sleep(50)
        assert {retried.status, delayed.status} == {Status.QUEUED}
        pool.resume()
        assert (await retried, await delayed) == ("done", "due")
    assert len(attempts) == 2


@seeded
async def test_a_waiting_job_expires_in_a_pause(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        pool.pause()
        ticket = await pool.with_options(expires=2).submit(asyncio.sleep, 0)
        assert (await wait(ticket)).status is Status.EXPIRED
        pool.resume()


@seeded
async def test_a_job_can_be_cancelled_in_a_pause(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        running = await pool.submit(asyncio.sleep, 60)
        pool.pause()
        waiting = await pool.submit(asyncio.sleep, 60)
        assert await waiting.cancel()
        assert await running.cancel()
        pool.resume()


@seeded
async def test_bounds_hold_in_a_pause(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=2, backpressure=bounded(1), runtime=runtime) as pool:
        pool.pause()
        first = await pool.submit(asyncio.sleep, 0, result=1)
        parked = await park(pool, pool, asyncio.sleep, 0, 2)
        seen = pool.snapshot()
        assert (seen.queued, seen.blocked_submitters) == (1, 1)
        pool.resume()
        assert (await first, await (await parked)) == (1, 2)


@seeded
async def test_a_paused_pool_can_be_drained(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    pool.pause()
    ticket = await pool.submit(asyncio.sleep, 0)
    report = await pool.drain(5)
    assert report.seconds <= 6
    assert ticket.status.terminal


@seeded
async def test_a_pool_resumed_while_it_drains_finishes_its_work(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    pool.pause()
    ticket = await pool.submit(asyncio.sleep, 1, result="done")
    draining = asyncio.create_task(pool.drain(60))
    await asyncio.sleep(5)
    pool.resume()
    assert (await draining).completed == 1
    assert await ticket == "done"
