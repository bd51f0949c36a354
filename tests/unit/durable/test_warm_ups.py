"""Warm-ups come before the first job, once in each process that runs jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from poolhand import UsageError
from poolhand.app import App
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.errors import JobFailed
from tests.unit.durable import warm_tasks
from tests.unit.durable.test_processes import crash_twice

ALL = ["loaded", "connected", "unnamed"]


@pytest.fixture
def warm() -> Iterator[App]:
    """Yield the app of the module before any warm-up."""
    warm_tasks.WARMED.clear()
    warm_tasks.app.core.warm_ups._begun.clear()
    yield warm_tasks.app
    warm_tasks.WARMED.clear()


async def test_a_worker_is_warm_before_its_first_job_and_once() -> None:
    app, story = App("memory://"), list[str]()

    @app.warm_up
    async def connect() -> None:
        await asyncio.sleep(0)
        story.append("connected")

    @app.warm_up
    def load() -> None:
        story.append("loaded")

    @app.task(name="work")
    async def work() -> None:
        story.append("worked")

    async with app:
        ticket = await work.submit()
        first, second = app.worker(1), app.worker(1)
        await asyncio.gather(first.start(), second.start())
        await ticket
        await first.drain()
        await second.drain()
        async with app.worker(1):
            await (await work.submit())
    assert story == ["connected", "loaded", "worked", "worked"]


async def test_a_worker_that_cannot_warm_up_does_not_start_and_claims_nothing() -> None:
    app, cold = App("memory://"), [True]

    @app.warm_up
    async def light() -> None:
        if cold:
            raise LookupError("no coal")

    @app.task(name="work")
    async def work() -> int:
        return 1

    async with app:
        ticket = await work.submit()
        with pytest.raises(LookupError, match="no coal"):
            async with app.worker():
                raise AssertionError("it has begun")
        assert (await ticket.refresh()).attempts == 0
        cold.clear()
        async with app.worker():
            assert await ticket == 1


async def test_a_caller_waiting_for_a_failed_warm_up_tries_it_again() -> None:
    app, gate, tries = App("memory://"), asyncio.Event(), [1, 0]

    @app.warm_up
    async def light() -> None:
        await gate.wait()
        if tries.pop(0):
            raise LookupError("no coal")

    starts = [asyncio.create_task(app.core.get_ready()) for _ in range(2)]
    await asyncio.sleep(0)
    gate.set()
    failed, done = await asyncio.gather(*starts, return_exceptions=True)
    assert isinstance(failed, LookupError)
    assert done is None
    assert tries == []


@pytest.mark.slow
async def test_a_child_is_warm_before_its_first_job_outside_of_its_timeout(warm: App) -> None:
    async with warm, warm.worker(1):
        found = [await (await warm_tasks.warmed.submit(number)) for number in range(2)]
    assert warm_tasks.WARMED == ALL
    assert [names for _, names in found] == [ALL, ALL]
    assert found[0][0] == found[1][0] != os.getpid()


@pytest.mark.slow
async def test_a_suspect_that_runs_alone_is_warmed_up(warm: App) -> None:
    async with warm:
        ticket = await warm_tasks.suspected.submit()
        await crash_twice(warm)
        async with warm.worker(1):
            pid, names = await ticket
    assert names == ALL
    assert pid != os.getpid()


@pytest.mark.slow
async def test_a_child_that_cannot_warm_up_fails_its_job_with_the_reason() -> None:
    app = App("memory://")
    app.warm_up(warm_tasks.fail_apart)
    work = app.task(run_in="process", retry=None, name="work")(warm_tasks.warmed.fn)
    async with app, app.worker(1):
        with pytest.raises(JobFailed, match=r"warm-up .* LookupError: no coal"):
            await (await work.submit(1))


@pytest.mark.slow
async def test_a_warm_up_that_a_child_cannot_import_is_named() -> None:
    app = App("memory://")
    app.warm_up(lambda: None)
    work = app.task(run_in="process", retry=None, name="work")(warm_tasks.warmed.fn)
    assert isinstance(work.code, TaskCode)
    async with app, app.worker(1):
        with pytest.raises(JobFailed, match="register it at the top level"):
            await (await work.submit(1))


def test_a_warm_up_takes_no_arguments() -> None:
    app: Any = App("memory://")
    app.warm_up(lambda x=1, *rest, **more: x)
    with pytest.raises(UsageError, match="called without arguments, and needs x, y: give them"):
        app.warm_up(lambda x, y: x)
