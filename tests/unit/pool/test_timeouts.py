"""Soft and hard timeouts, and slots that are stuck because their code does not stop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from poolhand import Pool, Retry, stop_requested, wait
from poolhand.errors import JobTimedOut
from poolhand.observe.events import Events, JobEnded, JobMarked, SlotFreed, SlotStuck
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Heard, seeded

SOON = 0.1  # how long after its deadline the caller of a job may have to wait


async def stubborn(gate: asyncio.Event) -> str:
    """Ignores every cancellation until the gate opens."""
    while not gate.is_set():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            continue
    return "late"


# Soft


@seeded
async def test_a_soft_timeout_marks_the_job_and_cancels_its_code(runtime: SeededRuntime) -> None:
    heard = Heard()
    told: list[float] = []

    async def job() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append(runtime.monotonic())
            assert stop_requested()
        return "what I have so far"

    async with Pool(soft_timeout=2, runtime=runtime, events=heard.events) as pool:
        began = runtime.monotonic()
        ticket = await pool.submit(job)
        assert await ticket == "what I have so far"
        assert ticket.status is Status.COMPLETED
        assert ticket.snapshot().marks == ("soft_timeout",)
        assert ticket.snapshot().error is None
        assert began + 2 <= told[0] <= began + 2 + SOON
        assert pool.stats().completed == 1
        assert pool.stats().failed == 0
    (marked,) = heard.of(JobMarked)
    assert marked.mark == "soft_timeout"
    assert marked.job.id == ticket.id
    assert marked.job.status is Status.RUNNING


@seeded
async def test_a_job_that_finishes_long_after_its_soft_timeout_counts_as_finished(
    runtime: SeededRuntime,
) -> None:
    async def job() -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1000)
        return 1

    async with Pool(soft_timeout=1, runtime=runtime) as pool:
        assert await pool.run(job) == 1
        assert pool.snapshot().stuck == 0


@seeded
async def test_a_job_that_its_soft_timeout_ends_has_timed_out(runtime: SeededRuntime) -> None:
    async with Pool(soft_timeout=2, runtime=runtime) as pool:
        began = runtime.monotonic()
        ticket = await pool.submit(asyncio.sleep, 60)
        with pytest.raises(JobTimedOut, match="soft timeout") as raised:
            await ticket
        assert runtime.monotonic() <= began + 2 + SOON
        assert raised.value.job_id == ticket.id
        job = ticket.snapshot()
        assert (job.status, job.marks) == (Status.FAILED, ("soft_timeout",))
        assert pool.stats().failed == 1


@seeded
async def test_the_hard_timer_stays_armed_after_the_soft_one(runtime: SeededRuntime) -> None:
    heard = Heard()

    async def job() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    async with Pool(soft_timeout=1, timeout=3, runtime=runtime, events=heard.events) as pool:
        began = runtime.monotonic()
        ticket = await pool.submit(job)
        with pytest.raises(JobTimedOut, match="hard timeout"):
            await ticket
        assert began + 3 <= runtime.monotonic() <= began + 3 + SOON
        assert ticket.snapshot().marks == ("soft_timeout", "hard_timeout")
    assert [event.mark for event in heard.of(JobMarked)] == [
        "soft_timeout",
        "hard_timeout",
    ]


@seeded
async def test_an_error_raised_after_the_soft_timeout_is_the_jobs_own(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise LookupError("half done") from None

    async with Pool(soft_timeout=1, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        with pytest.raises(LookupError, match="half done"):
            await ticket
        assert ticket.snapshot().marks == ("soft_timeout",)


@seeded
async def test_a_soft_timeout_is_retried_by_the_policy(runtime: SeededRuntime) -> None:
    attempts: list[int] = []

    async def job() -> str:
        attempts.append(1)
        await asyncio.sleep(60 if len(attempts) == 1 else 0)
        return "done"

    async with Pool(soft_timeout=1, retry=Retry(attempts=2, first=1), runtime=runtime) as pool:
        assert await pool.run(job) == "done"


@seeded
async def test_a_job_that_is_quick_enough_is_not_marked(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(soft_timeout=1, timeout=2, runtime=runtime, events=heard.events) as pool:
        tickets = [await pool.submit(asyncio.sleep, 0.9) for _ in range(5)]
        jobs = await wait(tickets)
        assert {(job.status, job.marks) for job in jobs} == {(Status.COMPLETED, ())}
        await asyncio.sleep(10)
    assert not heard.of(JobMarked)


# Hard


@seeded
async def test_a_hard_timeout_fails_the_job_and_raises_to_its_caller_in_time(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    async with Pool(timeout=2, runtime=runtime, events=heard.events) as pool:
        began = runtime.monotonic()
        ticket = await pool.submit(asyncio.sleep, 60)
        with pytest.raises(JobTimedOut, match="hard timeout") as raised:
            await ticket
        assert began + 2 <= runtime.monotonic() <= began + 2 + SOON
        assert raised.value.job_id == ticket.id
        job = ticket.snapshot()
        assert (job.status, job.marks) == (Status.FAILED, ("hard_timeout",))
        assert job.error is not None
        assert job.error.type.endswith("JobTimedOut")
        assert pool.stats().failed == 1
        assert pool.snapshot().stuck == 0
    assert [event.mark for event in heard.of(JobMarked)] == ["hard_timeout"]


@pytest.mark.slow
@seeded
async def test_each_of_many_deadlines_is_kept(runtime: SeededRuntime) -> None:
    late: list[float] = []

    async def call(pool: Pool, seconds: float, gate: asyncio.Event) -> None:
        began = runtime.monotonic()
        with pytest.raises(JobTimedOut):
            await pool.with_options(timeout=seconds).run(stubborn, gate)
        late.append(runtime.monotonic() - began - seconds)

    async with Pool(max_concurrent=300, runtime=runtime) as pool:
        gate = asyncio.Event()
        async with asyncio.TaskGroup() as callers:
            for number in range(300):
                callers.create_task(call(pool, 1 + number * 0.003, gate))
        gate.set()
    assert len(late) == 300
    assert min(late) >= 0
    assert max(late) <= SOON


@seeded
async def test_a_timeout_error_of_the_job_is_not_taken_for_ours(runtime: SeededRuntime) -> None:
    async def job() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(60)

    async with Pool(timeout=5, soft_timeout=3, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        with pytest.raises(TimeoutError):
            await ticket
        job_record = ticket.snapshot()
        assert job_record.marks == ()
        assert job_record.error is not None
        assert job_record.error.type == "TimeoutError"


def test_job_timed_out_is_not_a_timeout_error() -> None:
    assert not issubclass(JobTimedOut, TimeoutError)


@seeded
async def test_a_job_that_answers_the_hard_timeout_with_an_error_has_timed_out(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise TimeoutError("mine") from None

    async with Pool(timeout=1, runtime=runtime) as pool:
        with pytest.raises(JobTimedOut):
            await pool.run(job)


@seeded
async def test_a_value_returned_after_the_hard_timeout_is_discarded(
    runtime: SeededRuntime,
) -> None:
    async def job() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "too late"

    async with Pool(timeout=1, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        with pytest.raises(JobTimedOut):
            await ticket
        assert ticket.snapshot().result is None
        assert pool.stats().completed == 0


@seeded
async def test_a_hard_timeout_is_retried_by_the_policy(runtime: SeededRuntime) -> None:
    attempts: list[int] = []

    async def job() -> str:
        attempts.append(1)
        await asyncio.sleep(60 if len(attempts) < 3 else 0)
        return "done"

    retry = Retry(attempts=3, first=1)
    async with Pool(timeout=1, retry=retry, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        assert await ticket == "done"
        assert ticket.snapshot().attempts == 3
        assert ticket.snapshot().error is None


@seeded
async def test_a_job_that_always_times_out_ends_dead(runtime: SeededRuntime) -> None:
    async with Pool(timeout=1, retry=Retry(attempts=2, first=1), runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 60)
        with pytest.raises(JobTimedOut):
            await ticket
        assert ticket.snapshot().attempts == 2
        assert [job.id for job in pool.dead()] == [ticket.id]


@seeded
async def test_waiting_for_a_slot_is_not_running(runtime: SeededRuntime) -> None:
    async with Pool(timeout=1.5, soft_timeout=1.2, runtime=runtime) as pool:
        tickets = [await pool.submit(asyncio.sleep, 1, result=number) for number in range(5)]
        assert [await ticket for ticket in tickets] == list(range(5))


@seeded
async def test_a_submit_may_have_timeouts_of_its_own_or_none(runtime: SeededRuntime) -> None:
    async with Pool(timeout=1, soft_timeout=0.5, runtime=runtime) as pool:
        patient = pool.with_options(timeout=None, soft_timeout=None)
        assert await patient.run(asyncio.sleep, 1000, result="slow") == "slow"
        began = runtime.monotonic()
        with pytest.raises(JobTimedOut, match="hard"):
            await pool.with_options(timeout=0.2).run(asyncio.sleep, 60)
        assert runtime.monotonic() <= began + 0.2 + SOON


# Stuck


@seeded
async def test_a_job_that_ignores_its_timeout_leaves_its_slot_stuck_until_it_ends(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    gate = asyncio.Event()
    async with Pool(timeout=1, runtime=runtime, events=heard.events) as pool:
        began = runtime.monotonic()
        ticket = await pool.submit(stubborn, gate)
        behind = await pool.submit(asyncio.sleep, 0, result="at last")
        with pytest.raises(JobTimedOut):
            await ticket
        assert runtime.monotonic() <= began + 1 + SOON
        await asyncio.sleep(30)

        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.queued, seen.max_concurrent) == (0, 1, 1, 1)
        assert seen.workers["worker-000"].stuck
        assert behind.status is Status.QUEUED
        (stuck,) = heard.of(SlotStuck)
        assert (stuck.job.id, stuck.slot) == (ticket.id, "worker-000")

        gate.set()
        assert await behind == "at last"
        assert pool.snapshot().stuck == 0
        assert ticket.status is Status.FAILED
        assert pool.stats().failed == 1
    assert [event.slot for event in heard.of(SlotFreed)] == ["worker-000"]
    ended = [event.job.id for event in heard.of(JobEnded)]
    assert sorted(ended) == sorted([ticket.id, behind.id])


@seeded
async def test_stuck_slots_count_against_the_cap(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    async with Pool(max_concurrent=3, timeout=1, runtime=runtime) as pool:
        stuck = [await pool.submit(stubborn, gate) for _ in range(2)]
        await wait(stuck)
        await wait([await pool.submit(work) for _ in range(20)])
        seen = pool.snapshot()
        assert (seen.stuck, seen.active, seen.completed) == (2, 0, 20)
        assert most == 1
        gate.set()


@seeded
async def test_a_retry_runs_in_another_slot_while_the_first_is_stuck(
    runtime: SeededRuntime,
) -> None:
    gate = asyncio.Event()
    attempts: list[int] = []

    async def job() -> str:
        attempts.append(1)
        return await stubborn(gate) if len(attempts) == 1 else "second"

    retry = Retry(attempts=2, first=1)
    async with Pool(max_concurrent=2, timeout=1, retry=retry, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        assert await ticket == "second"
        assert pool.snapshot().stuck == 1
        gate.set()
        await asyncio.sleep(1)
        assert pool.snapshot().stuck == 0
        assert ticket.snapshot().result == "second"


@seeded
async def test_a_stuck_job_holds_the_permit_of_its_key(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()
    async with Pool(max_concurrent=4, max_per_key=1, timeout=1, runtime=runtime) as pool:
        mine = pool.with_options(key="acme")
        await wait(await mine.submit(stubborn, gate))
        behind = await mine.submit(asyncio.sleep, 0, result="next")
        assert await pool.with_options(key="other").run(asyncio.sleep, 0, result=1) == 1
        assert behind.status is Status.BLOCKED
        gate.set()
        assert await behind == "next"


@seeded
async def test_the_next_turn_and_the_retry_of_a_stuck_job_start_at_once_in_a_free_slot(
    runtime: SeededRuntime,
) -> None:
    gate = asyncio.Event()
    attempts: list[int] = []

    async def job() -> str:
        attempts.append(1)
        return await stubborn(gate) if len(attempts) == 1 else "second"

    retry = Retry(attempts=2, first=0)
    async with Pool(max_concurrent=3, timeout=1, runtime=runtime) as pool:
        chat = pool.with_options(session="chat")
        began = runtime.monotonic()
        await chat.submit(stubborn, gate)
        turn = await chat.submit(asyncio.sleep, 0, result="my turn")
        retried = await pool.with_options(retry=retry).submit(job)
        jobs = await wait([turn, retried], timeout=5)
        gate.set()
        assert [one.result for one in jobs] == ["my turn", "second"]
        assert runtime.monotonic() <= began + 1 + 2 * SOON


@pytest.mark.parametrize("end", ["return", "raise", "cancel"])
@seeded
async def test_a_stuck_slot_is_released_however_its_code_ends(
    runtime: SeededRuntime, end: str
) -> None:
    gate = asyncio.Event()

    async def job() -> None:
        await stubborn(gate)
        if end == "raise":
            raise LookupError("too late to matter")
        if end == "cancel":
            raise asyncio.CancelledError

    async with Pool(timeout=1, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        await wait(ticket)
        gate.set()
        assert await pool.run(asyncio.sleep, 0, result="free") == "free"
        assert ticket.status is Status.FAILED
        seen = pool.snapshot()
        assert (seen.failed, seen.completed, seen.cancelled) == (1, 1, 0)


async def test_the_soft_timeout_of_a_thread_is_reported_when_it_happens() -> None:
    told = threading.Event()
    events = Events()
    events.subscribe(lambda event: told.set() if isinstance(event, JobMarked) else None)
    async with Pool(soft_timeout=0.05, events=events) as pool:
        # Nothing else happens in this pool: only the mark itself releases the job.
        assert await pool.run(told.wait)
