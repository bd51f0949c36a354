"""Cancelling jobs, and cancelling callers that wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import Pool, Retry, RetryLater, Snooze, Ticket, bounded, wait
from poolhand.errors import JobCancelled, JobTimedOut
from poolhand.observe.events import JobEnded, JobMarked, SlotStuck
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Status
from tests.unit.pool.support import Heard, park, seeded


async def stubborn(gate: asyncio.Event) -> str:
    """Ignores every cancellation until the gate opens."""
    while not gate.is_set():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            continue
    return "late"


async def running(ticket: Ticket[Any], began: asyncio.Event) -> None:
    await began.wait()
    assert ticket.status is Status.RUNNING


# A job that waits


@seeded
async def test_a_cancelled_queued_job_never_runs(runtime: SeededRuntime) -> None:
    ran: list[str] = []

    async def job() -> None:
        ran.append("ran")

    async with Pool(runtime=runtime) as pool:
        await pool.submit(asyncio.sleep, 1)
        ticket = await pool.submit(job)
        began = runtime.monotonic()
        assert await ticket.cancel()
        assert runtime.monotonic() == began
        with pytest.raises(JobCancelled) as raised:
            await ticket
        assert raised.value.job_id == ticket.id
        assert ticket.status is Status.CANCELLED
        seen = pool.snapshot()
        assert (seen.queued, seen.cancelled, seen.failed) == (0, 1, 0)
    assert ran == []


@seeded
async def test_a_cancelled_blocked_job_never_runs(runtime: SeededRuntime) -> None:
    ran: list[str] = []

    async def job(name: str) -> None:
        ran.append(name)
        await asyncio.sleep(1)

    async with Pool(max_concurrent=5, max_per_key=1, runtime=runtime) as pool:
        turns = pool.with_options(session="chat", key="one")
        capped = pool.with_options(key="acme")
        await turns.submit(job, "turn 1")
        turn = await turns.submit(job, "turn 2")
        after = await turns.submit(job, "turn 3")
        await capped.submit(job, "acme 1")
        second = await capped.submit(job, "acme 2")
        third = await capped.submit(job, "acme 3")
        assert {turn.status, second.status} == {Status.BLOCKED}
        assert await turn.cancel()
        assert await second.cancel()
        await wait([after, third])
    assert sorted(ran) == ["acme 1", "acme 3", "turn 1", "turn 3"]


@seeded
async def test_a_cancelled_scheduled_job_never_runs(runtime: SeededRuntime) -> None:
    ran: list[str] = []

    async def job() -> None:
        ran.append("ran")

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.with_options(delay=5).submit(job)
        assert ticket.status is Status.SCHEDULED
        assert await ticket.cancel()
        await asyncio.sleep(10)
        assert pool.snapshot().scheduled == 0
    assert ran == []


@seeded
async def test_a_job_that_waits_for_its_retry_can_be_cancelled(runtime: SeededRuntime) -> None:
    attempts: list[int] = []

    async def job() -> None:
        attempts.append(1)
        raise LookupError

    async with Pool(retry=Retry(first=100), runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await asyncio.sleep(1)
        assert ticket.status is Status.SCHEDULED
        assert await ticket.cancel()
        with pytest.raises(JobCancelled):
            await ticket
        seen = pool.snapshot()
        assert (seen.cancelled, seen.failed, seen.scheduled) == (1, 0, 0)
        assert pool.dead() == []
    assert len(attempts) == 1


@seeded
async def test_cancelling_the_holder_of_a_session_lets_the_next_turn_go(
    runtime: SeededRuntime,
) -> None:
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        chat = pool.with_options(session="chat")
        first = await chat.submit(asyncio.sleep, 60)
        second = await chat.submit(asyncio.sleep, 0, result="my turn")
        assert await first.cancel()
        assert await second == "my turn"


@seeded
async def test_a_cancelled_job_admits_a_blocked_submitter(runtime: SeededRuntime) -> None:
    async with Pool(backpressure=bounded(1), runtime=runtime) as pool:
        await pool.submit(asyncio.sleep, 5)
        waiting = await pool.submit(asyncio.sleep, 5)
        parked = await park(pool, pool, asyncio.sleep, 0, "in")
        began = runtime.monotonic()
        await waiting.cancel()
        ticket = await parked
        assert runtime.monotonic() == began
        assert await ticket == "in"


# A job that runs


@seeded
async def test_a_cancelled_running_job_stops_at_once(runtime: SeededRuntime) -> None:
    heard = Heard()
    began = asyncio.Event()

    async def job() -> None:
        began.set()
        await asyncio.sleep(60)

    async with Pool(runtime=runtime, events=heard.events) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        at = runtime.monotonic()
        assert await ticket.cancel()
        assert runtime.monotonic() == at
        with pytest.raises(JobCancelled):
            await ticket
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.cancelled, seen.failed) == (0, 0, 1, 0)
    assert [event.mark for event in heard.of(JobMarked)] == ["cancel"]


@seeded
async def test_a_job_cancelled_before_its_first_step_does_not_begin(
    runtime: SeededRuntime,
) -> None:
    ran: list[str] = []

    async def job() -> None:
        ran.append("ran")

    async with Pool(runtime=runtime) as pool:
        ticket = pool.submit_nowait(job)
        assert pool.stats().in_flight == 1
        assert await ticket.cancel()
        assert ticket.status is Status.CANCELLED
        assert await pool.run(asyncio.sleep, 0, result="next") == "next"
    assert ran == []


@seeded
async def test_a_cancelled_job_may_clean_up_within_the_grace(runtime: SeededRuntime) -> None:
    began, cleaned = asyncio.Event(), asyncio.Event()

    async def job() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(3)
            cleaned.set()

    async with Pool(cancel_grace=5, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        assert await ticket.cancel()
        assert cleaned.is_set()
        assert pool.snapshot().stuck == 0


@seeded
async def test_a_job_that_ignores_cancel_is_settled_after_the_grace(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    gate, began = asyncio.Event(), asyncio.Event()

    async def job() -> None:
        began.set()
        await stubborn(gate)

    async with Pool(cancel_grace=2, runtime=runtime, events=heard.events) as pool:
        ticket = await pool.submit(job)
        behind = await pool.submit(asyncio.sleep, 0, result="behind")
        await running(ticket, began)
        at = runtime.monotonic()
        await ticket.cancel()
        assert at + 2 <= runtime.monotonic() <= at + 2.1
        with pytest.raises(JobCancelled):
            await ticket
        assert ticket.status is Status.CANCELLED
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.queued) == (0, 1, 1)
        gate.set()
        assert await behind == "behind"
        assert pool.snapshot().cancelled == 1
    assert [event.job.id for event in heard.of(SlotStuck)] == [ticket.id]


@seeded
async def test_without_a_grace_cancel_does_not_wait(runtime: SeededRuntime) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    async def job() -> None:
        began.set()
        await stubborn(gate)

    async with Pool(cancel_grace=0, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        at = runtime.monotonic()
        await ticket.cancel()
        assert runtime.monotonic() <= at + 0.1
        gate.set()


@seeded
async def test_a_job_that_finishes_in_spite_of_cancel_counts_as_finished(
    runtime: SeededRuntime,
) -> None:
    began = asyncio.Event()

    async def job() -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"
        return "slept"

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        assert not await ticket.cancel()
        assert await ticket == "saved"
        assert (pool.snapshot().completed, pool.snapshot().cancelled) == (1, 0)


@seeded
async def test_a_job_that_breaks_while_being_cancelled_has_failed_and_is_not_retried(
    runtime: SeededRuntime,
) -> None:
    began = asyncio.Event()

    async def job() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            raise LookupError("cleaning up broke")

    async with Pool(retry=Retry(), runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        assert not await ticket.cancel()
        with pytest.raises(LookupError):
            await ticket
        assert ticket.snapshot().attempts == 1


@seeded
async def test_a_cancelled_job_is_not_retried(runtime: SeededRuntime) -> None:
    attempts: list[int] = []
    began = asyncio.Event()

    async def job() -> None:
        attempts.append(1)
        began.set()
        await asyncio.sleep(60)

    async with Pool(retry=Retry(first=1), runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        assert await ticket.cancel()
        await asyncio.sleep(100)
    assert len(attempts) == 1


@pytest.mark.parametrize("wish", [Snooze(5), RetryLater(5)], ids=["snooze", "retry_later"])
@seeded
async def test_a_cancelled_job_is_not_retried_or_snoozed_by_its_own_request(
    runtime: SeededRuntime, wish: Exception
) -> None:
    attempts: list[int] = []
    began = asyncio.Event()

    async def job() -> None:
        attempts.append(1)
        began.set()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            raise wish from None

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        at = runtime.monotonic()
        await ticket.cancel()
        assert runtime.monotonic() == at
        assert ticket.status.terminal
        await asyncio.sleep(60)
    assert len(attempts) == 1


@seeded
async def test_a_job_can_cancel_itself(runtime: SeededRuntime) -> None:
    tickets: list[Ticket[None]] = []

    async def job() -> None:
        await tickets[0].cancel()

    async with Pool(runtime=runtime) as pool:
        tickets.append(await pool.submit(job))
        with pytest.raises(JobCancelled):
            await tickets[0]
        assert await pool.run(asyncio.sleep, 0, result="next") == "next"


@seeded
async def test_a_finished_job_cannot_be_cancelled(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 0, result="done")
        await ticket
        assert not await ticket.cancel()
        assert await ticket == "done"
        assert pool.snapshot().cancelled == 0


@seeded
async def test_cancelling_twice_is_cancelling_once(runtime: SeededRuntime) -> None:
    heard = Heard()
    began = asyncio.Event()

    async def job() -> None:
        began.set()
        await asyncio.sleep(60)

    async with Pool(runtime=runtime, events=heard.events) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        assert await asyncio.gather(*(ticket.cancel() for _ in range(5))) == [True] * 5
        assert await ticket.cancel()
        assert pool.snapshot().cancelled == 1
    assert len(heard.of(JobEnded)) == 1
    assert len(heard.of(JobMarked)) == 1


@seeded
async def test_a_cancel_takes_effect_even_if_its_caller_is_cancelled(
    runtime: SeededRuntime,
) -> None:
    began = asyncio.Event()

    async def job() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await running(ticket, began)
        canceller = asyncio.create_task(ticket.cancel())
        await asyncio.sleep(0.5)
        canceller.cancel()
        assert (await wait(ticket)).status is Status.CANCELLED


@seeded
async def test_a_cancelled_error_raised_without_a_cancel_request_cancels_the_job(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        raise asyncio.CancelledError

    async with Pool(retry=Retry(first=1), runtime=runtime) as pool:
        ticket = await pool.submit(job)
        with pytest.raises(JobCancelled):
            await ticket
        assert ticket.snapshot().attempts == 1
        seen = pool.snapshot()
        assert (seen.cancelled, seen.failed) == (1, 0)
        assert await pool.run(asyncio.sleep, 0, result="next") == "next"


@seeded
async def test_a_worker_task_that_others_cancel_is_a_cancelled_job(runtime: SeededRuntime) -> None:
    def cancel_workers() -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("crew-worker-"):
                task.cancel()

    async with Pool("crew", max_concurrent=2, runtime=runtime) as pool:
        early = [pool.submit_nowait(asyncio.sleep, 60) for _ in range(2)]
        cancel_workers()
        assert {job.status for job in await wait(early)} == {Status.CANCELLED}
        late = [pool.submit_nowait(asyncio.sleep, 60) for _ in range(2)]
        await asyncio.sleep(1)
        cancel_workers()
        assert {job.status for job in await wait(late)} == {Status.CANCELLED}
        assert await pool.run(asyncio.sleep, 0, result="next") == "next"


# A caller that is cancelled


@seeded
async def test_a_cancelled_caller_leaves_its_job_running(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 5, result="done")

        async def call() -> str | None:
            return await ticket

        caller = asyncio.create_task(call())
        await asyncio.sleep(1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert ticket.status is Status.RUNNING
        assert await ticket == "done"
        seen = pool.snapshot()
        assert (seen.completed, seen.cancelled, seen.failed) == (1, 0, 0)


@pytest.mark.parametrize("place", ["running", "queued"])
@pytest.mark.parametrize("how", ["await", "result", "result with a timeout"])
@seeded
async def test_cancel_with_caller_cancels_the_job_of_a_cancelled_caller(
    runtime: SeededRuntime, place: str, how: str
) -> None:
    async with Pool(runtime=runtime) as pool:
        if place == "queued":
            await pool.submit(asyncio.sleep, 3)
        ticket = await pool.with_options(cancel_with_caller=True).submit(asyncio.sleep, 5)

        async def call() -> None:
            if how == "await":
                await ticket
            else:
                await ticket.result(60 if how == "result with a timeout" else None)

        caller = asyncio.create_task(call())
        await asyncio.sleep(1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await wait(ticket)).status is Status.CANCELLED
        assert runtime.monotonic() < 1002
        seen = pool.snapshot()
        assert (seen.cancelled, seen.failed) == (1, 0)


def test_cancel_with_caller_applies_when_a_blocked_submit_is_being_admitted() -> None:
    async def main(runtime: SeededRuntime) -> None:
        async with Pool(backpressure=bounded(1), runtime=runtime) as pool:
            first = await pool.submit(asyncio.sleep, 60)
            await pool.submit(asyncio.sleep, 3)
            bound = pool.with_options(cancel_with_caller=True)
            caller = asyncio.create_task(bound.run(asyncio.sleep, 50, result="unwanted"))
            await asyncio.sleep(1)
            assert pool.snapshot().blocked_submitters == 1
            await first.cancel()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            await asyncio.sleep(5)
            assert pool.size() == 0

    for seed in range(30):
        run_seeded(main, seed)


@seeded
async def test_a_cancelled_blocked_submit_leaves_nothing_behind(runtime: SeededRuntime) -> None:
    async with Pool(backpressure=bounded(1), runtime=runtime) as pool:
        await pool.submit(asyncio.sleep, 5)
        await pool.submit(asyncio.sleep, 5)
        parked = await park(pool, pool, asyncio.sleep, 5)
        parked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await parked
        seen = pool.snapshot()
        assert (seen.total, seen.blocked_submitters, seen.cancelled) == (2, 0, 0)


@seeded
async def test_cancellation_propagates_through_jobs_with_cancel_with_caller(
    runtime: SeededRuntime,
) -> None:
    inner: list[Ticket[None]] = []

    async def outer_job(pool: Pool) -> None:
        inner.append(await pool.with_options(cancel_with_caller=True).submit(asyncio.sleep, 60))
        await inner[0]

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        outer = await pool.submit(outer_job, pool)
        await asyncio.sleep(1)
        assert await outer.cancel()
        assert (await wait(inner[0])).status is Status.CANCELLED
        assert runtime.monotonic() < 1002


@seeded
async def test_a_result_that_takes_too_long_leaves_the_work_running(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.with_options(cancel_with_caller=True).submit(
            asyncio.sleep, 5, result="done"
        )
        began = runtime.monotonic()
        with pytest.raises(TimeoutError):
            await ticket.result(timeout=1)
        assert runtime.monotonic() == began + 1
        assert ticket.status is Status.RUNNING
        assert await ticket.result(timeout=10) == "done"


@seeded
async def test_the_timeout_of_result_is_distinct_from_a_timeout_error_of_the_job(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        raise TimeoutError("the job's")

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(job)
        with pytest.raises(TimeoutError, match="the job's"):
            await ticket.result(timeout=5)


# Races


def test_a_job_that_ends_in_many_ways_at_once_ends_once() -> None:
    async def main(runtime: SeededRuntime) -> None:
        heard = Heard()
        outcomes: list[str] = []

        async def call(ticket: Ticket[str]) -> None:
            try:
                outcomes.append(await ticket)
            except (JobCancelled, JobTimedOut) as error:
                outcomes.append(type(error).__name__)

        pool = Pool(
            max_concurrent=2, timeout=1, soft_timeout=1, runtime=runtime, events=heard.events
        )
        async with pool:
            ticket = await pool.submit(asyncio.sleep, 1, result="done")
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(call(ticket))
                await asyncio.sleep(1)
                group.create_task(ticket.cancel())
                group.create_task(pool.drain(0))
            assert len(outcomes) == 3
            assert len(set(outcomes)) == 1
            seen = pool.snapshot()
            assert seen.total == 1 == seen.completed + seen.failed + seen.cancelled
        assert len(heard.of(JobEnded)) == 1

    for seed in range(60):
        run_seeded(main, seed)
