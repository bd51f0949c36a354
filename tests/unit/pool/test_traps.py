"""Known faults of systems of this kind, one test each."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from poolhand import Pool, Ticket, bounded, fail_fast, fair_round_robin, ring_buffer, wait
from poolhand.errors import Draining, JobCancelled, JobFailed, JobRejected, NoFreeSlot
from poolhand.observe.events import Events
from poolhand.rules.queue.backpressure import Policy
from poolhand.settings import Autoscale
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import large, park, seeded


@seeded
async def test_trap_a_stop_sentinel_stops_the_wrong_worker(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=4, runtime=runtime) as pool:
        busy = [await pool.submit(asyncio.sleep, 5, result=number) for number in range(4)]
        await pool.resize(1)
        assert [await ticket for ticket in busy] == list(range(4))
        assert len(pool.snapshot().workers) == 1
        assert await pool.run(asyncio.sleep, 0, result="still served") == "still served"


@seeded
async def test_trap_a_drain_puts_sentinels_into_a_full_queue_and_hangs(
    runtime: SeededRuntime,
) -> None:
    pool = await Pool(backpressure=bounded(1), runtime=runtime).start()
    tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(2)]
    parked = await park(pool, pool, asyncio.sleep, 1)
    report = await pool.drain(60)
    assert report.completed == 2
    assert report.seconds <= 3
    assert {ticket.status for ticket in tickets} == {Status.COMPLETED}
    with pytest.raises(Draining):
        await parked


@seeded
async def test_trap_idle_workers_retire_together(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=8, runtime=runtime) as pool:
        await asyncio.gather(*(pool.run(asyncio.sleep, 1) for _ in range(8)))
        await pool.resize(3)
        assert len(pool.snapshot().workers) == 3
        tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(3)]
        assert pool.stats().in_flight == 3
        await wait(tickets)


@seeded
async def test_trap_all_idle_workers_retire_together_below_the_minimum(
    runtime: SeededRuntime,
) -> None:
    # As aggressive as possible: one idle sample, all at once, no cooldown.
    scale = Autoscale(min=3, max=20, interval=1, step=1.0, cooldown=0, idle_after=1)
    sizes: list[int] = []
    events = Events()
    events.subscribe(lambda _: sizes.append(len(pool.snapshot().workers)))
    async with Pool(autoscale=scale, events=events, runtime=runtime) as pool:
        for _ in range(3):
            await wait([await pool.submit(asyncio.sleep, 9) for _ in range(60)])
            await asyncio.sleep(10)
            assert len(pool.snapshot().workers) == 3
            tickets = [await pool.submit(asyncio.sleep, 0.5) for _ in range(3)]
            assert pool.stats().in_flight == 3
            await wait(tickets)
    assert (min(sizes), max(sizes)) == (3, 20)


@seeded
async def test_trap_the_heartbeat_moves_only_between_jobs(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=2, stale_after=120, runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 3600)
        for _ in range(59):
            await asyncio.sleep(60)
            seen = pool.health()
            assert seen.stale_workers == ()
            assert {worker.last_heartbeat_ago for worker in seen.workers.values()} == {0}
        assert ticket.status is Status.RUNNING
        await wait(ticket)


@seeded
async def test_trap_a_result_set_on_a_cancelled_future_kills_the_worker(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 1, result="done")
        callers = [asyncio.create_task(ticket.result()) for _ in range(3)]
        await asyncio.sleep(0.5)
        callers[0].cancel()
        assert await callers[1] == "done"
        assert await pool.run(asyncio.sleep, 0, result="alive") == "alive"
        await asyncio.gather(*callers, return_exceptions=True)


@seeded
async def test_trap_a_caller_cancelled_in_the_moment_its_job_ends(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 1, result="done")
        caller = asyncio.create_task(ticket.result())
        await asyncio.sleep(1)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert await ticket == "done"
        assert await pool.run(asyncio.sleep, 0, result="alive") == "alive"


@seeded
async def test_trap_a_cancelled_error_raised_by_the_job_kills_the_worker(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        raise asyncio.CancelledError("mine")

    async def inner_task_cancelled() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    async with Pool(runtime=runtime) as pool:
        for fn in (job, inner_task_cancelled):
            with pytest.raises(JobCancelled):
                await pool.run(fn)
        assert pool.snapshot().cancelled == 2
        assert await pool.run(asyncio.sleep, 0, result="alive") == "alive"


@seeded
async def test_trap_wait_for_swallows_a_cancellation(runtime: SeededRuntime) -> None:
    # A caller that is cancelled when its result arrives must stay cancelled.
    went_on: list[str] = []

    async def call() -> None:
        await ticket.result(timeout=5)
        await asyncio.sleep(10)
        went_on.append("never told")

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 1)
        caller = asyncio.create_task(call())
        await asyncio.sleep(1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    assert went_on == []


@seeded
async def test_trap_counters_call_waiting_work_in_flight(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(7)]
        tickets.append(await pool.with_options(delay=3).submit(asyncio.sleep, 1))
        stats = pool.stats()
        assert (stats.in_flight, stats.queue_depth, stats.submitted) == (2, 6, 8)
        assert pool.size() == 8
        await wait(tickets)


@seeded
async def test_trap_a_callers_cancellation_is_counted_as_a_failed_job(
    runtime: SeededRuntime,
) -> None:
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        impatient = asyncio.create_task(pool.run(asyncio.sleep, 2))
        view = pool.with_options(cancel_with_caller=True)
        strict = asyncio.create_task(view.run(asyncio.sleep, 2))
        await asyncio.sleep(1)
        impatient.cancel()
        strict.cancel()
        await asyncio.gather(impatient, strict, return_exceptions=True)
        await asyncio.sleep(5)
        seen = pool.snapshot()
        assert (seen.failed, seen.cancelled, seen.completed) == (0, 1, 1)
        assert pool.dead() == []
        assert sum(worker.failed for worker in seen.workers.values()) == 0


@seeded
async def test_trap_submit_after_drain_hangs(runtime: SeededRuntime) -> None:
    for backpressure in (bounded(1), bounded(1, "drop_oldest"), fail_fast(), ring_buffer(1)):
        pool = await Pool(backpressure=backpressure, runtime=runtime).start()
        await pool.drain()
        began = runtime.monotonic()
        with pytest.raises(Draining):
            await pool.submit(asyncio.sleep, 0)
        assert runtime.monotonic() == began


@seeded
@large
async def test_trap_fire_and_forget_results_are_lost(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        for number in range(5):
            await pool.submit(asyncio.sleep, 1, result=number)
            gc.collect()
        await asyncio.sleep(20)
        kept = {job.result for job in pool.snapshot().jobs}
        assert kept == set(range(5))
        ticket = await pool.submit(asyncio.sleep, 0, result="later")
        await asyncio.sleep(5)
        assert await ticket == "later"


async def test_trap_tasks_are_garbage_collected_without_a_reference() -> None:
    # On asyncio's own loop, which holds tasks weakly.
    ends: list[int] = []

    class Turn:
        """Wakes its waiter by a call that holds only a weak reference."""

        def __init__(self, future: asyncio.Future[None]) -> None:
            self.future = weakref.ref(future)

        def __call__(self) -> None:
            future = self.future()
            if future is not None and not future.done():
                future.set_result(None)

    async def job(number: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            future = loop.create_future()
            turn = Turn(future)
            loop.call_later(0.001, turn)
            await future
        ends.append(number)

    async with Pool(max_concurrent=10) as pool:
        for number in range(30):
            await pool.submit(job, number)
        while len(ends) < 30:
            gc.collect()
            await asyncio.sleep(0)
    assert sorted(ends) == list(range(30))


@seeded
async def test_trap_the_bulk_tenant_takes_every_second_turn(runtime: SeededRuntime) -> None:
    order: list[str] = []

    async def job(tenant: str) -> None:
        order.append(tenant)

    async with Pool(queue=fair_round_robin("tenant_id"), runtime=runtime) as pool:
        pool.pause()
        for tenant in ["bulk"] * 30 + ["a", "b", "c"] * 3:
            await pool.with_options(tenant_id=tenant).submit(job, tenant)
        pool.resume()
        await pool.drain()
    assert order == ["bulk", "a", "b", "c"] * 3 + ["bulk"] * 27


@seeded
async def test_trap_evictions_starve_the_bulk_tenant(runtime: SeededRuntime) -> None:
    order: list[str] = []

    async def job(tenant: str) -> None:
        order.append(tenant)

    policy = ring_buffer(6)
    async with Pool(queue=fair_round_robin(), backpressure=policy, runtime=runtime) as pool:
        pool.pause()
        for tenant in ["bulk"] * 50 + ["new"] * 3:
            await pool.with_options(key=tenant).submit(job, tenant)
        pool.resume()
        await pool.drain()
    assert order == ["bulk", "new"] * 3


@pytest.mark.parametrize(
    ("policy", "dropped"),
    [
        (bounded(1, "drop_oldest"), 0),
        (bounded(1, "drop_newest"), 1),
        (ring_buffer(1), 0),
    ],
    ids=str,
)
@seeded
async def test_trap_a_dropped_job_poisons_its_idempotency_key(
    runtime: SeededRuntime, policy: Policy, dropped: int
) -> None:
    async with Pool(backpressure=policy, runtime=runtime) as pool:
        await pool.submit(asyncio.sleep, 1)
        keyed = pool.with_options(idempotency_key="once")
        others: list[Ticket[Any]] = [
            await (keyed if not dropped else pool).submit(asyncio.sleep, 1)
        ]
        others.append(await (keyed if dropped else pool).submit(asyncio.sleep, 1))
        victim = others[dropped]
        with pytest.raises(JobRejected):
            await victim
        await asyncio.sleep(5)
        again = await keyed.submit(asyncio.sleep, 1, result="ran after all")
        assert again.id != victim.id
        assert await again == "ran after all"


@seeded
async def test_trap_fail_fast_refuses_while_slots_are_free(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=4, backpressure=fail_fast(), runtime=runtime) as pool:
        for _ in range(3):
            tickets = await asyncio.gather(*(pool.submit(asyncio.sleep, 1) for _ in range(4)))
            with pytest.raises(NoFreeSlot):
                await pool.submit(asyncio.sleep, 1)
            await wait(tickets)


@seeded
@large
async def test_trap_history_grows_without_bound(runtime: SeededRuntime) -> None:
    class Big:
        pass

    kept: list[weakref.ref[Big]] = []

    async def job() -> Big:
        big = Big()
        kept.append(weakref.ref(big))
        return big

    async def broken() -> None:
        big = Big()
        kept.append(weakref.ref(big))
        raise LookupError

    async with Pool(history=5, runtime=runtime) as pool:
        for number in range(100):
            await wait(await pool.submit(broken if number % 2 else job))
        runtime.loop.sweep()
        gc.collect()
        assert pool.snapshot().total == 100
        assert len(pool.snapshot().jobs) == 5
        assert len(pool.dead()) <= 5
        assert sum(one() is not None for one in kept) <= 11


def a_generator_step() -> object:
    return next(iter(()))


async def an_async_step() -> object:
    return next(iter(()))


@pytest.mark.parametrize("fn", [a_generator_step, an_async_step])
@pytest.mark.parametrize("run_in", [None, "loop"])
@seeded
async def test_trap_stop_iteration(
    runtime: SeededRuntime, fn: Callable[[], object], run_in: str | None
) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.with_options(run_in=run_in).submit(fn)
        with pytest.raises(JobFailed) as raised:
            await ticket
        assert isinstance(raised.value.__cause__, StopIteration)
        assert await pool.run(asyncio.sleep, 0, result="alive") == "alive"
