"""Sessions: turns of one conversation run one at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import Pool, Retry, Snooze, Ticket, fair_round_robin, fifo, lifo, priority, wait
from poolhand.pool.submitter import Submitter
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Journal, occupied, seeded, until

STRATEGIES = [fifo(), lifo(), priority(), priority(aging=1), fair_round_robin()]


class Turns:
    """Turns that detect an overlap of two turns of one session."""

    def __init__(self, runtime: SeededRuntime) -> None:
        self.runtime = runtime
        self.ran: list[str] = []
        self.inside: list[str] = []
        self.most = 0

    async def turn(self, session: str, name: str) -> str:
        assert session not in self.inside
        self.inside.append(session)
        self.most = max(self.most, len(self.inside))
        self.ran.append(name)
        wake = asyncio.Event()
        self.runtime.loop.call_later(self.runtime.random.uniform(0.1, 1), wake.set)
        await wake.wait()
        self.inside.remove(session)
        return name


@pytest.mark.parametrize("queue", STRATEGIES, ids=str)
@seeded
async def test_turns_run_one_at_a_time_in_submit_order_whatever_strategy_and_priority(
    runtime: SeededRuntime, queue: Any
) -> None:
    turns = Turns(runtime)
    async with Pool(runtime=runtime, max_concurrent=4, queue=queue) as pool:
        for number in range(12):
            view = pool.with_options(session="s", priority=number, key=runtime.random.choice("ab"))
            await view.submit(turns.turn, "s", str(number))
    assert turns.ran == [str(number) for number in range(12)]


@seeded
async def test_sessions_run_concurrently(runtime: SeededRuntime) -> None:
    turns = Turns(runtime)
    async with Pool(runtime=runtime, max_concurrent=3) as pool:
        for number in range(5):
            for session in "abc":
                view = pool.with_options(session=session)
                await view.submit(turns.turn, session, f"{session}{number}")
    assert turns.most == 3
    for session in "abc":
        own = [name for name in turns.ran if name.startswith(session)]
        assert own == [f"{session}{number}" for number in range(5)]


@seeded
async def test_blocked_turns_occupy_no_slot(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        gate = asyncio.Event()
        view = pool.with_options(session="s")
        turns = [await view.submit(gate.wait) for _ in range(10)]
        assert await pool.run(Journal().note, "free") == "free"
        gate.set()
        await wait(turns)


@seeded
async def test_a_blocked_turn_explains_why(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=3) as pool:
        gate = asyncio.Event()
        view = pool.with_options(session="s")
        first = await view.submit(gate.wait)
        second = await view.submit(Journal().note, "x")
        job = second.snapshot()
        assert (first.status, job.status) == (Status.RUNNING, Status.BLOCKED)
        assert job.blocked_on == "session"
        assert pool.snapshot().blocked == 1
        gate.set()
        done = await wait(second)
        assert (done.status, done.blocked_on) == (Status.COMPLETED, None)


@seeded
async def test_sessions_are_per_tenant(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=3) as pool:
        gate = asyncio.Event()
        views = [pool.with_options(session="s", tenant=tenant) for tenant in ("a", "b", None)]
        held: list[Ticket[Any]] = [await view.submit(gate.wait) for view in views]
        assert [ticket.status for ticket in held] == [Status.RUNNING] * 3
        more = await pool.with_options(session="s", tenant="a").submit(Journal().note, "x")
        assert more.status is Status.BLOCKED
        gate.set()
        await wait([*held, more])


@seeded
async def test_a_turn_holds_its_session_from_the_queue_on(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        async with occupied(pool, 2):
            view = pool.with_options(session="s")
            first = await view.submit(journal.note, "first")
            second = await view.with_options(priority=99).submit(journal.note, "second")
            assert (first.status, second.status) == (Status.QUEUED, Status.BLOCKED)
        await wait([first, second])
    assert journal.ran == ["first", "second"]


async def fail() -> None:
    raise LookupError


async def ends(runtime: SeededRuntime, pool: Pool, how: str) -> Ticket[Any]:
    """Submit a first turn that ends in a certain way."""
    view = pool.with_options(session="s")
    if how == "failed":
        return await view.submit(fail)
    if how == "timed out":
        return await view.with_options(timeout=1).submit(asyncio.Event().wait)
    ticket = await view.submit(asyncio.Event().wait)
    runtime.loop.call_later(1, lambda: asyncio.ensure_future(ticket.cancel()))
    return ticket


@pytest.mark.parametrize("how", ["failed", "timed out", "cancelled"])
@seeded
async def test_a_turn_that_ends_badly_passes_the_session_on(
    runtime: SeededRuntime, how: str
) -> None:
    async with Pool(runtime=runtime) as pool:
        first = await ends(runtime, pool, how)
        assert await pool.with_options(session="s").run(Journal().note, "next") == "next"
        assert first.status in (Status.FAILED, Status.CANCELLED)


@seeded
async def test_a_turn_holds_its_session_while_it_waits_for_a_retry(
    runtime: SeededRuntime,
) -> None:
    ran: list[str] = []

    async def flaky() -> None:
        ran.append("flaky")
        if len(ran) < 3:
            raise LookupError

    async def after() -> None:
        ran.append("after")

    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        view = pool.with_options(session="s")
        retry = Retry(attempts=3, first=60)
        first = await view.with_options(retry=retry).submit(flaky)
        second = await view.submit(after)
        await asyncio.sleep(1)
        assert (first.status, second.status) == (Status.SCHEDULED, Status.BLOCKED)
        await wait([first, second])
    assert ran == ["flaky", "flaky", "flaky", "after"]


@seeded
async def test_a_turn_holds_its_session_while_it_snoozes(runtime: SeededRuntime) -> None:
    ran: list[str] = []

    async def sleepy() -> None:
        ran.append("sleepy")
        if len(ran) == 1:
            raise Snooze(30)

    async def after() -> None:
        ran.append("after")

    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        view = pool.with_options(session="s")
        await wait([await view.submit(sleepy), await view.submit(after)])
    assert ran == ["sleepy", "sleepy", "after"]


@seeded
async def test_a_waiting_holder_that_is_cancelled_passes_the_session_on(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(session="s")
        async with occupied(pool):
            first = await view.submit(journal.note, "first")
            second = await view.submit(journal.note, "second")
            third = await view.submit(journal.note, "third")
            await first.cancel()
            assert (second.status, third.status) == (Status.QUEUED, Status.BLOCKED)
        await wait([second, third])
    assert journal.ran == ["second", "third"]


@seeded
async def test_a_blocked_turn_can_be_cancelled_and_the_order_stays(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(session="s")
        async with occupied(pool):
            tickets = [await view.submit(journal.note, name) for name in "abcd"]
            assert await tickets[2].cancel()
        await wait(tickets)
    assert journal.ran == ["a", "b", "d"]


@seeded
async def test_a_blocked_turn_can_expire(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        view = pool.with_options(session="s")
        gate = asyncio.Event()
        first = await view.submit(gate.wait)
        second = await view.with_options(expires=5).submit(Journal().note, "late")
        assert (await wait(second)).status is Status.EXPIRED
        gate.set()
        await first
        assert await view.run(Journal().note, "next") == "next"


@seeded
async def test_a_scheduled_turn_does_not_hold_the_session_before_its_time(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(session="s")
        later = await view.with_options(delay=60).submit(journal.note, "later")
        assert await view.run(journal.note, "now") == "now"
        assert later.status is Status.SCHEDULED
        await later
    assert journal.ran == ["now", "later"]


@seeded
async def test_turns_of_a_session_may_submit_the_next_one(runtime: SeededRuntime) -> None:
    ran: list[int] = []

    async def turn(view: Submitter, number: int) -> None:
        ran.append(number)
        if number < 5:
            await view.submit(turn, view, number + 1)

    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(session="s")
        await view.run(turn, view, 0)
        await until(lambda: not pool.size())
    assert ran == [0, 1, 2, 3, 4, 5]


@seeded
async def test_a_finished_session_is_dropped(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        for number in range(3):
            view = pool.with_options(session="s")
            assert await view.run(Journal().note, str(number)) == str(number)
        ticket = await pool.with_options(session="s").submit(Journal().note, "x")
        assert ticket.status is Status.RUNNING
