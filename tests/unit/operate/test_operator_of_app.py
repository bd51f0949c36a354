"""The operator of an app works from any event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from poolhand import App, GiveUp
from poolhand.contract import Filter
from poolhand.rules.job import Status


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    memory = request.param == "memory"
    return App("memory://" if memory else f"sqlite:///{tmp_path}/agents.db")


async def test_an_operator_of_an_app_has_every_view_and_action(app: App) -> None:
    @app.task(name="fail", pool="p")
    async def fail() -> None:
        raise GiveUp("no")

    operator = app.operator()
    async with app:
        async with app.worker():
            ticket = await fail.submit()
            with pytest.raises(GiveUp):
                await ticket
        paused, resized = await operator.pause("p", "anna"), await operator.resize("p", 3, "anna")
        assert paused is not None
        assert resized is not None
        assert (paused.paused, resized.slots) == (True, 3)
        assert [job.id for job in await operator.dead()] == [ticket.id]
        (again,) = await operator.retry([ticket.id], "anna")
        assert again.new_id is not None
        job = await operator.job(again.new_id)
        assert job is not None
        assert job.reason == "paused"
        assert await operator.resume("p", "anna") is not None
        waiting = await operator.job(again.new_id)
        assert waiting is not None
        assert waiting.reason == "no_worker"
        assert [answer.done for answer in await operator.cancel([job.id], "anna")] == [True]
        assert await operator.count() == {Status.FAILED: 1, Status.CANCELLED: 1}
        assert (await operator.retry_all(Filter(), "anna")).done == 0
        (line,) = await operator.last_audit(kind="pool_rerun")
        assert (line.job, line.by) == (ticket.id, "anna")


async def test_an_operator_of_an_app_may_be_asked_from_other_loops(app: App) -> None:
    async with app:
        await app.task(_work).submit()
        elsewhere = await asyncio.to_thread(lambda: asyncio.run(app.operator().pools()))
        assert [pool.name for pool in elsewhere] == ["default"]


async def _work() -> None: ...
