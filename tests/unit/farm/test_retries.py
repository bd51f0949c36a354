"""Retries and dead letters of stored jobs."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from poolhand import Fault, Job, Retry, Status, wait
from poolhand.app import App
from poolhand.contract import Filter
from poolhand.observe.events import CallbackFailed, JobEnded, JobRetried, JobStarted
from poolhand.testing import SeededRuntime
from tests.unit.farm.support import Heard, SharedStore, StoreApp, seeded, stored


@seeded
async def test_a_task_is_tried_four_times_with_growing_pauses(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    ran: list[float] = []

    @app.task
    async def fail() -> None:
        ran.append(runtime.monotonic())
        raise ValueError("no")

    async with app, app.worker():
        ticket = await fail.submit()
        with pytest.raises(ValueError, match="no"):
            await ticket
        job = (await stored(app, ticket.id)).job
    assert (job.status, job.attempts) == (Status.FAILED, 4)
    assert isinstance(job.error, Fault)
    assert (job.error.type, job.error.message) == ("ValueError", "no")
    pauses = [later - earlier for earlier, later in pairwise(ran)]
    for pause, most in zip(pauses, (5, 10, 20), strict=True):
        assert most / 2 <= pause <= most + 1.1
    assert len(heard.of(JobStarted)) == 4
    assert [event.job.attempts for event in heard.of(JobRetried)] == [1, 2, 3]
    assert [event.job.status for event in heard.of(JobEnded)] == [Status.FAILED]


@seeded
async def test_a_retry_that_succeeds_leaves_no_error(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[int] = []

    @app.task
    def flaky() -> int:
        ran.append(1)
        if len(ran) < 3:
            raise OSError("no line")
        return len(ran)

    async with app, app.worker():
        ticket = await flaky.submit()
        assert await ticket == 3
        job = (await stored(app, ticket.id)).job
    assert (job.status, job.attempts, job.error) == (Status.COMPLETED, 3, None)


@seeded
async def test_the_pool_says_how_often_its_tasks_are_tried(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    app.pool("once", retry=Retry(attempts=1))

    @app.task(pool="once")
    async def fail() -> None:
        raise ValueError

    @app.task(pool="once", retry=Retry(attempts=2, first=0.0))
    async def fail_twice() -> None:
        raise ValueError

    async with app, app.worker():
        jobs = await wait([await fail.submit(), await fail_twice.submit()])
        seven = fail.with_options(retry=Retry(attempts=7, first=0.0))
        jobs.append(await wait(await seven.submit()))
    assert [job.attempts for job in jobs] == [1, 2, 7]


@seeded
async def test_an_error_named_as_permanent_is_not_tried_again(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(retry=Retry(attempts=5, give_up_on=(LookupError,)))
    async def fail() -> None:
        raise KeyError("user")

    async with app, app.worker():
        job = await wait(await fail.submit())
    assert (job.status, job.attempts) == (Status.FAILED, 1)


@seeded
async def test_dead_jobs_are_listed(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(retry=Retry(attempts=1))
    async def call(fail: bool) -> None:
        if fail:
            raise ValueError

    async with app, app.worker(3):
        tickets = [await call.submit(fail) for fail in (True, False, True)]
        await wait(tickets)
        station = await app.station()
        page = await station.store.find(Filter(dead=True))
    assert {one.job.id for one in page.jobs} == {tickets[0].id, tickets[2].id}


@seeded
async def test_the_death_of_a_job_is_told_before_a_drain_is_over(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    dead: list[Job] = []

    async def tell(job: Job) -> None:
        await asyncio.sleep(1)
        dead.append(job)

    def refuse(job: Job) -> None:
        raise RuntimeError("not me")

    app.pool("told", on_dead=tell, retry=Retry(attempts=1))
    app.pool("deaf", on_dead=refuse, retry=Retry(attempts=1))

    async def fail() -> None:
        raise ValueError("no")

    told = app.task(pool="told")(fail)
    deaf = app.task(pool="deaf", name="deaf")(fail)
    async with app:
        async with app.worker(2):
            jobs = await wait([await told.submit(), await deaf.submit()])
        assert [job.id for job in dead] == [jobs[0].id]
    (failed,) = heard.of(CallbackFailed)
    assert (failed.pool, failed.error) == ("deaf", "RuntimeError: not me")


@seeded
async def test_a_callback_that_does_not_end_is_stopped_with_the_drain(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)

    async def tell(job: Job) -> None:
        await asyncio.sleep(1000)

    app.pool("told", on_dead=tell, retry=Retry(attempts=1))

    @app.task(pool="told")
    async def fail() -> None:
        raise ValueError("no")

    async with app, app.worker(drain_timeout=5) as worker:
        await wait(await fail.submit())
        began = runtime.monotonic()
        await worker.drain()
        assert runtime.monotonic() - began <= 6
    (failed,) = heard.of(CallbackFailed)
    assert failed.error.startswith("CancelledError")


@seeded
async def test_a_task_that_no_worker_knows_is_passed_on_five_times_then_dead(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)

    @here.task(name="unknown there")
    async def call() -> None: ...

    heard = Heard()
    there.events = heard.events
    async with here, there, there.worker():
        ticket = await call.submit()
        job = await wait(ticket)
        assert (job.status, job.attempts) == (Status.FAILED, 5)
        assert job.error is not None
        assert "asks for the task 'unknown there', which this process does not have" in (
            job.error.message
        )
        assert (await stored(here, ticket.id)).dead


@seeded
async def test_a_task_that_one_worker_does_not_know_is_run_by_one_that_does(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)

    @here.task(name="known here")
    async def call() -> str:
        return "here"

    async with here, there:
        async with there.worker():
            ticket = await call.submit()
            await asyncio.sleep(7)
        async with here.worker():
            assert await ticket == "here"
