"""Jobs that interfere with the event loop they share with their worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poolhand import App
from poolhand.views import Status
from tests.unit.durable.support import until

LIMIT = 40


class Room:
    """An app with a job that waits, one that answers, and one that cancels every task it finds."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.gate = asyncio.Event()
        self.entered = 0
        self.spared: set[asyncio.Task[Any]] = set()

        @self.app.task(name="hold")
        async def hold() -> str:
            self.entered += 1
            await self.gate.wait()
            return "held"

        @self.app.task(name="answer")
        async def answer() -> int:
            return 42

        @self.app.task(name="sweep")
        async def sweep(below: bool = False) -> None:
            if below:
                await asyncio.create_task(self.cancel_all())
            await self.cancel_all()

        self.hold, self.answer, self.sweep = hold, answer, sweep

    async def cancel_all(self) -> None:
        for task in asyncio.all_tasks():
            if task not in self.spared:
                task.cancel()
        await asyncio.sleep(0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.mark.parametrize("below", [False, True], ids=["itself", "by a task of its own"])
async def test_a_job_that_cancels_every_task_of_its_loop_stops_no_worker(
    url: str, below: bool
) -> None:
    room = Room(url)
    room.spared = asyncio.all_tasks()
    async with asyncio.timeout(LIMIT), room.app as app, app.worker(4):
        held = [await room.hold.submit() for _ in range(2)]
        await until(lambda: room.entered == 2)
        bad = await room.sweep.submit(below)
        while (await bad.refresh()).status is not Status.CANCELLED:
            pass
        # The jobs that ended with it lost nothing, not even an attempt.
        await until(lambda: room.entered == 4)
        room.gate.set()
        assert [await ticket for ticket in held] == ["held", "held"]
        assert [(await ticket.refresh()).attempts for ticket in held] == [1, 1]
        assert await (await room.answer.submit()) == 42


async def test_a_job_cancelled_before_it_started_is_handed_back(url: str) -> None:
    room = Room(url)
    room.spared = asyncio.all_tasks()
    async with asyncio.timeout(LIMIT), room.app as app:
        await room.sweep.submit()
        tickets = [await room.answer.submit() for _ in range(8)]
        async with app.worker(9):
            assert [await ticket for ticket in tickets] == [42] * 8


def test_a_program_cancelled_by_its_job_raises_and_hands_running_jobs_back(
    url: str,
) -> None:
    async def work() -> None:
        room = Room(url)
        async with asyncio.timeout(LIMIT), room.app as app, app.worker(4):
            await room.hold.submit()
            await until(lambda: room.entered == 1)
            await room.sweep.submit()
            await asyncio.Event().wait()

    async def look() -> list[str]:
        async with App(url) as app:
            page = await app.operator().jobs()
            return sorted(f"{job.name} {job.status}" for job in page.jobs)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())
    assert asyncio.run(look()) == ["hold queued", "sweep cancelled"]


async def test_a_job_that_cancels_every_task_during_a_drain_does_not_end_the_drain(
    url: str,
) -> None:
    room = Room(url)
    room.spared = asyncio.all_tasks()
    async with asyncio.timeout(LIMIT), room.app as app:
        worker = await app.worker(4).start()
        begun, go = asyncio.Event(), asyncio.Event()

        @app.task(name="late")
        async def late() -> None:
            begun.set()
            await go.wait()
            await room.cancel_all()

        ticket = await late.submit()
        await begun.wait()
        draining = worker.drain(LIMIT)
        asyncio.get_running_loop().call_soon(go.set)
        await draining
        assert (await ticket.refresh()).status is Status.CANCELLED


def raises(loop: Any, coroutine: Any, **options: Any) -> Any:
    raise RuntimeError("broken")


def forgets(loop: Any, coroutine: Any, **options: Any) -> Any:
    coroutine.close()


def outdated(loop: Any, coroutine: Any) -> Any:
    return asyncio.Task(coroutine, loop=loop)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("factory", [raises, forgets, outdated])
async def test_a_job_that_sets_a_broken_task_factory_stops_no_worker(
    url: str, factory: Callable[..., Any]
) -> None:
    room = Room(url)
    loop = asyncio.get_running_loop()
    told: list[str] = []
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))

    @room.app.task(name="break_loop")
    async def break_loop() -> None:
        loop.set_task_factory(factory)

    try:
        async with asyncio.timeout(LIMIT), room.app as app, app.worker(4):
            await (await break_loop.submit())
            tickets = [await room.answer.submit() for _ in range(5)]
            assert [await ticket for ticket in tickets] == [42] * 5
    finally:
        loop.set_task_factory(None)
    assert "the task factory of this event loop is broken" in told[0]
