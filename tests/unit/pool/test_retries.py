"""Retries: how long a failed job waits, when it is not retried, and dead letters."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import timedelta
from itertools import pairwise

import pytest

from poolhand import GiveUp, Pool, Retry, RetryLater, Snooze, UsageError, bounded, wait
from poolhand.errors import JobCancelled
from poolhand.observe.events import CallbackFailed, JobEnded, JobRetried, JobStarted
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Job, Status
from tests.unit.pool.support import Heard, park, seeded

LATE = 0.1


class Busy(Exception):
    """An error that says when to retry."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


class Flaky:
    """A job that raises these errors in turn, then returns; it notes when it ran."""

    def __init__(self, runtime: SeededRuntime, *errors: BaseException) -> None:
        self.moments: list[float] = []
        self._runtime = runtime
        self._errors = list(errors)

    async def __call__(self) -> str:
        self.moments.append(self._runtime.monotonic())
        if self._errors:
            raise self._errors.pop(0)
        return "done"

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.moments)]


def failing(runtime: SeededRuntime, times: int) -> Flaky:
    return Flaky(runtime, *(LookupError(str(number)) for number in range(times)))


# Backoff


@seeded
async def test_without_a_policy_nothing_is_retried(runtime: SeededRuntime) -> None:
    job = failing(runtime, 1)
    async with Pool(runtime=runtime) as pool:
        with pytest.raises(LookupError):
            await pool.run(job)
    assert len(job.moments) == 1


@seeded
async def test_waits_grow_by_the_factor_up_to_the_cap(runtime: SeededRuntime) -> None:
    job = failing(runtime, 6)
    retry = Retry(attempts=7, first=1, factor=3, cap=20, jitter=0)
    async with Pool(retry=retry, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        assert await ticket == "done"
        assert ticket.snapshot().attempts == 7
    for pause, expected in zip(job.pauses, [1, 3, 9, 20, 20, 20], strict=True):
        assert expected <= pause + 1e-6
        assert pause <= expected + LATE


def test_jitter_shortens_a_wait_by_no_more_than_its_share_and_spreads_it() -> None:
    pauses: list[float] = []

    async def main(runtime: SeededRuntime) -> None:
        job = failing(runtime, 1)
        async with Pool(retry=Retry(attempts=2, first=10, jitter=0.4), runtime=runtime) as pool:
            await pool.run(job)
        pauses.extend(job.pauses)

    for seed in range(60):
        run_seeded(main, seed)
    assert all(pause + 1e-6 >= 6 and pause <= 10 + LATE for pause in pauses)
    assert max(pauses) - min(pauses) > 2
    assert len({round(pause, 3) for pause in pauses}) > 40


@seeded
async def test_a_job_that_waits_for_its_retry_holds_no_slot(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(
        retry=Retry(attempts=2, first=10), runtime=runtime, events=heard.events
    ) as pool:
        ticket = await pool.submit(failing(runtime, 1))
        await asyncio.sleep(1)
        assert ticket.status is Status.SCHEDULED
        assert (pool.snapshot().scheduled, pool.stats().in_flight) == (1, 0)
        at = runtime.monotonic()
        assert await pool.run(asyncio.sleep, 0, result="meanwhile") == "meanwhile"
        assert runtime.monotonic() == at
        record = ticket.snapshot()
        assert record.error is not None
        assert record.run_at is not None
        assert record.run_at > runtime.wall()
        (retried,) = heard.of(JobRetried)
        assert retried.job == record
        assert await ticket == "done"
        assert ticket.snapshot().error is None


@seeded
async def test_a_retry_needs_no_admission(runtime: SeededRuntime) -> None:
    retry = Retry(attempts=2, first=1, jitter=0)
    async with Pool(backpressure=bounded(1), retry=retry, runtime=runtime) as pool:
        flaky = await pool.submit(failing(runtime, 1))
        await asyncio.sleep(0.5)
        assert flaky.status is Status.SCHEDULED
        await pool.submit(asyncio.sleep, 5)
        parked = await park(pool, pool, asyncio.sleep, 0)
        assert await flaky == "done"
        await (await parked)


@seeded
async def test_a_turn_keeps_its_session_through_its_retries(runtime: SeededRuntime) -> None:
    retry = Retry(attempts=3, first=5)
    async with Pool(max_concurrent=2, retry=retry, runtime=runtime) as pool:
        chat = pool.with_options(session="chat")
        first = failing(runtime, 2)
        second = Flaky(runtime)
        await wait([await chat.submit(first), await chat.submit(second)])
    assert len(first.moments) == 3
    assert second.moments[0] >= first.moments[-1]


@seeded
async def test_a_submit_may_have_a_policy_of_its_own(runtime: SeededRuntime) -> None:
    async with Pool(retry=Retry(attempts=5, first=1), runtime=runtime) as pool:
        once = failing(runtime, 1)
        with pytest.raises(LookupError):
            await pool.with_options(retry=None).run(once)
        assert len(once.moments) == 1


@seeded
async def test_each_attempt_starts_from_the_context_of_the_submitter(
    runtime: SeededRuntime,
) -> None:
    colour: ContextVar[str] = ContextVar("colour", default="none")
    seen: list[str] = []

    async def job() -> None:
        seen.append(colour.get())
        colour.set("spoiled")
        if len(seen) < 3:
            raise LookupError

    colour.set("blue")
    async with Pool(retry=Retry(attempts=3, first=1), runtime=runtime) as pool:
        await pool.run(job)
    assert seen == ["blue"] * 3


# Retry-After


@seeded
async def test_a_retry_after_of_the_server_is_never_shortened(runtime: SeededRuntime) -> None:
    job = Flaky(runtime, Busy(30), Busy(0.5), Busy(1000))
    retry = Retry(attempts=4, first=5, cap=60, jitter=1)
    async with Pool(retry=retry, runtime=runtime) as pool:
        assert await pool.run(job) == "done"
    for pause, asked in zip(job.pauses, [30, 0.5, 1000], strict=True):
        assert asked <= pause + 1e-6
        assert pause <= asked * 1.1 + LATE


@seeded
async def test_retry_later_is_applied_and_counts_as_an_attempt(runtime: SeededRuntime) -> None:
    job = Flaky(runtime, RetryLater(7), RetryLater(2))
    async with Pool(retry=Retry(attempts=3, jitter=0), runtime=runtime) as pool:
        ticket = await pool.submit(job)
        assert await ticket == "done"
        assert ticket.snapshot().attempts == 3
    for pause, asked in zip(job.pauses, [7, 2], strict=True):
        assert asked <= pause + 1e-6
        assert pause <= asked + LATE


@seeded
async def test_retry_later_works_without_a_policy_and_still_ends(runtime: SeededRuntime) -> None:
    once = Flaky(runtime, RetryLater(1))
    for_ever = Flaky(runtime, *(RetryLater(1) for _ in range(100)))
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        assert await pool.run(once) == "done"
        with pytest.raises(RetryLater):
            await pool.run(for_ever)
    assert 2 <= len(for_ever.moments) <= 10


# Permanent errors


@seeded
async def test_giving_up_is_final(runtime: SeededRuntime) -> None:
    job = Flaky(runtime, GiveUp("wrong input"))
    async with Pool(retry=Retry(), runtime=runtime) as pool:
        ticket = await pool.submit(job)
        with pytest.raises(GiveUp, match="wrong input"):
            await ticket
        assert ticket.status is Status.FAILED
        assert [dead.id for dead in pool.dead()] == [ticket.id]
    assert len(job.moments) == 1


@pytest.mark.parametrize("error", [KeyError("x"), StopIteration()], ids=["itself", "wrapped"])
@seeded
async def test_errors_the_policy_names_are_final(
    runtime: SeededRuntime, error: BaseException
) -> None:
    job = Flaky(runtime, error)
    retry = Retry(give_up_on=(LookupError, StopIteration))
    async with Pool(retry=retry, runtime=runtime) as pool:
        ticket = await pool.submit(job)
        assert (await wait(ticket)).status is Status.FAILED
        assert ticket.snapshot().attempts == 1
        retried = Flaky(runtime, OSError())
        assert await pool.run(retried) == "done"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
@seeded
async def test_an_exit_exception_is_not_retried(
    runtime: SeededRuntime, error: BaseException
) -> None:
    job = Flaky(runtime, error)
    async with Pool(retry=Retry(), runtime=runtime) as pool:
        assert (await wait(await pool.submit(job))).status is Status.FAILED
    assert len(job.moments) == 1


# Snooze


@seeded
async def test_a_snooze_does_not_count_as_an_attempt(runtime: SeededRuntime) -> None:
    job = Flaky(runtime, *(Snooze(10) for _ in range(20)), LookupError())
    async with Pool(retry=Retry(attempts=2, first=1), runtime=runtime) as pool:
        ticket = await pool.submit(job)
        assert await ticket == "done"
        record = ticket.snapshot()
        assert record.attempts == 2
        assert record.error is None
        assert pool.stats().failed == 0
    assert all(pause + 1e-6 >= 10 and pause <= 10 + LATE for pause in job.pauses[:20])


@seeded
async def test_a_snooze_may_have_a_date(runtime: SeededRuntime) -> None:
    until = runtime.wall() + timedelta(hours=2)
    past = runtime.wall() - timedelta(hours=2)
    job = Flaky(runtime, Snooze(until), Snooze(past))
    async with Pool(runtime=runtime) as pool:
        assert await pool.run(job) == "done"
    assert job.pauses[0] + 1e-6 >= 7200
    assert job.pauses[0] <= 7200 + LATE
    assert job.pauses[1] + 1e-6 >= 0.1
    assert job.pauses[1] <= 0.1 + LATE


@seeded
async def test_a_snoozing_job_is_scheduled_and_can_be_cancelled(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(Flaky(runtime, Snooze(1000)))
        await asyncio.sleep(1)
        assert (ticket.status, ticket.snapshot().attempts) == (Status.SCHEDULED, 0)
        assert await ticket.cancel()
        with pytest.raises(JobCancelled):
            await ticket


# Dead letters


@seeded
async def test_a_job_that_used_up_its_attempts_is_a_dead_letter(runtime: SeededRuntime) -> None:
    told: list[Job] = []
    heard = Heard()
    job = failing(runtime, 9)
    retry = Retry(attempts=3, first=1)
    async with Pool(retry=retry, on_dead=told.append, runtime=runtime, events=heard.events) as pool:
        ticket = await pool.submit(job)
        with pytest.raises(LookupError, match="2"):
            await ticket
        await asyncio.sleep(1)
        assert told == pool.dead() == [ticket.snapshot()]
        assert told[0].attempts == 3
        assert pool.stats().failed == 1
    assert (len(heard.of(JobStarted)), len(heard.of(JobRetried))) == (3, 2)
    assert len(heard.of(JobEnded)) == 1


@seeded
async def test_a_job_that_finally_succeeds_is_not_a_dead_letter(runtime: SeededRuntime) -> None:
    told: list[Job] = []
    async with Pool(retry=Retry(attempts=3, first=1), on_dead=told.append, runtime=runtime) as pool:
        await pool.run(failing(runtime, 2))
        cancelled = await pool.submit(asyncio.sleep, 60)
        await cancelled.cancel()
        assert pool.dead() == []
        assert pool.stats().failed == 0
    assert told == []


@seeded
async def test_a_dead_job_can_run_again(runtime: SeededRuntime) -> None:
    job = failing(runtime, 1)
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(key="acme", priority=7, idempotency_key="once")
        ticket = await view.submit(job)
        await wait(ticket)
        again = await pool.rerun(pool.dead()[0])
        assert await again == "done"
        assert again.id != ticket.id
        record = again.snapshot()
        assert (record.key, record.priority) == ("acme", 7)
        assert pool.dead() == []
        with pytest.raises(UsageError, match=ticket.id):
            await pool.rerun(ticket.id)


@seeded
async def test_dead_letters_are_bounded(runtime: SeededRuntime) -> None:
    async with Pool(history=3, runtime=runtime) as pool:
        tickets = [await pool.submit(failing(runtime, 1)) for _ in range(10)]
        await wait(tickets)
        assert [job.id for job in pool.dead()] == [ticket.id for ticket in tickets[-3:]]


@pytest.mark.parametrize("kind", ["plain", "async"])
@seeded
async def test_an_on_dead_that_fails_is_reported_and_affects_no_job(
    runtime: SeededRuntime, kind: str
) -> None:
    heard = Heard()

    def plain(job: Job) -> None:
        raise OSError("no mail today")

    async def patient(job: Job) -> None:
        await asyncio.sleep(1)
        raise OSError("no mail today")

    on_dead = plain if kind == "plain" else patient
    async with Pool(on_dead=on_dead, runtime=runtime, events=heard.events) as pool:
        await wait(await pool.submit(failing(runtime, 1)))
        assert await pool.run(asyncio.sleep, 5, result="next") == "next"
    (event,) = heard.of(CallbackFailed)
    assert (event.callback, event.error) == ("on_dead", "OSError: no mail today")


@seeded
async def test_leaving_the_pool_waits_for_on_dead(runtime: SeededRuntime) -> None:
    told: list[str] = []

    async def on_dead(job: Job) -> None:
        await asyncio.sleep(1)
        told.append(job.id)

    async with Pool(on_dead=on_dead, runtime=runtime) as pool:
        ticket = await pool.submit(failing(runtime, 1))
        await wait(ticket)
    assert told == [ticket.id]
