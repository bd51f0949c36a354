"""The loop of a worker is watched only while jobs run."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from poolhand import App
from poolhand.durable.worker.worker import WorkerSettings
from poolhand.observe.events import Event, Events, LoopBlocked
from poolhand.pool.monitor import watchdog

LIMIT = 20.0


def watchers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "poolhand-watchdog"]


async def until_nobody_watches() -> None:
    """Wait until no watchdog is left, including those of other tests."""
    rest = asyncio.Event()
    async with asyncio.timeout(LIMIT):
        while watchers():
            asyncio.get_running_loop().call_later(0.01, rest.set)
            await rest.wait()
            rest.clear()


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture
def app(heard: list[Event]) -> App:
    events = Events()
    events.subscribe(heard.append)
    return App("memory://", events=events)


@pytest.mark.slow
async def test_a_worker_with_rests_is_watched_from_its_first_job_until_it_is_idle_again(
    app: App, heard: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "REST_AFTER", 0.05)
    await until_nobody_watches()

    @app.task(name="block")
    async def block() -> None:
        threading.Event().wait(0.4)

    async with app, app.core.make_worker(WorkerSettings(2, rests=True)):
        for blocked in (1, 2):
            assert not watchers()
            await (await block.submit())
            named = [one for one in heard if isinstance(one, LoopBlocked)]
            assert [one.job.name for one in named if one.job] == ["block"] * blocked
            await until_nobody_watches()


async def test_jobs_that_follow_each_other_are_watched_by_one(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "REST_AFTER", 60.0)
    await until_nobody_watches()

    @app.task(name="quick")
    async def quick() -> float:
        return time.monotonic()

    async with app, app.core.make_worker(WorkerSettings(1, rests=True)):
        await (await quick.submit())
        first = watchers()
        assert len(first) == 1
        await (await quick.submit())
        assert watchers() == first


async def test_a_worker_without_rests_is_always_watched(app: App) -> None:
    await until_nobody_watches()
    async with app, app.worker(slots=1):
        assert len(watchers()) == 1
    await until_nobody_watches()
