"""Check-ups: the findings of a pool about itself, emitted once and only with a reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from poolhand import Pool, Retry, bounded, fail_fast, ring_buffer, wait
from poolhand.errors import JobCancelled
from poolhand.observe.events import (
    Event,
    ExecutorSmall,
    JobEnded,
    PoisonSuspected,
    QueueHigh,
    StatsTaken,
    WorkerBound,
    WorkerVanished,
)
from poolhand.rules.queue.backpressure import Policy
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Heard, occupied, park, seeded, until

FINDINGS = (WorkerBound, PoisonSuspected, QueueHigh, ExecutorSmall, WorkerVanished)


class Findings(Heard):
    """The findings of a pool, and how long after the start of the program each came."""

    def __init__(self, runtime: SeededRuntime) -> None:
        super().__init__()
        self.found: list[tuple[float, Event]] = []
        began = runtime.monotonic()

        def note(event: Event) -> None:
            if isinstance(event, FINDINGS):
                self.found.append((runtime.monotonic() - began, event))

        self.events.subscribe(note)


async def every_second(
    runtime: SeededRuntime, seconds: int, call: Callable[[], Awaitable[object]]
) -> None:
    """Make a call in the middle of each second, never at the moment of a check-up."""
    for _ in range(seconds):
        await asyncio.sleep(0.5)
        await call()
        await asyncio.sleep(0.5)


async def broken() -> None:
    raise LookupError


# The figures


@seeded
async def test_statistics_are_emitted_every_ten_seconds_until_the_pool_is_drained(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    async with Pool("figures", max_concurrent=2, runtime=runtime, events=heard.events) as pool:
        for _ in range(5):
            await pool.submit(asyncio.sleep, 12)
        await wait(await pool.with_options(priority=1).submit(broken))
        await asyncio.sleep(25 - (runtime.monotonic() - 1000))
    assert heard.of(StatsTaken)[:2] == [
        StatsTaken("figures", 4, 6, 0, 0, 2),
        StatsTaken("figures", 1, 6, 2, 1, 2),
    ]
    count = len(heard.of(StatsTaken))
    await asyncio.sleep(100)
    assert len(heard.of(StatsTaken)) == count


@seeded
async def test_a_pool_without_subscribers_still_takes_samples(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events) as pool:
        heard.events.live = False
        await every_second(runtime, 45, lambda: pool.submit(broken))
        heard.events.live = True
        await every_second(runtime, 60, lambda: pool.submit(broken))
        # It began before there was a subscriber.
        assert heard.of(PoisonSuspected) == []
        await pool.run(asyncio.sleep, 0)
        await every_second(runtime, 60, lambda: pool.submit(broken))
        assert len(heard.of(PoisonSuspected)) == 1


# Health


@seeded
async def test_nothing_is_found_in_a_pool_that_keeps_up(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    policy = bounded(10)
    async with Pool(
        max_concurrent=3, backpressure=policy, runtime=runtime, events=findings.events
    ) as pool:

        async def call() -> None:
            await pool.submit(asyncio.sleep, 1.5)
            if runtime.random.random() < 0.3:
                await pool.submit(broken)

        await every_second(runtime, 200, call)
    assert findings.found == []


@seeded
async def test_a_backlog_that_does_not_grow_is_no_incident(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    async with Pool(runtime=runtime, events=findings.events) as pool:
        for _ in range(30):
            await pool.submit(asyncio.sleep, 100)
        await asyncio.sleep(200)
        await pool.drain(0)
    assert findings.found == []


# Worker-bound


@seeded
async def test_a_backlog_that_grows_while_all_slots_are_busy_is_reported_once(
    runtime: SeededRuntime,
) -> None:
    findings = Findings(runtime)
    async with Pool("small", max_concurrent=2, runtime=runtime, events=findings.events) as pool:
        await every_second(runtime, 100, lambda: pool.submit(asyncio.sleep, 4))
        assert [event for _, event in findings.found] == [WorkerBound("small", 2, 20)]
        assert findings.found[0][0] == 40
        await pool.drain(1000)
    assert len(findings.found) == 1


@seeded
async def test_a_backlog_that_was_worked_off_can_grow_again(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    async with Pool(max_concurrent=2, runtime=runtime, events=findings.events) as pool:
        for _ in range(2):
            await every_second(runtime, 60, lambda: pool.submit(asyncio.sleep, 4))
            await asyncio.sleep(200)
            assert pool.size() == 0
    assert [type(event) for _, event in findings.found] == [WorkerBound, WorkerBound]


@seeded
async def test_more_workers_would_not_help_jobs_that_wait_for_their_session(
    runtime: SeededRuntime,
) -> None:
    findings = Findings(runtime)
    async with Pool(runtime=runtime, events=findings.events) as pool:
        turns = pool.with_options(session="one")
        await every_second(runtime, 60, lambda: turns.submit(asyncio.sleep, 10))
        await pool.drain(0)
    assert findings.found == []


@seeded
async def test_jobs_in_a_paused_pool_are_not_a_backlog(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    async with Pool(max_concurrent=2, runtime=runtime, events=findings.events) as pool:
        async with occupied(pool, 2):
            pool.pause()
            await every_second(runtime, 60, lambda: pool.submit(asyncio.sleep, 0))
        pool.resume()
    assert findings.found == []


# Poison


@seeded
async def test_failures_without_any_success_are_reported_once(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    async with Pool("ill", runtime=runtime, events=findings.events) as pool:
        await pool.run(asyncio.sleep, 0)
        await every_second(runtime, 100, lambda: pool.submit(broken))
        assert findings.found == [(40, PoisonSuspected("ill", 1, 40))]
        await pool.run(asyncio.sleep, 0)
        await every_second(runtime, 100, lambda: pool.submit(broken))
    assert [type(event) for _, event in findings.found] == [PoisonSuspected, PoisonSuspected]


@seeded
async def test_an_occasional_success_prevents_a_poison_finding(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    async with Pool(runtime=runtime, events=findings.events) as pool:
        for _ in range(10):
            await every_second(runtime, 9, lambda: pool.submit(broken))
            await every_second(runtime, 1, lambda: pool.submit(asyncio.sleep, 0))
    assert findings.found == []


@seeded
async def test_a_job_that_is_tried_again_and_again_counts_as_poison(
    runtime: SeededRuntime,
) -> None:
    findings = Findings(runtime)
    retry = Retry(attempts=1000, first=0.7, factor=1, jitter=0)
    async with Pool(retry=retry, runtime=runtime, events=findings.events) as pool:
        ticket = await pool.submit(broken)
        await asyncio.sleep(100)
        (finding,) = findings.of(PoisonSuspected)
        assert (finding.completed, pool.stats().failed) == (0, 0)
        assert finding.failed > 50
        await ticket.cancel()
    assert len(findings.found) == 1


@seeded
async def test_jobs_that_time_out_are_poison_and_cancelled_ones_are_not(
    runtime: SeededRuntime,
) -> None:
    findings = Findings(runtime)
    async with Pool(max_concurrent=20, runtime=runtime, events=findings.events) as pool:

        async def cancel() -> None:
            await (await pool.submit(asyncio.sleep, 100)).cancel()

        await every_second(runtime, 60, cancel)
        assert findings.found == []
        hasty = pool.with_options(timeout=0.2)
        await every_second(runtime, 60, lambda: hasty.submit(asyncio.sleep, 100))
    assert [type(event) for _, event in findings.found] == [PoisonSuspected]


# A high queue


@pytest.mark.parametrize("policy", [bounded(10), ring_buffer(10)], ids=str)
@seeded
async def test_a_queue_that_stays_high_is_reported_once(
    runtime: SeededRuntime, policy: Policy
) -> None:
    findings = Findings(runtime)
    async with Pool("high", backpressure=policy, runtime=runtime, events=findings.events) as pool:
        async with occupied(pool):
            for _ in range(9):
                await pool.submit(asyncio.sleep, 0)
            await asyncio.sleep(100)
            assert findings.found == [(30, QueueHigh("high", 9, 10))]
        await asyncio.sleep(20)
        async with occupied(pool):
            for _ in range(9):
                await pool.submit(asyncio.sleep, 0)
            await asyncio.sleep(100)
    assert [type(event) for _, event in findings.found] == [QueueHigh, QueueHigh]


@seeded
async def test_scheduled_jobs_count_towards_a_high_queue(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    async with Pool(backpressure=bounded(10), runtime=runtime, events=findings.events) as pool:
        for _ in range(10):
            await pool.with_options(delay=100).submit(asyncio.sleep, 0)
        parked = await park(pool, pool.with_options(delay=100), asyncio.sleep, 0)
        await asyncio.sleep(50)
        assert [type(event) for _, event in findings.found] == [QueueHigh]
        await pool.drain(0)
        await asyncio.gather(parked, return_exceptions=True)


@pytest.mark.parametrize("policy", [None, bounded(10), fail_fast()], ids=str)
@seeded
async def test_a_queue_up_to_four_fifths_full_or_without_a_bound_is_not_high(
    runtime: SeededRuntime, policy: Policy | None
) -> None:
    findings = Findings(runtime)
    options: Any = {} if policy is None else {"backpressure": policy}
    waiting = {None: 500, bounded(10): 8, fail_fast(): 0}[policy]
    pool = await Pool(runtime=runtime, events=findings.events, **options).start()
    async with occupied(pool):
        for _ in range(waiting):
            await pool.submit(asyncio.sleep, 0)
        await asyncio.sleep(100)
    await pool.drain()
    assert findings.found == []


@seeded
async def test_a_short_rush_is_no_high_queue(runtime: SeededRuntime) -> None:
    findings = Findings(runtime)
    async with Pool(backpressure=bounded(10), runtime=runtime, events=findings.events) as pool:
        # Two samples see each rush, two see that it is over.
        await asyncio.sleep(5)
        for _ in range(5):
            async with occupied(pool):
                for _ in range(10):
                    await pool.submit(asyncio.sleep, 0)
                await asyncio.sleep(20)
            await asyncio.sleep(20)
    assert findings.found == []


# A small executor


async def test_an_executor_smaller_than_its_callers_is_reported_once() -> None:
    heard = Heard()
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    async with Pool("threads", max_concurrent=3, events=heard.events) as pool:
        checkup = pool._checkup
        assert checkup is not None
        for _ in range(2):
            gate = threading.Event()
            tickets = [pool.submit_nowait(asyncio.to_thread, gate.wait) for _ in range(3)]
            await until(lambda: executor._work_queue.qsize() == 2)
            heard.all.clear()
            for _ in range(6):
                checkup.look()
            gate.set()
            await wait(tickets)
            assert heard.of(ExecutorSmall) == [ExecutorSmall("threads", 1, 2, 3)]
            checkup.look()


async def test_an_executor_that_is_large_enough_is_not_reported() -> None:
    heard = Heard()
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(2)
    loop.set_default_executor(executor)
    gate = threading.Event()
    async with Pool(max_concurrent=5, events=heard.events) as pool:
        assert pool._checkup is not None
        tickets = [pool.submit_nowait(asyncio.to_thread, gate.wait) for _ in range(2)]
        await until(lambda: pool.stats().in_flight == 2)
        # A call from outside the pool waits: not a finding of the pool.
        others = loop.run_in_executor(None, gate.wait)
        await until(lambda: executor._work_queue.qsize() == 1)
        for _ in range(6):
            pool._checkup.look()
            await asyncio.sleep(0)
        gate.set()
        await wait(tickets)
        await others
    assert heard.of(ExecutorSmall) == []


async def test_a_ceiling_is_that_of_the_executor_where_it_is_smaller() -> None:
    loop = asyncio.get_running_loop()
    async with Pool(max_concurrent=3) as pool:
        assert pool.snapshot().ceiling == 3
        loop.set_default_executor(ThreadPoolExecutor(2))
        assert (pool.snapshot().ceiling, pool.snapshot().max_concurrent) == (2, 3)
        loop.set_default_executor(ThreadPoolExecutor(20))
        assert pool.snapshot().ceiling == 3


# A vanished worker


def tasks_of(runtime: SeededRuntime, name: str) -> list[asyncio.Task[Any]]:
    return [task for task in runtime.loop.pending_tasks() if task.get_name() == name]


@seeded
async def test_a_worker_task_cancelled_before_it_started_is_reported_and_recovered(
    runtime: SeededRuntime,
) -> None:
    findings = Findings(runtime)
    async with Pool("lost", runtime=runtime, events=findings.events) as pool:
        ticket = pool.submit_nowait(asyncio.sleep, 1)
        (task,) = tasks_of(runtime, "lost-worker-000")
        task.cancel()
        with pytest.raises(JobCancelled):
            await ticket
        assert await pool.run(asyncio.sleep, 0, result="served again") == "served again"
        await asyncio.sleep(100)
        seen = pool.snapshot()
        assert (seen.cancelled, seen.completed, seen.failed) == (1, 1, 0)
    ((at, finding),) = findings.found
    assert at == 10
    assert isinstance(finding, WorkerVanished)
    assert (finding.job.id, finding.slot) == (ticket.id, "worker-000")
    assert "from outside" in finding.why
    kinds = [type(event) for event in findings.all]
    assert kinds.index(WorkerVanished) < kinds.index(JobEnded)


@seeded
async def test_a_drain_does_not_wait_for_a_worker_task_cancelled_by_other_code(
    runtime: SeededRuntime,
) -> None:
    findings = Findings(runtime)
    pool = await Pool("lost", runtime=runtime, events=findings.events).start()
    ticket = pool.submit_nowait(asyncio.sleep, 1)
    (task,) = tasks_of(runtime, "lost-worker-000")
    task.cancel()
    await until(task.done)
    report = await pool.drain()
    assert (report.cancelled, report.seconds) == (1, 0)
    assert ticket.status is Status.CANCELLED
    assert [type(event) for _, event in findings.found] == [WorkerVanished]


@seeded
async def test_blocked_submitters_before_a_full_queue_count_as_a_backlog(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    async with Pool(
        max_concurrent=2, backpressure=bounded(2), runtime=runtime, events=heard.events
    ) as pool:
        submits: list[asyncio.Task[object]] = []
        await asyncio.sleep(5)  # between two samples, so that each sees all earlier submits
        for _ in range(6):
            submits += [asyncio.create_task(pool.submit(asyncio.sleep, 100)) for _ in range(5)]
            await asyncio.sleep(10)
        assert len(heard.of(WorkerBound)) == 1
        for submit in submits:
            submit.cancel()
        await pool.drain(0)
        await asyncio.gather(*submits, return_exceptions=True)
