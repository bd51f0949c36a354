"""A worker seen from its program: running jobs, quota, and how long a drain needs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest

from poolhand import App, PoolhandError, Retry
from poolhand.contract import Filter
from poolhand.durable.worker.worker import WorkerSettings
from poolhand.rules.job import Status
from poolhand.settings import Limits, Wire
from tests.extent import times
from tests.unit.durable.support import Gate, bury_all
from tests.unit.pool.support import until


async def counts(app: App) -> dict[Status, int]:
    return await app.operator().count(Filter())


@pytest.mark.parametrize(("slots", "quota"), [(10, 4), (2, 5), (3, 3), (1, 1)])
async def test_a_worker_with_a_quota_runs_exactly_that_many_jobs(slots: int, quota: int) -> None:
    app = App("memory://")

    @app.task(name="nothing")
    async def nothing() -> None:
        return

    async with app:
        async with app.core.make_worker(WorkerSettings(slots, quota=quota)) as worker:
            assert not worker.spent, "nothing has run yet"
            tickets = await nothing.submit_many([()] * (quota + 3))
            await until(lambda: worker.spent)
            await until(lambda: worker.attempts == (quota, 0))
        assert [ticket.snapshot().status for ticket in tickets].count(Status.COMPLETED) == quota
        assert await counts(app) == {Status.COMPLETED: quota, Status.QUEUED: 3}


async def test_a_worker_is_not_spent_before_its_quota_is_used_up() -> None:
    app = App("memory://")

    @app.task(name="fail", retry=Retry(attempts=1))
    async def fail() -> None:
        raise ValueError

    async with app, app.core.make_worker(WorkerSettings(3, quota=3)) as worker:
        tickets = await fail.submit_many([(), ()])
        await asyncio.gather(*tickets, return_exceptions=True)
        await until(lambda: worker.running == 0)
        assert not worker.spent
        await fail.submit()
        await until(lambda: worker.spent)
        await until(lambda: worker.attempts == (0, 3))


@pytest.mark.parametrize("value", [object(), "x" * 5_000], ids=["no JSON", "too large"])
async def test_a_job_whose_result_cannot_be_stored_counts_as_failed(value: Any) -> None:
    app = App("memory://", wire=Wire(limits=Limits(payload=1_000)))

    @app.task(name="give")
    async def give() -> Any:
        return value

    @app.task(name="nothing")
    async def nothing() -> None:
        return

    async with app:
        worker = app.core.make_worker(WorkerSettings(1))
        async with worker:
            await (await nothing.submit())
            with pytest.raises(PoolhandError):
                await (await give.submit())
            (slot,) = worker.examined(1, 60.0).slots
            assert (slot.completed, slot.failed) == (1, 1)
        report = await worker.drain()
        assert (report.completed, report.failed) == (1, 1)
        assert await counts(app) == {Status.COMPLETED: 1, Status.FAILED: 1}


async def test_a_result_after_a_lost_lease_is_not_counted() -> None:
    app = App("memory://")
    gate = Gate()

    @app.task(name="hold")
    async def hold() -> None:
        with suppress(asyncio.CancelledError):
            await gate.pass_through()

    async with app, app.core.make_worker(WorkerSettings(1)) as worker:
        await hold.submit()
        await until(lambda: gate.entered == 1)
        await bury_all(app)
        gate.opened.set()
        await until(lambda: worker.running == 0)
        report = await worker.drain()
        assert (report.completed, report.failed) == (0, 0)


@pytest.mark.slow
async def test_running_jobs_can_be_read_from_another_thread() -> None:
    app = App("memory://")
    app.pool("default", max_concurrent=500)
    over, faults, looks = Event(), list[Exception](), 0

    @app.task(name="nothing")
    async def nothing() -> None:
        return

    async with app, app.core.make_worker(WorkerSettings(500)) as worker:

        def look() -> None:
            nonlocal looks
            while not over.is_set():
                try:
                    worker.jobs()
                    looks += 1
                except Exception as error:
                    faults.append(error)

        thread = Thread(target=look)
        thread.start()
        try:
            for _ in range(times(2, 5)):
                tickets = await nothing.submit_many([()] * 1000)
                await asyncio.gather(*tickets)
        finally:
            over.set()
            thread.join()
    assert looks
    assert faults == []


@pytest.mark.parametrize(
    ("softs", "needs"), [([], 15.0), ([2.0, 5.0], 5.0), ([2.0, None], 15.0), ([60.0], 15.0)]
)
async def test_a_drain_needs_at_most_the_soft_timeouts_of_running_jobs(
    softs: list[float | None], needs: float
) -> None:
    app = App("memory://")
    app.pool("default", max_concurrent=10)
    go_on = asyncio.Event()

    @app.task(name="hold")
    async def hold() -> None:
        await go_on.wait()

    async with app, app.core.make_worker(WorkerSettings(10)) as worker:
        for soft in softs:
            await hold.with_options(soft_timeout=soft, timeout=600).submit()
        await until(lambda: worker.running == len(softs))
        assert worker.needs(15.0) == needs
        go_on.set()


async def test_a_worker_that_serves_no_pool_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("memory://")
    async with app, app.worker():
        (line,) = [one.getMessage() for one in caplog.records if one.name == "poolhand"]
    assert "serves no pool" in line
    caplog.clear()

    @app.task(name="call")
    async def call() -> None: ...

    async with app, app.worker(), app.worker(pools=["other"]):
        (line,) = [one.getMessage() for one in caplog.records if one.name == "poolhand"]
    assert line == "worker: pool 'other' is not declared and no task uses it"
