"""Times of stored jobs: delays, calendar times and expiry, all in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest

from poolhand import GiveUp, RetryLater, Snooze, wait
from poolhand.app import App
from poolhand.errors import JobExpired
from poolhand.observe.events import JobRetried
from poolhand.rules.outcome import Retry
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Heard, SharedStore, StoreApp, seeded, stored

LATE = 1.1  # how late a job may be; the promise is one second


def clock(app: App, runtime: SeededRuntime) -> tuple[Any, list[float]]:
    """Return a task that notes when it runs."""
    ran: list[float] = []

    @app.task(name="note")
    async def note() -> None:
        ran.append(runtime.monotonic())

    return note, ran


@seeded
async def test_a_delayed_job_starts_after_its_delay(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    note, ran = clock(app, runtime)
    async with app, app.worker():
        began = runtime.monotonic()
        ticket = await note.with_options(delay=7.5).submit()
        assert ticket.status is Status.SCHEDULED
        await ticket
        assert 7.5 <= ran[0] - began <= 7.5 + LATE


@seeded
async def test_a_delay_keeps_its_length_when_the_wall_clock_is_moved(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    note, ran = clock(app, runtime)
    async with app, app.worker():
        began = runtime.monotonic()
        ticket = await note.with_options(delay=10).submit()
        runtime.wall_offset = 3600.0
        await ticket
        assert 10 <= ran[0] - began <= 10 + LATE


@seeded
async def test_a_run_at_date_follows_the_wall_clock(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    note, ran = clock(app, runtime)
    async with app, app.worker():
        began = runtime.monotonic()
        ticket = await note.with_options(run_at=runtime.wall() + timedelta(hours=1)).submit()
        await asyncio.sleep(5)
        assert ran == []
        runtime.wall_offset = 3600.0
        await ticket
        assert ran[0] - began <= 5 + LATE


@seeded
async def test_a_run_at_date_in_the_past_runs_now(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    note, ran = clock(app, runtime)
    async with app, app.worker():
        began = runtime.monotonic()
        await (await note.with_options(run_at=runtime.wall() - timedelta(days=1)).submit())
        assert ran[0] - began <= LATE


@seeded
async def test_a_time_survives_a_restart(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    first, second = StoreApp(store, runtime), StoreApp(store, runtime)
    note, ran = clock(first, runtime)
    second.task(name=note.name)(note.fn)
    began = runtime.monotonic()
    async with first, first.worker():
        ticket = await note.with_options(delay=20).submit()
        await asyncio.sleep(10)
    async with second, second.worker():
        found = await second.get(ticket.id)
        assert found is not None
        await found
    assert 20 <= ran[0] - began <= 20 + LATE


@seeded
async def test_a_job_that_waited_too_long_expires(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    note, ran = clock(app, runtime)
    async with app:
        began = runtime.monotonic()
        ticket = await note.with_options(expires=4).submit()
        with pytest.raises(JobExpired, match="still waiting when it expired"):
            await ticket
        assert 4 <= runtime.monotonic() - began <= 4 + 2 * LATE
        async with app.worker():
            await asyncio.sleep(3)
    assert ran == []


@seeded
async def test_a_job_that_began_in_time_does_not_expire(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="long")
    async def long() -> int:
        await asyncio.sleep(20)
        return 1

    async with app, app.worker():
        assert await (await long.with_options(expires=4).submit()) == 1


@seeded
async def test_a_snooze_costs_no_attempt(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    ran: list[float] = []

    @app.task(name="nap", retry=Retry(attempts=1))
    async def nap() -> int:
        ran.append(runtime.monotonic())
        if len(ran) < 4:
            raise Snooze(30)
        return len(ran)

    async with app, app.worker():
        ticket = await nap.submit()
        assert await ticket == 4
        assert ticket.snapshot().attempts == 1
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(ran)]
    assert all(30 <= pause <= 32 for pause in pauses)
    assert len(heard.of(JobRetried)) == 3


@seeded
async def test_a_snooze_until_a_date_follows_the_wall_clock(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    until: datetime = runtime.wall() + timedelta(hours=5)
    ran: list[datetime] = []

    @app.task(name="nap")
    async def nap() -> None:
        ran.append(runtime.wall())
        if runtime.wall() < until:
            raise Snooze(until)

    async with app, app.worker():
        ticket = await nap.submit()
        await asyncio.sleep(3)
        assert (await stored(app, ticket.id)).job.run_at == until
        runtime.wall_offset = 5 * 3600.0
        began = runtime.monotonic()
        await ticket
        assert runtime.monotonic() - began <= 2 * LATE
    assert len(ran) == 2


@seeded
async def test_a_job_that_asks_for_a_later_retry_gets_it(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[float] = []

    @app.task(name="busy", retry=Retry(attempts=3, jitter=0.0))
    async def busy() -> None:
        ran.append(runtime.monotonic())
        raise RetryLater(60, "the server is busy")

    async with app, app.worker():
        job = await wait(await busy.submit())
    assert (job.status, job.attempts) == (Status.FAILED, 3)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(ran)]
    assert all(60 <= pause <= 62 for pause in pauses)


@seeded
async def test_giving_up_ends_a_job_at_once(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[int] = []

    @app.task(name="hopeless")
    async def hopeless() -> None:
        ran.append(1)
        raise GiveUp("no such user")

    async with app, app.worker():
        ticket = await hopeless.submit()
        with pytest.raises(GiveUp, match="no such user"):
            await ticket
        assert (await stored(app, ticket.id)).dead
    assert ran == [1]


@seeded
async def test_no_job_waits_for_its_time_in_the_memory_of_a_worker(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    first, second = StoreApp(store, runtime), StoreApp(store, runtime)
    ran: list[str] = []

    async def nap(app: str) -> None:
        ran.append(app)
        if len(ran) == 1:
            raise Snooze(10)

    async def first_nap() -> None:
        await nap("first")

    async def second_nap() -> None:
        await nap("second")

    task = first.task(name="nap")(first_nap)
    second.task(name="nap")(second_nap)
    async with second:
        async with first, first.worker():
            ticket = await task.submit()
            await asyncio.sleep(2)
        async with second.worker():
            found = await second.get(ticket.id)
            assert found is not None
            await found
    assert ran == ["first", "second"]


@seeded
async def test_a_worker_that_has_nothing_to_do_asks_once_a_second(
    runtime: SeededRuntime,
) -> None:
    class Counting(SharedStore):
        claims = 0

        async def replace(self, *args: Any) -> Any:
            self.claims += 1
            return await super().replace(*args)

    store = Counting(runtime)
    app = StoreApp(store, runtime)
    async with app, app.worker():
        await asyncio.sleep(1)
        before = store.claims
        await asyncio.sleep(100)
        assert 90 <= store.claims - before <= 110
