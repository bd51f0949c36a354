"""Draining: one protocol under one deadline that never hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from poolhand import (
    JobError,
    Pool,
    Refused,
    Retry,
    Snooze,
    Ticket,
    UsageError,
    bounded,
    get_pool,
    list_pools,
    wait,
)
from poolhand.errors import Draining, JobCancelled, JobRejected
from poolhand.observe.events import DrainSlow, DrainStarted, PoolDrained, SlotStuck
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import DrainReport, Status
from tests.unit.pool.support import Heard, park, seeded, until


async def stubborn(gate: asyncio.Event) -> None:
    """Ignores every cancellation until the gate opens."""
    while not gate.is_set():
        with suppress(asyncio.CancelledError):
            await gate.wait()


def run_briefly(main: Callable[[SeededRuntime], Awaitable[None]], seeds: int = 5) -> None:
    """Run under several seeds; a hang is found after few steps."""
    for seed in range(seeds):
        run_seeded(main, seed, max_steps=20_000)


# Finishing jobs


@seeded
async def test_a_drain_finishes_running_and_waiting_jobs(runtime: SeededRuntime) -> None:
    heard = Heard()
    pool = Pool(max_concurrent=2, max_per_key=1, runtime=runtime, events=heard.events)
    await pool.start()
    chat = pool.with_options(session="chat")
    tickets = [
        *[await pool.submit(asyncio.sleep, 1, result="done") for _ in range(3)],
        await pool.with_options(delay=4).submit(asyncio.sleep, 1, result="done"),
        *[await chat.submit(asyncio.sleep, 1, result="done") for _ in range(2)],
        *[
            await pool.with_options(key="acme").submit(asyncio.sleep, 1, result="done")
            for _ in range(2)
        ],
    ]
    report = await pool.drain(60)
    assert [ticket.snapshot().result for ticket in tickets] == ["done"] * 8
    assert (report.submitted, report.completed) == (8, 8)
    assert report.failed == report.cancelled == report.rejected == report.stuck == 0
    assert 5 <= report.seconds <= 10
    (started,) = heard.of(DrainStarted)
    assert (started.waiting, started.running, started.timeout) == (6, 2, 60)
    (drained,) = heard.of(PoolDrained)
    assert (drained.completed, drained.seconds) == (8, report.seconds)
    assert heard.of(DrainSlow) == []


@seeded
async def test_an_idle_pool_drains_at_once(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    assert await pool.drain(10) == DrainReport(0, 0, 0, 0, 0, 0, 0, 0.0)


@seeded
async def test_retries_continue_while_a_drain_has_time(runtime: SeededRuntime) -> None:
    attempts: list[int] = []

    async def flaky() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise LookupError
        return "done"

    pool = await Pool(retry=Retry(attempts=3, first=1), runtime=runtime).start()
    ticket = await pool.submit(flaky)
    report = await pool.drain(60)
    assert (report.completed, report.failed) == (1, 0)
    assert await ticket == "done"


@seeded
async def test_the_report_counts_every_ending(runtime: SeededRuntime) -> None:
    async def broken() -> None:
        raise LookupError

    pool = await Pool(max_concurrent=4, runtime=runtime).start()
    await pool.submit(asyncio.sleep, 1)
    await pool.submit(broken)
    await (await pool.submit(asyncio.sleep, 60)).cancel()
    await pool.submit(asyncio.sleep, 60)
    await pool.with_options(delay=60).submit(asyncio.sleep, 1)
    later = runtime.wall() + timedelta(seconds=60)
    await pool.with_options(run_at=later, expires=2).submit(asyncio.sleep, 1)
    report = await pool.drain(5)
    assert report.submitted == 6
    assert (report.completed, report.failed, report.cancelled) == (1, 1, 2)
    assert (report.rejected, report.expired, report.stuck) == (1, 1, 0)


# The deadline


@seeded
async def test_at_the_deadline_waiting_jobs_are_rejected_and_running_ones_cancelled(
    runtime: SeededRuntime,
) -> None:
    pool = await Pool(max_concurrent=2, max_per_key=1, runtime=runtime).start()
    running = [
        await pool.with_options(key="a", session="chat").submit(asyncio.sleep, 60),
        await pool.with_options(key="b").submit(asyncio.sleep, 60),
    ]
    waiting = [
        await pool.with_options(key="c").submit(asyncio.sleep, 1),
        await pool.with_options(key="d", session="chat").submit(asyncio.sleep, 1),
        await pool.with_options(key="a").submit(asyncio.sleep, 1),
        await pool.with_options(delay=50).submit(asyncio.sleep, 1),
    ]
    seen = pool.snapshot()
    assert (seen.queued, seen.blocked, seen.scheduled) == (1, 2, 1)
    callers = [asyncio.create_task(ticket.result()) for ticket in (*running, *waiting)]
    report = await pool.drain(5)
    assert 5 <= report.seconds <= 6
    assert (report.cancelled, report.rejected, report.completed) == (2, 4, 0)
    for ticket in running:
        assert ticket.status is Status.CANCELLED
    for ticket in waiting:
        job = ticket.snapshot()
        assert (job.status, job.rejection_policy) == (Status.REJECTED, "draining")
        assert job.rejection_reason
    errors = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(error) for error in errors] == [JobCancelled] * 2 + [JobRejected] * 4
    rejection = errors[-1]
    assert isinstance(rejection, JobRejected)
    assert rejection.policy == "draining"


@pytest.mark.parametrize("timeout", [0, 0.1, 3, 10, 30])
def test_a_drain_never_hangs(timeout: float) -> None:
    async def main(runtime: SeededRuntime) -> None:
        gate = asyncio.Event()
        heard = Heard()
        outcomes: list[object] = []

        async def call(number: int) -> None:
            view = pool.with_options(retry=Retry(attempts=9, first=1) if number % 2 else None)
            try:
                outcomes.append(await view.run(asyncio.sleep, 60))
            except (JobError, Refused) as error:
                outcomes.append(error)

        pool = Pool(
            max_concurrent=3,
            backpressure=bounded(4),
            cancel_grace=1000,
            runtime=runtime,
            events=heard.events,
        )
        await pool.start()
        stuck = [await pool.submit(stubborn, gate) for _ in range(2)]
        callers = [asyncio.create_task(call(number)) for number in range(12)]
        await asyncio.sleep(1)
        seen = pool.snapshot()
        assert (seen.active, seen.queued, seen.blocked_submitters) == (3, 4, 7)
        canceller = asyncio.create_task(stuck[0].cancel())
        await asyncio.sleep(1)

        began = runtime.monotonic()
        report = await pool.drain(timeout)
        assert runtime.monotonic() <= began + timeout + 1
        await asyncio.gather(canceller, *callers)
        assert runtime.monotonic() <= began + timeout + 1
        assert (report.stuck, report.submitted) == (2, 7)
        assert report.cancelled + report.rejected == 7
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds.count(Draining) == 7
        assert kinds.count(JobRejected) + kinds.count(JobCancelled) == 5
        assert len(heard.of(SlotStuck)) == 2
        assert {ticket.status for ticket in stuck} == {Status.CANCELLED}
        gate.set()
        await until(lambda: pool.snapshot().stuck == 0)

    run_briefly(main)


@pytest.mark.parametrize("start", [0, 0.1, 1 / 3, 0.7, 1.1, 2.2, 3.3, 7.7, 100.3])
def test_a_drain_ends_in_time_whenever_it_starts(start: float) -> None:
    async def main(runtime: SeededRuntime) -> None:
        await asyncio.sleep(start)
        for timeout in (0.3, 1, 2.7, 30):
            pool = await Pool(runtime=runtime).start()
            await pool.submit(asyncio.sleep, 1000)
            assert (await pool.drain(timeout)).seconds <= timeout + 1

    run_briefly(main, seeds=1)


@seeded
async def test_a_job_that_snoozes_at_the_deadline_is_not_requeued(runtime: SeededRuntime) -> None:
    async def sleepy() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise Snooze(1) from None

    pool = await Pool(runtime=runtime).start()
    ticket = await pool.submit(sleepy)
    report = await pool.drain(2)
    assert report.seconds <= 3
    assert ticket.status.terminal
    assert pool.size() == 0


@seeded
async def test_a_job_that_needs_a_moment_to_stop_is_not_stuck(runtime: SeededRuntime) -> None:
    cleaned: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            cleaned.append("cleaned")

    pool = await Pool(runtime=runtime).start()
    await pool.submit(tidy)
    report = await pool.drain(2)
    assert cleaned == ["cleaned"]
    assert (report.cancelled, report.stuck) == (1, 0)


@seeded
async def test_a_slow_drain_is_reported_after_80_percent_of_its_time(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    moments: list[float] = []
    heard.events.subscribe(
        lambda event: moments.append(runtime.monotonic()) if isinstance(event, DrainSlow) else None
    )
    pool = await Pool(runtime=runtime, events=heard.events).start()
    for _ in range(3):
        await pool.submit(asyncio.sleep, 4.5)
    began = runtime.monotonic()
    await pool.drain(10)
    (slow,) = heard.of(DrainSlow)
    assert (slow.waiting, slow.running) == (1, 1)
    assert slow.seconds_left == pytest.approx(2, abs=0.01)
    assert moments == [pytest.approx(began + 8, abs=0.01)]


@seeded
async def test_a_drain_that_is_quick_enough_is_not_slow(runtime: SeededRuntime) -> None:
    heard = Heard()
    pool = await Pool(runtime=runtime, events=heard.events).start()
    await pool.submit(asyncio.sleep, 7)
    await pool.drain(10)
    assert heard.of(DrainSlow) == []


# Refusing


@seeded
async def test_a_draining_pool_takes_no_new_work(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    await pool.submit(asyncio.sleep, 5)
    draining = asyncio.create_task(pool.drain(30))
    await asyncio.sleep(1)
    assert pool.snapshot().draining
    for _ in range(2):
        with pytest.raises(Draining, match="draining") as raised:
            await pool.submit(asyncio.sleep, 1)
        assert raised.value.policy == "draining"
        with pytest.raises(Draining):
            pool.submit_nowait(asyncio.sleep, 1)
        with pytest.raises(Draining):
            await pool.with_options(priority=9).run(asyncio.sleep, 1)
        await draining
    assert pool.snapshot().total == 1


@seeded
async def test_a_drain_refuses_blocked_submitters(runtime: SeededRuntime) -> None:
    pool = await Pool(backpressure=bounded(1), runtime=runtime).start()
    for _ in range(2):
        await pool.submit(asyncio.sleep, 1)
    parked = [await park(pool, pool, asyncio.sleep, 1) for _ in range(3)]
    shared = pool.with_options(idempotency_key="same")
    parked += [asyncio.create_task(shared.submit(asyncio.sleep, 1)) for _ in range(3)]
    await until(lambda: pool.snapshot().blocked_submitters == 6)
    began = runtime.monotonic()
    draining = asyncio.create_task(pool.drain(30))
    errors = await asyncio.gather(*parked, return_exceptions=True)
    assert runtime.monotonic() == began
    assert [type(error) for error in errors] == [Draining] * 6
    assert (await draining).submitted == 2
    assert pool.snapshot().blocked_submitters == 0


@seeded
async def test_a_job_cannot_add_work_to_a_draining_pool(runtime: SeededRuntime) -> None:
    async def job() -> None:
        await asyncio.sleep(1)
        await pool.submit(asyncio.sleep, 1)

    pool = await Pool(max_concurrent=2, runtime=runtime).start()
    ticket = await pool.submit(job)
    await pool.drain(10)
    with pytest.raises(Draining):
        await ticket


@seeded
async def test_a_drained_pool_still_answers(runtime: SeededRuntime) -> None:
    async def broken() -> None:
        raise LookupError

    pool = await Pool("answers", runtime=runtime).start()
    good, bad = await pool.submit(asyncio.sleep, 1, result="done"), await pool.submit(broken)
    await pool.drain()
    assert await good == "done"
    with pytest.raises(LookupError):
        await bad
    assert (pool.stats().completed, pool.stats().failed, pool.size()) == (1, 1, 0)
    assert not await good.cancel()
    assert [job.id for job in pool.dead()] == [bad.id]
    with pytest.raises(Draining):
        await pool.rerun(bad.id)
    assert get_pool("answers") is None
    assert pool not in list_pools()
    with pytest.raises(UsageError, match="drained"):
        await pool.start()


# A second drain


@seeded
async def test_a_second_drain_returns_the_first_report(runtime: SeededRuntime) -> None:
    heard = Heard()
    pool = await Pool(runtime=runtime, events=heard.events).start()
    await pool.submit(asyncio.sleep, 3)
    first, second = await asyncio.gather(pool.drain(10), pool.drain(20))
    assert first is second
    assert await pool.drain() is first
    assert await pool.drain(0) is first
    assert first.completed == 1
    assert len(heard.of(DrainStarted)) == len(heard.of(PoolDrained)) == 1


@seeded
async def test_a_second_drain_with_less_time_shortens_the_first(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    running = await pool.submit(asyncio.sleep, 60)
    waiting = await pool.submit(asyncio.sleep, 60)
    first = asyncio.create_task(pool.drain(1000))
    await asyncio.sleep(5)
    at = runtime.monotonic()
    report = await pool.drain(0)
    assert runtime.monotonic() <= at + 1
    assert await first is report
    assert (report.cancelled, report.rejected) == (1, 1)
    assert (running.status, waiting.status) == (Status.CANCELLED, Status.REJECTED)


@seeded
async def test_a_second_drain_with_more_time_changes_nothing(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    await pool.submit(asyncio.sleep, 60)
    first = asyncio.create_task(pool.drain(2))
    await asyncio.sleep(1)
    assert (await pool.drain(1000)).seconds <= 3
    await first


@seeded
async def test_a_drain_continues_when_its_caller_is_cancelled(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    ticket = await pool.submit(asyncio.sleep, 3, result="done")
    caller = asyncio.create_task(pool.drain(10))
    await asyncio.sleep(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await pool.drain()).completed == 1
    assert await ticket == "done"


@seeded
async def test_a_job_may_drain_its_own_pool(runtime: SeededRuntime) -> None:
    async def last() -> None:
        await pool.drain(3)

    pool = await Pool(max_concurrent=2, runtime=runtime).start()
    ticket = await pool.submit(last)
    with pytest.raises(JobCancelled):
        await ticket
    assert (await pool.drain()).seconds <= 4


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "soon", True])
@seeded
async def test_a_drain_of_a_senseless_time_is_refused_and_changes_nothing(
    runtime: SeededRuntime, timeout: float
) -> None:
    async with Pool(runtime=runtime) as pool:
        with pytest.raises(UsageError, match="timeout"):
            await pool.drain(timeout)
        assert await pool.run(asyncio.sleep, 0, result="open") == "open"


async def test_a_pool_that_was_never_started_cannot_be_drained() -> None:
    with pytest.raises(UsageError, match="not started"):
        await Pool().drain()


# Leaving the block


@seeded
async def test_leaving_the_block_drains(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        tickets = [await pool.submit(asyncio.sleep, 1, result="done") for _ in range(3)]
    assert {ticket.status for ticket in tickets} == {Status.COMPLETED}
    with pytest.raises(Draining):
        await pool.submit(asyncio.sleep, 1)


@seeded
async def test_leaving_the_block_keeps_to_drain_timeout(runtime: SeededRuntime) -> None:
    async with Pool(drain_timeout=2, runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 60)
        began = runtime.monotonic()
    assert runtime.monotonic() <= began + 3
    assert ticket.status is Status.CANCELLED


@seeded
async def test_an_error_in_the_block_drains_and_is_raised(runtime: SeededRuntime) -> None:
    tickets: list[Ticket[str | None]] = []

    async def program() -> None:
        async with Pool(runtime=runtime) as pool:
            tickets.append(await pool.submit(asyncio.sleep, 1, result="done"))
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await program()
    assert tickets[0].status is Status.COMPLETED


@seeded
async def test_a_pool_drained_in_its_block_can_leave_it(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        await pool.submit(asyncio.sleep, 1)
        report = await pool.drain()
    assert await pool.drain() is report


@pytest.mark.parametrize("moment", [0, 0.5, 1, 1.5])
@seeded
async def test_being_cancelled_while_leaving_the_block_stops_now(
    runtime: SeededRuntime, moment: float
) -> None:
    tickets: list[Ticket[None]] = []

    async def program() -> None:
        async with Pool("left", runtime=runtime) as pool:
            tickets.extend([await pool.submit(asyncio.sleep, 60) for _ in range(3)])

    task = asyncio.create_task(program())
    await until(lambda: len(tickets) == 3)
    await asyncio.sleep(moment)
    began = runtime.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runtime.monotonic() <= began + 31
    assert all(job.status.terminal for job in await wait(tickets))
    assert get_pool("left") is None


@seeded
async def test_being_cancelled_again_and_again_still_resolves_every_caller(
    runtime: SeededRuntime,
) -> None:
    gate = asyncio.Event()
    tickets: list[Ticket[None]] = []

    async def program() -> None:
        async with Pool("left", runtime=runtime) as pool:
            tickets.extend([await pool.submit(stubborn, gate) for _ in range(2)])

    task = asyncio.create_task(program())
    await until(lambda: len(tickets) == 2)
    for _ in range(4):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    jobs = await wait(tickets)
    assert {job.status for job in jobs} == {Status.CANCELLED, Status.REJECTED}
    gate.set()
    await until(lambda: get_pool("left") is None)
