"""Events of a job: numbered without gaps, for every reader, over attempts and processes."""

from __future__ import annotations

import asyncio
from math import nan
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from poolhand import Pool, Retry, UsageError, emit, progress
from poolhand.app import App
from poolhand.durable.connection.connection import ConnectionSlot, StoreConnection
from poolhand.errors import JobLost, TooLarge
from poolhand.pool.ticket import Ticket
from poolhand.rules.lifecycle import KEEP, Keep
from poolhand.testing import SeededRuntime
from poolhand.views import JobEvent
from tests.contract.support import over
from tests.unit.durable.support import SharedStore, StoreApp, seeded

LIMIT = 30


async def told(ticket: Ticket[Any], after: int = 0) -> list[JobEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in ticket.events(after)]


def shown(events: list[JobEvent]) -> list[tuple[int, str, int, Any]]:
    return [(one.number, one.kind.value, one.attempt, one.data) for one in events]


async def test_the_events_of_a_job_are_read_in_order_and_end_with_its_end(url: str) -> None:
    app = App(url)

    @app.task(name="answer")
    async def answer(question: str) -> str:
        await progress("thinking", step=1)
        for word in ("to", "be"):
            await emit(word)
        await emit({"of": question})
        return "done"

    async with app, app.worker():
        ticket = await answer.submit("what?")
        assert shown(await told(ticket)) == [
            (1, "progress", 1, {"message": "thinking", "step": 1}),
            (2, "chunk", 1, "to"),
            (3, "chunk", 1, "be"),
            (4, "chunk", 1, {"of": "what?"}),
            (5, "state", 1, "completed"),
        ]
        assert await ticket == "done"
        assert [one.number for one in await told(ticket, after=3)] == [4, 5]
        assert [one.number for one in await told(ticket, after=4)] == [5]
        assert await told(ticket, after=5) == []
        assert await told(ticket, after=99) == []


async def test_emitted_values_are_read_as_their_json_form() -> None:
    app = App("memory://")

    class Token(BaseModel):
        text: str
        place: Path = Path("a")

    @app.task(name="answer")
    async def answer() -> None:
        for piece in (Token(text="to"), Path("b"), (1, 2), {1: nan}):
            await emit(piece)
        await progress("at", token=Token(text="be"))

    async with app, app.worker():
        events = await told(await answer.submit())
        assert [one.data for one in events[:-1]] == [
            {"text": "to", "place": "a"},
            "b",
            [1, 2],
            {"1": None},
            {"message": "at", "token": {"text": "be", "place": "a"}},
        ]


async def test_a_job_that_emits_nothing_has_only_its_end_event(url: str) -> None:
    app = App(url)

    @app.task(name="fail", retry=None)
    async def fail() -> None:
        raise ValueError

    async with app, app.worker():
        ticket = await fail.submit()
        assert shown(await told(ticket)) == [(1, "state", 1, "failed")]
        assert await told(ticket, after=1) == []


async def test_a_new_attempt_is_marked_in_the_events(url: str) -> None:
    app = App(url)
    runs: list[int] = []

    @app.task(name="answer", retry=Retry(attempts=2, first=0.0, jitter=0.0))
    async def answer() -> None:
        runs.append(1)
        await emit(len(runs))
        if len(runs) == 1:
            raise ConnectionError

    async with app, app.worker():
        assert shown(await told(await answer.submit())) == [
            (1, "chunk", 1, 1),
            (2, "state", 1, "scheduled"),
            (3, "restarted", 2, None),
            (4, "chunk", 2, 2),
            (5, "state", 2, "completed"),
        ]


async def test_every_reader_gets_events_while_the_job_runs(url: str) -> None:
    app = App(url)
    heard = asyncio.Event()

    @app.task(name="answer")
    async def answer() -> None:
        await emit("first")
        await heard.wait()
        await emit("last")

    async def listen(ticket: Ticket[Any]) -> list[Any]:
        found = []
        async for event in ticket.events():
            found.append(event.data)
            if len(found) == 1:
                ready.append(1)
            if len(ready) == 3:
                heard.set()
        return found

    ready: list[int] = []
    async with app, app.worker(), asyncio.timeout(LIMIT):
        ticket = await answer.submit()
        listeners = [asyncio.create_task(listen(ticket)) for _ in range(3)]
        assert await asyncio.gather(*listeners) == [["first", "last", "completed"]] * 3


def tell_from_outside(count: int) -> None:
    for number in range(count):
        emit(number)


async def tell_and_wait(count: int) -> None:
    for number in range(count):
        await emit(number)


@pytest.mark.slow
@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_thread_and_process_jobs_can_emit_events(url: str, run_in: str) -> None:
    app = App(url)
    task = app.task(run_in=run_in)(tell_from_outside)
    async with app, app.worker():
        ticket = await task.submit(1000)
        events = await told(ticket)
        assert [one.data for one in events] == [*range(1000), "completed"]
        assert [one.number for one in events] == [*range(1, 1002)]


@pytest.mark.slow
async def test_a_job_that_emits_faster_than_events_are_written_waits(url: str) -> None:
    app = App(url)
    piece = "x" * 100_000

    @app.task(name="pour")
    async def pour(count: int) -> None:
        for _ in range(count):
            await emit(piece)

    @app.task(name="pour_in_thread")
    def pour_in_thread(count: int) -> None:
        for _ in range(count):
            emit(piece)

    async with app, app.worker():
        for task in (pour, pour_in_thread):
            assert len(await told(await task.submit(100))) == 101


async def test_events_of_a_lost_attempt_are_not_stored(url: str) -> None:
    app = App(url)
    gone = asyncio.Event()
    late: list[str] = []

    @app.task(name="answer")
    async def answer() -> None:
        try:
            await emit("good")
            await asyncio.sleep(100)
        finally:
            gone.set()
            await emit("after its cancellation")
            late.append("told")

    async with app, app.worker():
        ticket = await answer.submit()
        async for _ in ticket.events():
            break
        await ticket.cancel()
        await gone.wait()
        events = await told(ticket)
        assert events[0].data == "good"
        assert events[-1].data == "cancelled"
        assert [one.number for one in events] == [*range(1, len(events) + 1)]


async def test_outside_of_a_stored_job_emit_does_nothing() -> None:
    await emit("nobody hears")
    await progress()
    async with Pool("memory") as pool:
        ticket = await pool.submit(tell_and_wait, 3)
        await ticket
        with pytest.raises(UsageError, match="its events are not stored"):
            ticket.events()


async def test_invalid_events_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="emit takes JSON values"):
        emit(object())
    with pytest.raises(UsageError, match="progress takes a text"):
        progress(3)  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match="at most 262,144"):
        emit("x" * 300_000)
    app = App(url)

    @app.task(name="nothing")
    async def nothing() -> None: ...

    async with app, app.worker():
        ticket = await nothing.submit()
        await ticket
        for wrong in (-1, 1.5, "1", True):
            with pytest.raises(UsageError, match="it must be the number of an event"):
                await told(ticket, wrong)  # type: ignore[arg-type]


async def test_events_are_pruned_with_their_job(url: str) -> None:
    app = App(url, keep=Keep(results=0.001))

    @app.task(name="answer")
    async def answer() -> None:
        await emit("x")

    async with app, app.worker():
        ticket = await answer.submit()
        assert len(await told(ticket)) == 2
        connection = await app.core.connection()
        await connection.thread.ask(lambda: connection.store.prune(over(0.0)))
        assert await connection.thread.ask(lambda: connection.store.read(f"job/{ticket.id}")) == []
        with pytest.raises(JobLost, match="no longer stored"):
            await told(ticket)


class Forgetful(StoreApp):
    """An app that keeps the last hundred events of a job."""

    def __init__(self, store: SharedStore, runtime: SeededRuntime) -> None:
        super().__init__(store, runtime)
        self.core.slot = ConnectionSlot(self._connection)

    def _connection(self) -> StoreConnection:
        return StoreConnection(self.store, self.core.runtime, self.events, KEEP, keep_events=100)


@seeded
async def test_only_the_last_of_very_many_events_are_kept(runtime: SeededRuntime) -> None:
    app = Forgetful(SharedStore(runtime), runtime)

    @app.task(name="pour")
    async def pour() -> None:
        for number in range(1, 1001):
            await emit(number)
            await asyncio.sleep(0.001)

    async with app, app.worker():
        ticket = await pour.submit()
        await ticket
        events = [event async for event in ticket.events()]
    numbers = [event.number for event in events]
    assert numbers == list(range(numbers[0], 1002))
    assert 100 <= len(numbers) <= 200
    assert [event.data for event in events[:-1]] == numbers[:-1]
