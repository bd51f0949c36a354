"""Active schedules whose jobs no worker would run: noted in the list, found by the doctor."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from poolhand.app import App
from poolhand.contract import Owner
from poolhand.operate.actions import Operator
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import Finding, Level
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from tests.unit.durable.support import connected

GONE_PID = 2**22 + 1  # above the largest pid of Linux


class Later(Runtime):
    """A runtime whose clock is two days ahead."""

    def wall(self) -> datetime:
        return super().wall() + timedelta(days=2)


def reporting(url: str, *, scheduled: bool = True) -> App:
    app = App(url)

    @app.task(name="reports.send", pool="reports")
    async def send() -> None: ...

    @app.task(name="other")
    async def other() -> None: ...

    if scheduled:
        app.cron("@daily")(send)
    return app


def with_other_tasks(url: str) -> App:
    app = App(url)

    @app.task(name="other")
    async def other() -> None: ...

    return app


async def schedule(app: App) -> None:
    """Have a worker record the schedule of an app."""
    async with app, app.worker():
        while not await app.operator().schedules():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)


async def notes(app: App) -> list[str]:
    return [one.note for one in await app.operator().schedules()]


async def found(url: str, runtime: Runtime | None = None) -> list[Finding]:
    runtime = runtime or Runtime()
    findings = await examine(store_of(url, runtime), runtime)
    return [finding for finding in findings if finding.check == "schedules"]


async def test_a_schedule_with_a_running_worker_has_no_note(shared_url: str) -> None:
    app = reporting(shared_url)
    await schedule(app)
    async with app, app.worker():
        await connected(app, 1)
        assert await notes(app) == [""]
        assert await found(shared_url) == []


async def test_a_schedule_without_any_worker_is_found(shared_url: str) -> None:
    app = reporting(shared_url)
    await schedule(app)
    async with app:
        assert await notes(app) == ["no worker is connected"]
        (view,) = await app.operator().schedules()
        (finding,) = await found(shared_url)
    assert (finding.level, finding.text) == (
        Level.WARN,
        "1 active schedule ('reports.send'): no worker is connected",
    )
    assert finding.fix == (
        "start a worker whose code declares it, or, if it is gone for good, `poolhand schedules "
        f"pause '{view.id}'`"
    )
    (late,) = await found(shared_url, Later())
    assert late.level is Level.WRONG
    assert late.text.endswith("no worker is connected, and moments were missed")


async def test_a_schedule_whose_task_no_worker_has_is_found(shared_url: str) -> None:
    await schedule(reporting(shared_url))
    app = with_other_tasks(shared_url)
    async with app, app.worker():
        await connected(app, 1)
        assert await notes(app) == ["no connected worker has the task"]
        (finding,) = await found(shared_url)
        assert (
            finding.text == "1 active schedule ('reports.send'): no connected worker has the task"
        )


async def test_a_schedule_whose_pool_no_worker_serves_is_found(shared_url: str) -> None:
    app = reporting(shared_url)
    await schedule(app)
    async with app, app.worker(pools=["default"]):
        await connected(app, 1)
        said = "no connected worker that has the task serves its pool 'reports'"
        assert await notes(app) == [said]
        (finding,) = await found(shared_url)
        assert finding.text.endswith(said)


async def test_a_paused_schedule_is_not_expected_to_run(shared_url: str) -> None:
    app = reporting(shared_url)
    await schedule(app)
    async with app:
        await app.operator().pause_schedule("reports.send", "anna")
        assert await notes(app) == [""]
        assert await found(shared_url, Later()) == []


async def test_a_schedule_that_is_no_longer_declared_has_a_note(shared_url: str) -> None:
    await schedule(reporting(shared_url))
    app = reporting(shared_url, scheduled=False)
    async with app, app.worker():
        await connected(app, 1)
        assert await notes(app) == [""], "its next moment has not come"
        store = store_of(shared_url, Runtime())
        await store.open()
        try:
            (view,) = await Operator(store, Later()).schedules()
        finally:
            await store.close()
        assert view.note == "no connected worker declares it"


async def test_a_killed_worker_does_not_count_as_a_worker(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = reporting(url)
    await schedule(app)
    store = store_of(url, Runtime())
    await store.open()
    try:
        host, boot, _, started = Runtime().identity()
        await store.enroll(Owner("dead", host, boot, GONE_PID, started, works=True))
        (view,) = await Operator(store, Runtime()).schedules()
    finally:
        await store.close()
    assert view.note == "no worker is connected"


@pytest.mark.parametrize("count", [2, 5])
async def test_schedules_of_one_reason_are_one_finding(shared_url: str, count: int) -> None:
    app = App(shared_url)
    for number in range(count):

        @app.cron("@daily")
        @app.task(name=f"task-{number}")
        async def task() -> None: ...

    async with app, app.worker():
        while len(await app.operator().schedules()) < count:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
    (finding,) = await found(shared_url)
    names = "'task-0', 'task-1'" + (", 'task-2' and 2 more" if count == 5 else "")
    assert finding.text == f"{count} active schedules ({names}): no worker is connected"
    assert finding.fix is not None
    assert finding.fix.endswith("`poolhand schedules pause ID`")
