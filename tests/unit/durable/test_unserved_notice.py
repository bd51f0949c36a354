"""Awaiting a job that no worker serves logs a warning, once for each pool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import App, bounded
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import seeded
from tests.unit.durable.test_failure_log import logged


def with_tasks(app: App) -> tuple[Any, Any]:
    @app.task(name="one")
    async def one() -> int:
        return 1

    @app.task(name="two", pool="other")
    async def two() -> int:
        return 2

    return one, two


@seeded
async def test_an_awaited_job_without_a_worker_is_logged_once_for_its_pool(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)
    one, _ = with_tasks(app)
    async with app:
        first = await one.submit()
        waiting = [asyncio.ensure_future(first.result()), asyncio.ensure_future(one.run())]
        await asyncio.sleep(8)
        assert logged(caplog) == []
        await asyncio.sleep(60)
        (line,) = logged(caplog, "WARNING")
        assert (
            " has waited 10 s in pool 'default': no worker is connected to this store (memory://); "
            in line
        )
        assert "start one (`async with app.worker():` in this program or, unless " in line
        async with app.worker():
            assert await asyncio.gather(*waiting) == [1, 1]


@seeded
async def test_a_pool_that_no_worker_serves_is_named(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)
    one, two = with_tasks(app)
    async with app, app.worker(pools=["default"]):
        waiting = asyncio.ensure_future(two.run())
        for _ in range(30):
            assert await one.run() == 1
            await asyncio.sleep(1)
        (line,) = logged(caplog, "WARNING")
        assert (
            "no worker that is connected to this store (memory://) serves pool 'other'; start one"
            in line
        )
        async with app.worker(pools=["other"]):
            assert await waiting == 2


@seeded
async def test_a_job_that_waits_behind_others_is_not_logged(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="slow")
    async def slow() -> None:
        await asyncio.sleep(30)

    async with app, app.worker(slots=1):
        await asyncio.gather(slow.run(), slow.run(), slow.run())
    assert logged(caplog) == []


@seeded
async def test_a_job_that_is_not_awaited_is_not_logged(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)
    one, _ = with_tasks(app)
    async with app:
        await one.submit()
        await asyncio.sleep(60)
    assert logged(caplog) == []


@seeded
async def test_a_submit_that_waits_for_room_without_a_worker_is_logged_once(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)
    app.pool("default", max_concurrent=1, backpressure=bounded(1))
    one, _ = with_tasks(app)
    async with app:
        await one.submit()
        waiting = [asyncio.ensure_future(one.submit()) for _ in range(3)]
        await asyncio.sleep(8)
        assert logged(caplog) == []
        await asyncio.sleep(60)
        (line,) = logged(caplog, "WARNING")
        assert "a submit has waited 10 s for room in pool 'default': it is full, and no " in line
        assert "start one (`async with app.worker():` in this program or, unless " in line
        async with app.worker():
            assert [await ticket for ticket in await asyncio.gather(*waiting)] == [1, 1, 1]
