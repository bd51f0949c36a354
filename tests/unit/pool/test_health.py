"""Health of a pool: its figures, and which workers are busy, idle or stale."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from poolhand import Pool, Ticket, bounded, fail_fast, ring_buffer, wait
from poolhand.pool.engine.views import PoolHealth, WorkerHealth
from poolhand.pool.slots.process_parent import Child
from poolhand.rules.queue.backpressure import Policy, unbounded
from poolhand.runtime import Runtime
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import occupied, seeded, until

MINUTE = 60.0


class Still(Runtime):
    """A runtime whose clock moves only when the test moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def monotonic(self) -> float:
        return self.time


class Elsewhere(threading.Thread):
    """Calls from another thread while this one blocks its loop, and keeps the result."""

    def __init__(self, call: Callable[[], PoolHealth]) -> None:
        super().__init__()
        self.call = call
        self.found: PoolHealth | None = None

    def run(self) -> None:
        self.found = self.call()

    def wait_for_it(self) -> None:
        self.start()
        self.join()


class Labour:
    """A job in a thread that works on demand and hangs in between."""

    def __init__(self) -> None:
        self._turns = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._over = False

    def __call__(self) -> None:
        while self._turns.acquire() and not self._over:
            sum(range(10_000))
            self._done.release()

    def work(self) -> None:
        """Let it work for a moment, and wait until that is done."""
        self._turns.release()
        self._done.acquire()

    def end(self) -> None:
        self._over = True
        self._turns.release()


@asynccontextmanager
async def labouring(pool: Pool) -> AsyncIterator[Labour]:
    """Run a job in a thread inside a block."""
    labour = Labour()
    ticket = await pool.submit(labour)
    try:
        yield labour
    finally:
        # Always: while its clock stands still, the pool would wait for the job without end.
        labour.end()
        await wait(ticket)


# The figures


@seeded
async def test_every_figure_is_there(runtime: SeededRuntime) -> None:
    async def broken() -> None:
        await asyncio.sleep(1)
        raise LookupError

    policy = bounded(4)
    async with Pool(max_concurrent=3, backpressure=policy, runtime=runtime) as pool:
        await wait([await pool.submit(asyncio.sleep, 2) for _ in range(2)])
        await wait(await pool.submit(broken))
        await pool.with_options(delay=1).submit(asyncio.sleep, 0)
        async with occupied(pool, 2) as busy:
            seen = pool.health()
            jobs = {worker.job for worker in seen.workers.values()}
            assert jobs == {None, *(ticket.id for ticket in busy)}
    workers = seen.workers.values()
    assert list(seen.workers) == ["worker-000", "worker-001", "worker-002"]
    assert sorted(worker.state for worker in workers) == ["busy", "busy", "idle"]
    assert (seen.pool_size, seen.queue_size, seen.queue_capacity) == (3, 1, 4)
    assert (seen.total_completed, seen.total_failed, seen.stale_workers) == (2, 1, ())
    assert seen.utilization == 2 / 3
    assert sum(worker.completed for worker in workers) == 2
    assert sum(worker.failed for worker in workers) == 1
    assert {worker.last_heartbeat_ago for worker in workers} == {0.0}
    assert not any(worker.stuck for worker in workers)


@pytest.mark.parametrize(
    ("policy", "capacity"),
    [(unbounded(), None), (bounded(7), 7), (ring_buffer(7), 7), (fail_fast(), 0)],
    ids=str,
)
@seeded
async def test_a_pool_without_workers_has_a_health_too(
    runtime: SeededRuntime, policy: Policy, capacity: int | None
) -> None:
    pool = Pool(backpressure=policy, runtime=runtime)
    assert pool.health() == PoolHealth(0, 0, capacity, 0.0, 0, 0, (), {})
    await pool.start()
    await pool.run(asyncio.sleep, 2)
    assert (pool.health().pool_size, pool.health().utilization) == (1, 0.0)
    await pool.drain()
    worker = WorkerHealth("stopped", 1, 0, 2.0, 0.0, None)
    assert pool.health() == PoolHealth(0, 0, capacity, 0.0, 1, 0, (), {"worker-000": worker})


@seeded
async def test_averages_are_over_all_finished_jobs(runtime: SeededRuntime) -> None:
    async def broken() -> None:
        await asyncio.sleep(3)
        raise LookupError

    async with Pool(runtime=runtime) as pool:
        assert pool.health().workers["worker-000"].avg_time is None
        await pool.run(asyncio.sleep, 1)
        assert pool.health().workers["worker-000"].avg_time == 1
        await wait(await pool.submit(broken))
        assert pool.health().workers["worker-000"].avg_time == 2
        cancelled = await pool.submit(asyncio.sleep, 60)
        await asyncio.sleep(5)
        assert pool.health().workers["worker-000"].avg_time == 2
        await cancelled.cancel()
        assert pool.health().workers["worker-000"].avg_time == 3
        await wait(await pool.with_options(timeout=11).submit(asyncio.sleep, 60))
        seen = pool.health().workers["worker-000"]
        assert seen.avg_time == pytest.approx((1 + 3 + 5 + 11) / 4, abs=0.1)
        assert (seen.completed, seen.failed) == (1, 2)


@seeded
async def test_a_pool_that_shrinks_counts_the_workers_that_are_left(
    runtime: SeededRuntime,
) -> None:
    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        async with occupied(pool, 4):
            await pool.resize(2)
            seen = pool.health()
            assert (seen.pool_size, seen.utilization) == (len(seen.workers), 1.0) == (4, 1.0)
        seen = pool.health()
        assert (seen.pool_size, seen.utilization) == (len(seen.workers), 0.0) == (2, 0.0)


@seeded
async def test_a_snapshot_shows_the_same_workers(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        await pool.run(asyncio.sleep, 1)
        async with occupied(pool):
            assert pool.snapshot().workers == pool.health().workers


@seeded
async def test_a_worker_is_the_task_with_its_name(runtime: SeededRuntime) -> None:
    async def name() -> str:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(1)
        return task.get_name()

    async with Pool("crew", max_concurrent=2, runtime=runtime) as pool:
        tickets = [await pool.submit(name) for _ in range(2)]
        holders = {worker.job: id for id, worker in pool.health().workers.items()}
        for ticket in tickets:
            assert await ticket == f"crew-{holders[ticket.id]}"
        assert set(holders.values()) == {"worker-000", "worker-001"}


# Long-running and healthy


@seeded
async def test_a_job_that_awaits_for_five_minutes_is_not_stale(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        long = await pool.submit(asyncio.sleep, 5 * MINUTE)
        late = await pool.with_options(timeout=10 * MINUTE).submit(asyncio.sleep, 9 * MINUTE)
        for _ in range(8):
            await asyncio.sleep(MINUTE)
            seen = pool.health()
            assert seen.stale_workers == ()
            assert seen.workers["worker-000"].last_heartbeat_ago == 0
        assert {job.status for job in await wait([long, late])} == {Status.COMPLETED}


async def test_a_thread_that_works_for_five_minutes_is_not_stale() -> None:
    runtime = Still()
    async with Pool(runtime=runtime) as pool, labouring(pool) as labour:
        for _ in range(5):
            labour.work()
            runtime.time += MINUTE
            seen = pool.health()
            assert seen.stale_workers == ()
            assert seen.workers["worker-000"].last_heartbeat_ago == 0


async def test_a_hung_thread_is_stale_until_it_works_again() -> None:
    runtime = Still()
    async with Pool(runtime=runtime) as pool, labouring(pool) as labour:
        labour.work()
        # The thread may not have reached the point where it hangs.
        while not (seen := pool.health()).stale_workers:
            runtime.time += 120
        assert seen.stale_workers == ("worker-000",)
        assert seen.workers["worker-000"].state == "busy"
        assert seen.workers["worker-000"].last_heartbeat_ago >= 120
        labour.work()
        assert pool.health().stale_workers == ()


class Meter(Still):
    """A runtime in which every thread has used as much CPU as the test says."""

    used: float | None = 1.0

    def cpu_of_thread(self, thread: threading.Thread) -> float | None:
        return self.used


async def test_a_thread_is_stale_when_it_has_done_nothing_for_as_long_as_that() -> None:
    runtime = Meter()
    async with Pool(runtime=runtime, stale_after=10) as pool, labouring(pool) as labour:
        labour.work()
        assert pool.health().stale_workers == ()
        runtime.time += 9.9
        assert pool.health().stale_workers == ()
        assert pool.health().workers["worker-000"].last_heartbeat_ago == pytest.approx(9.9)
        runtime.time += 0.1
        assert pool.health().stale_workers == ("worker-000",)
        runtime.used = 1.001
        assert pool.health().stale_workers == ()
        runtime.time += 9.9
        assert pool.health().stale_workers == ()


async def test_a_thread_is_sampled_without_calls_to_health() -> None:
    runtime = Meter()
    async with Pool(runtime=runtime) as pool, labouring(pool) as labour:
        labour.work()
        assert pool._checkup is not None
        for _ in range(20):
            # as the pool does every ten seconds
            pool._checkup.look()
            runtime.time += 10
        assert pool.health().stale_workers == ("worker-000",)
        runtime.used = 2.0
        pool._checkup.look()
        runtime.time += 10
        assert pool.health().workers["worker-000"].last_heartbeat_ago == 10


async def test_without_cpu_times_no_thread_is_stale() -> None:
    runtime = Meter()
    runtime.used = None
    async with Pool(runtime=runtime) as pool, labouring(pool) as labour:
        labour.work()
        for _ in range(5):
            assert pool.health().stale_workers == ()
            runtime.time += 5 * MINUTE


async def test_a_job_with_a_deadline_is_stale_beyond_it_and_no_sooner() -> None:
    runtime = Meter()
    async with Pool(timeout=10 * MINUTE, runtime=runtime) as pool, labouring(pool) as labour:
        labour.work()
        pool.health()
        runtime.time += 9 * MINUTE
        assert pool.health().workers["worker-000"].last_heartbeat_ago == 9 * MINUTE
        assert pool.health().stale_workers == ()
        runtime.time += MINUTE + 2
        assert pool.health().stale_workers == ("worker-000",)


async def test_health_called_on_the_loop_shows_a_current_heartbeat() -> None:
    runtime = Still()
    async with Pool(max_concurrent=2, runtime=runtime) as pool, occupied(pool):
        runtime.time += 5 * MINUTE
        seen = pool.health()
        assert seen.stale_workers == ()
        assert {worker.last_heartbeat_ago for worker in seen.workers.values()} == {0}


@seeded
async def test_a_job_that_ignores_its_deadline_is_stuck_and_stale(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async with Pool(max_concurrent=2, timeout=MINUTE, runtime=runtime) as pool:
        ticket = await pool.submit(stubborn)
        await asyncio.sleep(MINUTE - 1)
        assert pool.health().stale_workers == ()
        await wait(ticket)
        seen = pool.health()
        assert seen.stale_workers == ("worker-000",)
        worker = seen.workers["worker-000"]
        assert (worker.state, worker.stuck, worker.job) == ("busy", True, ticket.id)
        assert (seen.utilization, seen.total_failed) == (0.5, 1)
        gate.set()
        await until(lambda: pool.snapshot().stuck == 0)
        worker = pool.health().workers["worker-000"]
        assert (worker.state, worker.stuck, worker.job) == ("idle", False, None)
        assert pool.health().stale_workers == ()


@pytest.mark.parametrize("run_in", ["async", "loop"])
async def test_a_blocked_loop_is_seen_from_another_thread(run_in: str) -> None:
    runtime = Still()

    async def awaiting() -> None:
        examiner.wait_for_it()

    def plain() -> None:
        examiner.wait_for_it()

    def examine() -> PoolHealth:
        before = pool.health()
        assert before.stale_workers == ()
        runtime.time += 121
        return pool.health()

    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        examiner = Elsewhere(examine)
        async with occupied(pool):
            limited = pool.with_options(timeout=10 * MINUTE).submit_nowait(asyncio.Event().wait)
            if run_in == "async":
                await pool.run(awaiting)
            else:
                await pool.with_options(run_in="loop").run(plain)
            # As soon as the loop runs again, its workers are alive.
            await until(lambda: health_elsewhere(pool).stale_workers == ())
            await limited.cancel()
        found = examiner.found
    assert found is not None
    # A job with a timeout is not stale before its timeout.
    assert found.stale_workers == ("worker-000", "worker-002")
    assert {worker.last_heartbeat_ago for worker in found.workers.values()} == {121}
    assert (found.pool_size, found.utilization) == (3, 1.0)


def health_elsewhere(pool: Pool) -> PoolHealth:
    """Return the health as another thread sees it now."""
    examiner = Elsewhere(pool.health)
    examiner.wait_for_it()
    assert examiner.found is not None
    return examiner.found


async def test_code_that_blocks_its_loop_before_it_is_in_a_task_is_seen_as_well() -> None:
    runtime = Still()
    loop = asyncio.get_running_loop()

    def examine() -> PoolHealth:
        pool.health()
        runtime.time += 121
        return pool.health()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task: Any = asyncio.Task(coroutine, loop=loop, **options)
        if "JobRunner.on_loop" in coroutine.__qualname__:
            # As an eager task factory does, which runs the first step at once.
            examiner.wait_for_it()
        return task

    loop.set_task_factory(factory)
    async with Pool(runtime=runtime) as pool:
        examiner = Elsewhere(examine)
        await pool.run(asyncio.sleep, 0)
    assert examiner.found is not None
    assert examiner.found.stale_workers == ("worker-000",)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that switch as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
async def test_health_is_consistent_when_read_from_another_thread() -> None:
    over = threading.Event()
    faults: list[PoolHealth] = []
    looks: list[int] = []

    def watch() -> None:
        while not over.is_set():
            seen = pool.health()
            looks.append(1)
            busy = sum(worker.job is not None for worker in seen.workers.values())
            sound = seen.pool_size == len(seen.workers) and 0 <= seen.utilization <= 1
            if not sound or seen.stale_workers or busy > 8:
                faults.append(seen)

    async with Pool(max_concurrent=8, timeout=MINUTE) as pool:
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            number = 0
            while len(looks) < 2000:
                number += 1
                await pool.resize(1 + number % 8)
                await wait([await pool.submit(asyncio.sleep, 0) for _ in range(10)])
                await pool.run(int)
        finally:
            over.set()
            watcher.join()
    assert faults == []


# Processes


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pause"), reason="needs a call that only waits")
async def test_a_busy_process_is_alive_and_a_hung_one_is_stale() -> None:
    runtime = Still()

    def child(worker: int) -> Child | None:
        assert pool._live is not None
        attempt = pool._live.slots.all[worker].attempt
        outside = None if attempt is None else attempt.outside
        return None if outside is None or outside.call is None else outside.call[0]

    def used(worker: int) -> float | None:
        one = child(worker)
        return None if one is None else runtime.cpu_of_process(one.pid)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        work = pool.with_options(run_in="process")
        tickets: list[Ticket[Any]] = [
            await work.submit(sum, range(10**15)),
            await work.submit(signal.pause),
        ]
        await until(lambda: used(0) is not None and used(1) is not None)
        in_a_row = 0
        try:
            while in_a_row < 50:
                # The second child takes a while to start and become idle.
                before = used(0)
                await until(lambda before=before: used(0) != before)  # type: ignore[misc]
                runtime.time += 120
                stale = pool.health().stale_workers
                assert "worker-000" not in stale
                in_a_row = in_a_row + 1 if stale else 0
        finally:
            # While the clock stands still, a drain would never reach the point where it ends them.
            for one in (child(0), child(1)):
                assert one is not None
                one.end()
            await wait(tickets)


async def test_a_snapshot_updates_heartbeats_as_health_does() -> None:
    clock = Still()
    labour = Labour()
    async with Pool(runtime=clock) as pool:
        ticket = await pool.submit(labour)
        labour.work()
        pool.health()
        clock.time += MINUTE
        assert pool.snapshot().workers["worker-000"].last_heartbeat_ago == MINUTE
        labour.work()
        assert pool.snapshot().workers["worker-000"].last_heartbeat_ago == 0
        labour.end()
        await ticket
