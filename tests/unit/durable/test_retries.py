"""Retries and dead letters of stored jobs."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from poolhand import Retry, wait
from poolhand.app import App
from poolhand.contract import Filter
from poolhand.observe.events import CallbackFailed, JobEnded, JobRetried, JobSetAside, JobStarted
from poolhand.rules.audit import DEQUEUE, STREAM
from poolhand.settings import KeyRing, Wire
from poolhand.testing import SeededRuntime
from poolhand.views import Fault, Job, Status
from tests.unit.durable.support import Heard, SharedStore, StoreApp, seeded, stored
from tests.unit.pool.support import large


@seeded
async def test_a_task_is_tried_four_times_with_growing_pauses(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    ran: list[float] = []

    @app.task(name="fail")
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

    @app.task(name="flaky")
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
async def test_the_pool_sets_the_retry_policy_of_its_tasks(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    app.pool("once", retry=Retry(attempts=1))

    @app.task(name="fail", pool="once")
    async def fail() -> None:
        raise ValueError

    @app.task(name="fail_twice", pool="once", retry=Retry(attempts=2, first=0.0))
    async def fail_twice() -> None:
        raise ValueError

    async with app, app.worker():
        jobs = await wait([await fail.submit(), await fail_twice.submit()])
        seven = fail.with_options(retry=Retry(attempts=7, first=0.0))
        jobs.append(await wait(await seven.submit()))
    assert [job.attempts for job in jobs] == [1, 2, 7]


@seeded
async def test_a_permanent_error_is_not_retried(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="fail", retry=Retry(attempts=5, give_up_on=(LookupError,)))
    async def fail() -> None:
        raise KeyError("user")

    async with app, app.worker():
        job = await wait(await fail.submit())
    assert (job.status, job.attempts) == (Status.FAILED, 1)


@seeded
async def test_dead_jobs_are_listed(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call", retry=Retry(attempts=1))
    async def call(fail: bool) -> None:
        if fail:
            raise ValueError

    async with app, app.worker(3):
        tickets = [await call.submit(fail) for fail in (True, False, True)]
        await wait(tickets)
        connection = await app.core.connection()
        page = await connection.store.find(Filter(dead=True))
    assert {one.job.id for one in page.jobs} == {tickets[0].id, tickets[2].id}


@seeded
async def test_on_dead_is_called_before_a_drain_has_ended(runtime: SeededRuntime) -> None:
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

    told = app.task(name="told", pool="told")(fail)
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

    @app.task(name="fail", pool="told")
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
@large
async def test_a_task_without_a_worker_waits_is_reported_and_runs_when_one_starts(
    runtime: SeededRuntime,
) -> None:
    store, heard = SharedStore(runtime), Heard()
    here, there = StoreApp(store, runtime), StoreApp(store, runtime, events=heard.events)

    @here.task(name="known here")
    async def call(number: int) -> int:
        return number

    @there.task(name="known there")
    async def other() -> None: ...

    async with here, there:
        async with there.worker():
            tickets = [await call.submit(number) for number in range(3)]
            await asyncio.sleep(1_000)
            jobs = [(await stored(here, one.id)).job for one in tickets]
            assert [(job.status, job.attempts) for job in jobs] == [(Status.SCHEDULED, 0)] * 3
            assert {job.waits_for for job in jobs} == {"task:known here"}
            explained = await tickets[0].explain()
            assert explained.reason == "unknown_task"
            assert "start one whose code registers it" in str(explained)
            # Each job cost one claim, and one event names the task.
            assert len(heard.of(JobSetAside)) == 1
            assert await store.causes() == {"default": {"task:known here": 3}}
            dequeued = await store.read(STREAM, kind=DEQUEUE)
            assert len(dequeued) == 3
        async with here.worker():
            assert [await one for one in tickets] == [0, 1, 2]
        jobs = [(await stored(here, one.id)).job for one in tickets]
        assert [job.attempts for job in jobs] == [1, 1, 1]


@seeded
async def test_two_services_share_a_pool_and_no_job_is_dead(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    one, two = StoreApp(store, runtime), StoreApp(store, runtime)

    @one.task(name="one")
    async def in_one(number: int) -> int:
        return number

    @two.task(name="two")
    async def in_two(number: int) -> int:
        return -number

    async with one, two, one.worker(slots=2), two.worker(slots=2):
        tickets = [await task.submit(n) for n in range(20) for task in (in_one, in_two)]
        expected = [value for n in range(20) for value in (n, -n)]
        assert [await ticket for ticket in tickets] == expected
    jobs = [(await stored(one, ticket.id)).job for ticket in tickets]
    await one.close()
    assert {job.attempts for job in jobs} == {1}


@seeded
async def test_a_job_signed_with_a_key_that_a_worker_lacks_waits_for_one_that_has_it(
    runtime: SeededRuntime,
) -> None:
    store, heard = SharedStore(runtime), Heard()
    secrets = {"old": b"o" * 32, "new": b"n" * 32}
    behind = StoreApp(
        store,
        runtime,
        wire=Wire(ring=KeyRing({"old": b"o" * 32}, current="old")),
        events=heard.events,
    )
    ahead = StoreApp(store, runtime, wire=Wire(ring=KeyRing(secrets, current="new")))

    async def call(number: int) -> int:
        return number

    behind.task(name="call")(call)
    task = ahead.task(name="call")(call)
    async with behind, ahead:
        async with behind.worker():
            tickets = [await task.submit(number) for number in range(3)]
            await asyncio.sleep(100)
            jobs = [(await stored(ahead, one.id)).job for one in tickets]
            assert [(job.status, job.attempts) for job in jobs] == [(Status.SCHEDULED, 0)] * 3
            assert {job.waits_for for job in jobs} == {"key:new/call"}
            explained = await tickets[0].explain()
            assert explained.reason == "unknown_key"
            assert "add it to the key ring of the workers" in str(explained)
            assert len(heard.of(JobSetAside)) == 1
        async with ahead.worker():
            assert [await one for one in tickets] == [0, 1, 2]


@seeded
async def test_a_call_that_an_older_version_of_its_task_does_not_accept_waits_for_the_newer(
    runtime: SeededRuntime,
) -> None:
    store, heard = SharedStore(runtime), Heard()
    before = StoreApp(store, runtime, events=heard.events)
    after = StoreApp(store, runtime)

    @before.task(name="call")
    async def call(number: int) -> int:
        return number

    @after.task(name="call")
    async def call_with_unit(number: int, unit: str = "m") -> str:
        return f"{number} {unit}"

    async with before, after:
        async with before.worker(slots=1):
            tickets = [await call_with_unit.submit(number, "km") for number in range(3)]
            await asyncio.sleep(100)
            jobs = [(await stored(after, one.id)).job for one in tickets]
            assert [(job.status, job.attempts) for job in jobs] == [(Status.SCHEDULED, 0)] * 3
            explained = await tickets[0].explain()
            assert explained.reason == "other_version"
            assert "give new parameters a default" in str(explained)
            # Each job cost this worker one claim, and it does not claim them again.
            assert len(heard.of(JobSetAside)) == 1
            assert len(await store.read(STREAM, kind=DEQUEUE)) == 3
            # Jobs of its own version run beside them.
            assert await (await call.submit(7)) == 7
        async with after.worker():
            assert [await one for one in tickets] == ["0 km", "1 km", "2 km"]


@seeded
async def test_a_worker_serves_the_pools_of_its_tasks_and_those_it_declares(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    one, two = StoreApp(store, runtime), StoreApp(store, runtime)
    two.pool("declared", max_concurrent=5)

    @one.task(name="one", pool="elsewhere")
    async def in_one() -> None: ...

    @one.task(name="one too", pool="declared")
    async def in_declared() -> None: ...

    @two.task(name="two", pool="used")
    async def in_two() -> str:
        return "two"

    async with one, two, two.worker():
        elsewhere, declared = await in_one.submit(), await in_declared.submit()
        assert await (await in_two.submit()) == "two"
        await asyncio.sleep(10)
        assert (await stored(one, elsewhere.id)).job.status is Status.QUEUED
        assert (await stored(one, declared.id)).job.waits_for == "task:one too"
