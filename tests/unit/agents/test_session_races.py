"""Turns of one session from several apps at once, each on its own connection."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from poolhand import Session, wait
from poolhand.app import App
from poolhand.errors import SessionBusy
from poolhand.pool.ticket import Ticket
from poolhand.views import Job, Status

pytestmark = pytest.mark.slow

APPS, EACH = 4, 5
LIMIT = 60


class Crowd:
    """Apps that submit and run turns of one session; the first turn waits for `goes_on`."""

    def __init__(self, url: str, on_busy: str) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.cuts = on_busy in ("interrupt", "rollback")
        self.at_once = self.most_at_once = 0
        self.seen: list[list[Any]] = []
        self.apps = [App(url) for _ in range(APPS)]
        self.agents = [app.agent(name="chat", on_busy=on_busy)(self.chat) for app in self.apps]

    async def chat(self, session: Session, message: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            session.state["messages"].append(message)
            await session.save()
            if message == "first":
                self.begun.set()
                await self.goes_on.wait()
            self.seen.append([message, *session.inbox])
        finally:
            self.at_once -= 1

    async def play(self) -> tuple[Job, list[Ticket[Any] | BaseException]]:
        """Let all apps submit while the first turn runs; return it, and what each submit got."""
        async with AsyncExitStack() as stack, asyncio.timeout(LIMIT):
            for app in self.apps:
                await stack.enter_async_context(app)
                await stack.enter_async_context(app.worker(slots=5))
            first = await self.agents[0].session("s").submit("first")
            await self.begun.wait()
            doors = [agent.session("s") for agent in self.agents for _ in range(EACH)]
            submits = [door.submit(f"m{number}") for number, door in enumerate(doors)]
            got = await asyncio.gather(*submits, return_exceptions=True)
            if self.cuts:
                await wait(first)
            self.goes_on.set()
            self.jobs = await wait([one for one in got if isinstance(one, Ticket)])
            job = await wait(first)
            record = await self.agents[0].session("s").record()
        assert record is not None
        self.messages = record.state["messages"]
        assert self.most_at_once == 1
        return job, got


async def test_all_but_one_are_refused_at_once(shared_url: str) -> None:
    crowd = Crowd(shared_url, "reject")
    job, got = await crowd.play()
    assert [type(one) for one in got] == [SessionBusy] * APPS * EACH
    assert job.status is Status.COMPLETED
    assert crowd.messages == ["first"]


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_the_last_of_many_interrupting_turns_completes(shared_url: str, on_busy: str) -> None:
    crowd = Crowd(shared_url, on_busy)
    job, got = await crowd.play()
    assert not [one for one in got if isinstance(one, BaseException)]
    assert job.status is Status.CANCELLED
    ends = [one.status for one in crowd.jobs]
    assert set(ends) <= {Status.COMPLETED, Status.CANCELLED}
    assert Status.COMPLETED in ends
    done = [f"m{number}" for number, end in enumerate(ends) if end is Status.COMPLETED]
    said = set(crowd.messages)
    # State saved by interrupted turns stays, or is rolled back; no completed turn is lost.
    assert set(done) <= said
    if on_busy == "rollback":
        assert said == set(done)
    else:
        assert "first" in said


async def test_all_that_join_are_in_one_inbox_and_none_is_lost(shared_url: str) -> None:
    crowd = Crowd(shared_url, "merge")
    job, got = await crowd.play()
    assert job.status is Status.COMPLETED
    tickets = [one for one in got if isinstance(one, Ticket)]
    assert len(tickets) == APPS * EACH
    assert len({one.id for one in tickets}) == 1
    first, others = crowd.seen
    assert first == ["first"]
    assert sorted(others) == sorted(f"m{number}" for number in range(APPS * EACH))
