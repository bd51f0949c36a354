"""Waiting for jobs: `wait()` and the methods of a ticket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import Pool, Ticket, UsageError, bounded, wait
from poolhand.errors import JobCancelled, JobExpired, JobRejected, JobTimedOut
from poolhand.testing import SeededRuntime
from poolhand.views import Job, Status
from tests.unit.pool.support import Journal, occupied, seeded


async def fail() -> None:
    raise LookupError("bad")


# wait()


@seeded
async def test_wait_returns_snapshots_in_input_order_whichever_ends_first(
    runtime: SeededRuntime,
) -> None:
    async def job(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async with Pool(runtime=runtime, max_concurrent=5) as pool:
        tickets = [await pool.submit(job, seconds) for seconds in (5, 1, 4, 2, 3)]
        jobs = await wait(tickets)
    assert [job.result for job in jobs] == [5, 1, 4, 2, 3]
    assert [job.id for job in jobs] == [ticket.id for ticket in tickets]


@seeded
async def test_wait_never_raises_and_never_stops_at_the_first_bad_one(
    runtime: SeededRuntime,
) -> None:
    policy = bounded(3, on_full="drop_newest")
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        tickets: list[Ticket[Any]] = [await pool.with_options(timeout=1).submit(forever)]
        tickets.append(await pool.with_options(expires=0.5).submit(Journal().note, "expired"))
        tickets.append(await pool.submit(Journal().note, "cancelled"))
        tickets.append(await pool.submit(fail))
        tickets.append(await pool.submit(Journal().note, "rejected"))
        await tickets[2].cancel()
        tickets.append(await pool.submit(Journal().note, "fine"))
        jobs = await wait(tickets)
    assert [job.status.value for job in jobs] == [
        "failed", "expired", "cancelled", "failed", "rejected", "completed",
    ]  # fmt: skip
    assert jobs[-1].result == "fine"


async def forever() -> None:
    await asyncio.Event().wait()


@seeded
async def test_wait_for_one_ticket_returns_one_snapshot(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        job = await wait(await pool.submit(Journal().note, "x"))
        assert isinstance(job, Job)
        assert (job.status, job.result) == (Status.COMPLETED, "x")
        failed = await wait(await pool.submit(fail))
        assert failed.error is not None
        assert failed.error.message == "bad"


@seeded
async def test_wait_takes_any_iterable_empty_and_repeated_tickets_too(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        assert await wait([]) == []
        ticket = await pool.submit(Journal().note, "x")
        jobs = await wait(iter([ticket, ticket]))
        assert [job.result for job in jobs] == ["x", "x"]
        assert [job.id for job in await wait((ticket,))] == [ticket.id]


@seeded
async def test_wait_returns_current_states_at_its_timeout_and_leaves_the_jobs_running(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, max_concurrent=3) as pool:
        async with occupied(pool) as (slow,):
            quick = await pool.submit(Journal().note, "x")
            start = runtime.monotonic()
            jobs = await wait([slow, quick], timeout=5)
            assert runtime.monotonic() - start == pytest.approx(5)
            assert [job.status.value for job in jobs] == ["running", "completed"]
            assert (await wait(slow, timeout=0)).status is Status.RUNNING
        assert slow.status is Status.COMPLETED


@seeded
async def test_wait_returns_as_soon_as_all_jobs_have_ended(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(Journal().note, "x")
        start = runtime.monotonic()
        await wait([ticket], timeout=1000)
        assert runtime.monotonic() == start


@seeded
async def test_wait_returns_a_timeout_error_of_the_job_as_its_failure(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        raise TimeoutError("the job's own")

    async with Pool(runtime=runtime) as pool:
        done = await wait(await pool.submit(job), timeout=5)
        assert done.status is Status.FAILED


@seeded
async def test_a_cancelled_wait_leaves_the_jobs_running(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool, occupied(pool) as (ticket,):
        task = asyncio.create_task(wait(ticket))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ticket.status is Status.RUNNING


@seeded
async def test_wait_takes_tickets_of_several_pools(runtime: SeededRuntime) -> None:
    async with Pool("a", runtime=runtime) as one, Pool("b", runtime=runtime) as two:
        tickets = [await two.submit(Journal().note, "2"), await one.submit(Journal().note, "1")]
        assert [job.pool for job in await wait(tickets)] == ["b", "a"]


# Awaiting a ticket


@seeded
async def test_a_ticket_can_be_awaited_by_many_and_again(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(Journal().note, "x")
        tasks = [asyncio.ensure_future(ticket.result()) for _ in range(5)]
        assert await asyncio.gather(*tasks) == ["x"] * 5
        assert await ticket == "x"
        assert await ticket.result() == "x"
        assert await ticket.result(timeout=0) == "x"


@seeded
async def test_a_failed_job_raises_its_own_exception_to_every_caller(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(fail)
        for _ in range(3):
            with pytest.raises(LookupError, match="bad") as caught:
                await ticket
            assert caught.traceback[-1].name == "fail"
            assert len(caught.traceback) < 12


@seeded
async def test_each_ending_has_its_error(runtime: SeededRuntime) -> None:
    policy = bounded(2, on_full="drop_newest")
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        with pytest.raises(JobTimedOut) as timed_out:
            await pool.with_options(timeout=1).run(forever)
        assert not isinstance(timed_out.value, TimeoutError)
        async with occupied(pool):
            expiring = await pool.with_options(expires=1).submit(Journal().note, "x")
            with pytest.raises(JobExpired) as expired:
                await expiring
            ticket = await pool.submit(Journal().note, "x")
            await pool.submit(Journal().note, "x")
            with pytest.raises(JobRejected):
                await pool.run(Journal().note, "x")
            await ticket.cancel()
            with pytest.raises(JobCancelled) as cancelled:
                await ticket
    assert expired.value.job_id == expiring.id
    assert cancelled.value.job_id == ticket.id
    codes = [error.value.code for error in (timed_out, expired, cancelled)]
    assert codes == ["PH-JOB-002", "PH-JOB-005", "PH-JOB-003"]


@seeded
async def test_result_with_a_timeout_raises_timeout_error_and_leaves_the_job_running(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        async with occupied(pool) as (ticket,):
            start = runtime.monotonic()
            with pytest.raises(TimeoutError):
                await ticket.result(timeout=3)
            assert runtime.monotonic() - start == pytest.approx(3)
            assert ticket.status is Status.RUNNING
            with pytest.raises(TimeoutError):
                await ticket.result(timeout=0)
        assert await ticket.result(timeout=3) is True


@seeded
async def test_result_with_a_timeout_leaves_the_job_running_even_with_cancel_with_caller(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        gate = asyncio.Event()
        ticket = await pool.with_options(cancel_with_caller=True).submit(gate.wait)
        with pytest.raises(TimeoutError):
            await ticket.result(timeout=3)
        assert ticket.status is Status.RUNNING
        gate.set()
        assert await ticket


@seeded
async def test_result_within_the_timeout_gives_the_value_or_the_jobs_exception(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(Journal().note, "x")
        assert await ticket.result(timeout=5) == "x"
        failed = await pool.submit(fail)
        with pytest.raises(LookupError):
            await failed.result(timeout=5)


@seeded
async def test_cancel_returns_whether_the_job_ended_cancelled(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        done = await pool.submit(journal.note, "done")
        await done
        assert await done.cancel() is False
        assert done.status is Status.COMPLETED
        running = await pool.submit(forever)
        waiting = await pool.submit(journal.note, "never")
        assert await waiting.cancel() is True
        assert await running.cancel() is True
        assert await running.cancel() is True
    assert journal.ran == ["done"]


@seeded
async def test_a_ticket_shows_the_current_state_of_its_job(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        async with occupied(pool):
            ticket = await pool.submit(Journal().note, "x")
            before = ticket.snapshot()
            assert before.status is ticket.status is Status.QUEUED
            assert await ticket.refresh() == before
        await ticket
        assert before.status is Status.QUEUED
        assert ticket.snapshot().status is Status.COMPLETED
        assert (await ticket.refresh()).result == "x"
        assert ticket.id == before.id
        assert f"Ticket {ticket.id} completed" in repr(ticket)
        with pytest.raises(AttributeError):
            before.status = Status.FAILED  # type: ignore[misc]


@seeded
async def test_snapshot_never_raises_for_the_jobs_sake(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(fail)
        await wait(ticket)
        job = ticket.snapshot()
        assert job.status is Status.FAILED
        assert job.error is not None
        assert job.error.type == "LookupError"
        assert job.error.message == "bad"
        assert "raise LookupError" in job.error.traceback


@seeded
async def test_a_ticket_does_not_have_to_be_awaited(runtime: SeededRuntime) -> None:
    """A failure that is never awaited is recorded; it has no other effect."""
    async with Pool(runtime=runtime) as pool:
        for _ in range(5):
            await pool.submit(fail)
    assert pool.snapshot().failed == 5


# Tickets of another loop


def test_a_ticket_of_another_loop_is_refused_where_it_could_hang() -> None:
    pool = Pool()

    async def submit() -> Ticket[bool]:
        await pool.start()
        return await pool.submit(forever_true)

    async def end() -> None:
        assert await ticket.cancel()
        await pool.drain()

    with asyncio.Runner() as own, asyncio.Runner() as other:
        ticket = own.run(submit())
        for use in (ticket.result, ticket.cancel, lambda: wait(ticket), lambda: ticket.result(5)):
            with pytest.raises(UsageError, match="another event loop"):
                other.run(call(use))
        assert ticket.status is Status.RUNNING
        own.run(end())


async def call(use: Any) -> None:
    await use()


async def forever_true() -> bool:
    return await asyncio.Event().wait()


def test_a_submit_from_another_loop_is_refused() -> None:
    pool = Pool()

    async def submit() -> None:
        await pool.submit(Journal().note, "x")

    with asyncio.Runner() as own, asyncio.Runner() as other:
        own.run(pool.start())
        try:
            with pytest.raises(UsageError, match="another event loop"):
                other.run(submit())
            assert pool.snapshot().total == 0
        finally:
            own.run(pool.drain())


def test_a_finished_job_can_be_read_from_any_loop() -> None:
    pool = Pool()

    async def finish() -> Ticket[str]:
        async with pool:
            ticket = await pool.submit(Journal().note, "x")
            await ticket
            return ticket

    ticket = asyncio.run(finish())
    assert asyncio.run(ticket.result()) == "x"
    assert asyncio.run(call(lambda: wait(ticket))) is None
    assert ticket.snapshot().result == "x"
