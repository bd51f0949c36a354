"""The announcer: a worker reports once for each cause for which it sets jobs aside."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from poolhand.contract import Change
from poolhand.durable.worker.announcer import (
    LOOK_AFTER,
    LOOK_AGAIN,
    MOST_CAUSES,
    Announcer,
    TaskLookup,
)
from poolhand.durable.worker.dispatcher import SettledClaim
from poolhand.observe.events import Event, Events, JobSetAside
from poolhand.pool.slots.attempt import PoolClock
from poolhand.rules.explain import Explanation, task_cause
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import Heard, SharedStore, StoreApp, seeded


def waiting(task: str) -> SettledClaim:
    job = Job(
        id="job-1",
        pool="p",
        pool_id="pool-1",
        status=Status.SCHEDULED,
        submitted_at=datetime(2030, 1, 1, tzinfo=UTC),
        waits_for=task_cause(task),
    )
    return SettledClaim(Change(job, 1), begun=False)


class NoOthers(TaskLookup):
    """No other worker has any task."""

    def __init__(self) -> None:
        self.candidates = lambda _: []

    async def explain(self, job: Job, cause: str) -> Explanation | None:
        return None


async def test_the_causes_that_were_reported_are_bounded() -> None:
    told: list[Event] = []
    events = Events()
    events.subscribe(told.append)
    loop = asyncio.get_running_loop()
    announcing = Announcer(loop, events, {}, told.append, NoOthers(), PoolClock(Runtime()))
    for _ in range(2):
        for number in range(MOST_CAUSES):
            announcing.written(waiting(f"task_{number}"))
        await announcing.aside.over()
    assert len(told) == MOST_CAUSES
    for _ in range(2):
        announcing.written(waiting("another"))
        await announcing.aside.over()
        assert announcing.aside.causes == 1
    assert len(told) == MOST_CAUSES + 1
    announcing.failures.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [one for one in caplog.records if one.name == "poolhand"]
    return [one.getMessage() for one in records if one.levelno >= logging.WARNING]


async def answer(number: int) -> int:
    return number


@seeded
async def test_services_that_share_a_pool_and_have_all_of_its_tasks_log_no_warning(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    store, heard = SharedStore(runtime), Heard()
    one, two = (StoreApp(store, runtime, events=heard.events) for _ in range(2))
    first, second = one.task(name="first")(answer), two.task(name="second")(answer)
    async with one, two:
        async with one.worker(slots=1), two.worker(slots=1):
            tickets = [await task.submit(n) for n in range(10) for task in (first, second)]
            assert [await ticket for ticket in tickets] == [n for n in range(10) for _ in (0, 1)]
            await asyncio.sleep(5)
        assert warnings(caplog) == []
        told = heard.of(JobSetAside)
        assert told
        assert all(event.served for event in told)


@seeded
async def test_a_task_that_a_busy_worker_has_is_no_warning_and_one_that_none_has_is_one(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    store, heard = SharedStore(runtime), Heard()
    one, two = StoreApp(store, runtime, events=heard.events), StoreApp(store, runtime)
    one.task(name="first")(answer)
    over = asyncio.Event()

    @two.task(name="second")
    async def hold() -> None:
        await over.wait()

    async with one, two, one.worker():
        async with two.worker(slots=1):
            tickets = [await hold.submit() for _ in range(3)]
            await asyncio.sleep(3)
            assert [event.served for event in heard.of(JobSetAside)] == [True]
            assert warnings(caplog) == []
            over.set()
            for ticket in tickets:
                await ticket
        # Its worker is gone: no worker has the task now, which is reported once.
        await asyncio.sleep(LOOK_AGAIN)
        for _ in range(3):
            await hold.submit()
            await asyncio.sleep(3)
        assert [event.served for event in heard.of(JobSetAside)] == [True, False]
        (line,) = warnings(caplog)
        assert "this worker does not have the task 'second'; start a worker whose code" in line


@seeded
async def test_a_task_whose_worker_does_not_serve_the_pool_is_reported(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    store = SharedStore(runtime)
    one, two = StoreApp(store, runtime), StoreApp(store, runtime)
    one.task(name="first")(answer)
    second = two.task(name="second")(answer)
    two.pool("elsewhere")
    async with one, two, one.worker(), two.worker(pools=["elsewhere"]):
        await second.submit(1)
        await asyncio.sleep(3)
    (line,) = warnings(caplog)
    assert "no worker that has the task 'second' serves pool 'default'" in line


@seeded
async def test_a_worker_that_ends_at_once_still_reports_a_task_that_none_has(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    store = SharedStore(runtime)
    one, two = StoreApp(store, runtime), StoreApp(store, runtime)
    one.task(name="first")(answer)
    second = two.task(name="second")(answer)
    async with one, two:
        await second.submit(1)
        async with one.worker():
            await asyncio.sleep(LOOK_AFTER / 2)
    assert len(warnings(caplog)) == 1
