"""Stored jobs that await stored jobs: a wait that can never end gets Deadlock, no other does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from poolhand import App, Ticket, wait
from poolhand.contract import Filter
from poolhand.errors import Deadlock
from poolhand.observe.events import DeadlockFound, Events
from poolhand.rules.job import Status
from poolhand.testing import SeededRuntime
from poolhand.views import Job
from tests.unit.durable.support import Heard, SharedStore, StoreApp, seeded, until_later

LATEST = 15.0  # seconds within which a wait that cannot end has ended


class Family:
    """Tasks that await each other, on an app."""

    def __init__(
        self,
        app: App,
        runtime: SeededRuntime,
        inner_pool: str = "work",
        meet: asyncio.Barrier | None = None,
    ) -> None:
        self.caught: list[tuple[str, Deadlock, float]] = []
        self.begun = 0

        @app.task(name="inner", pool=inner_pool, retry=None)
        async def inner(n: int) -> int:
            return n

        @app.task(name="outer", pool="work", retry=None)
        async def outer(n: int) -> int:
            self.begun += 1
            if meet is not None:
                await meet.wait()
            ticket = await inner.submit(n)
            began = runtime.monotonic()
            try:
                return await ticket
            except Deadlock as error:
                self.caught.append((ticket.id, error, runtime.monotonic() - began))
                return -1

        self.inner = inner
        self.outer = outer


async def find(app: App, name: str) -> list[Job]:
    connection = await app.core.connection()
    page = await connection.thread.ask(lambda: connection.store.find(Filter(name=name)))
    return [one.job for one in page.jobs]


@seeded
async def test_when_waiting_jobs_hold_all_slots_the_youngest_gets_deadlock(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    family = Family(app, runtime, meet=asyncio.Barrier(2))
    async with app, app.worker(slots=2):
        tickets = [await family.outer.submit(n) for n in (1, 2)]
        jobs = await wait(tickets)
        await until_later(lambda: bool(heard.of(DeadlockFound)), runtime)
    assert sorted(job.status for job in jobs) == [Status.COMPLETED] * 2
    ((awaited, error, took),) = family.caught
    assert took <= LATEST
    youngest = max(ticket.id for ticket in tickets)
    assert error.job_id == youngest
    text = f"job {youngest} waits for job {awaited} of pool 'work', which can never start: "
    assert str(error).startswith(text)
    for ticket in tickets:
        assert f"outer {ticket.id} waits for inner " in str(error)
    assert "with a worker for that pool alone: app.worker(pools=[…])" in str(error)
    (event,) = heard.of(DeadlockFound)
    assert (event.job_id, event.awaited_id) == (youngest, awaited)
    (line,) = [one.getMessage() for one in caplog.records if "Deadlock" in one.getMessage()]
    assert line == f"Deadlock: {error.message}"


@seeded
async def test_deadlocks_across_processes_are_detected(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    apps, meet = [StoreApp(store, runtime) for _ in range(2)], asyncio.Barrier(2)
    families = [Family(app, runtime, meet=meet) for app in apps]
    async with apps[0], apps[1], apps[0].worker(slots=1), apps[1].worker(slots=1):
        tickets = [await families[0].outer.submit(n) for n in (1, 2)]
        jobs = await wait(tickets)
    caught = [one for family in families for one in family.caught]
    assert [family.begun for family in families] == [1, 1]
    assert len(caught) == 1
    assert caught[0][1].job_id == max(job.id for job in jobs)
    assert caught[0][2] <= LATEST


class Apart:
    """An outer task of one app whose code submits and waits through another app, as in a child."""

    def __init__(self, store: SharedStore, runtime: SeededRuntime) -> None:
        self.parent, self.child = StoreApp(store, runtime), StoreApp(store, runtime)
        self.caught: list[tuple[Deadlock, float]] = []
        self.begun: list[str] = []

        async def inner() -> int:
            return 1

        submitted = self.child.task(name="inner", pool="work", retry=None)(inner)
        self.parent.task(name="inner", pool="work", retry=None)(inner)

        @self.parent.task(name="outer", pool="work", retry=None)
        async def outer() -> int:
            ticket = await submitted.submit()
            self.begun.append(ticket.id)
            began = runtime.monotonic()
            try:
                return await ticket
            except Deadlock as error:
                self.caught.append((error, runtime.monotonic() - began))
                return -1

        self.outer = outer


@seeded
async def test_a_wait_in_a_child_counts_for_the_slot_of_its_job(runtime: SeededRuntime) -> None:
    apart = Apart(SharedStore(runtime), runtime)
    async with apart.parent, apart.child, apart.parent.worker(slots=1):
        ticket = await apart.outer.submit()
        assert await ticket == -1
    ((error, took),) = apart.caught
    assert error.job_id == ticket.id
    assert f"outer {ticket.id} waits for inner {apart.begun[0]}" in str(error)
    assert took <= LATEST


@seeded
async def test_a_wait_in_a_child_process_ends_when_another_worker_starts(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    apart = Apart(store, runtime)
    async with apart.parent, apart.child, apart.parent.worker(slots=1):
        ticket = await apart.outer.submit()
        await until_later(lambda: bool(apart.begun), runtime)
        await asyncio.sleep(5)
        assert len(store.query("SELECT 1 FROM poolhand_documents WHERE key LIKE 'nested/%'")) == 2
        async with apart.parent.worker(slots=1):
            assert await ticket == 1
        await asyncio.sleep(5)
        assert store.query("SELECT 1 FROM poolhand_documents WHERE key LIKE 'nested/%'") == []
    assert apart.caught == []


@seeded
async def test_a_deadlock_over_the_pool_cap_is_detected(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    app.pool("work", max_concurrent=1)
    family = Family(app, runtime)
    async with app, app.worker(slots=5):
        await (await family.outer.submit(1))
    assert len(family.caught) == 1


async def never_within(
    runtime: SeededRuntime, family: Family, tickets: list[Ticket[int]], done: Callable[[], None]
) -> None:
    """Check that no deadlock is reported for a minute; then release the jobs and let them end."""
    await until_later(lambda: family.begun == len(tickets), runtime)
    await asyncio.sleep(60)
    assert family.caught == []
    done()
    assert sorted([await ticket for ticket in tickets]) == list(range(len(tickets)))
    assert family.caught == []


@seeded
async def test_a_busy_slot_of_another_process_prevents_a_deadlock_report(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    one, other = StoreApp(store, runtime), StoreApp(store, runtime)
    gate = asyncio.Event()
    families = [Family(app, runtime) for app in (one, other)]

    @other.task(name="busy", pool="slow", retry=None)
    async def busy() -> None:
        await gate.wait()

    async with one, other, one.worker(slots=2), other.worker(slots=1, pools=["slow", "work"]):
        await busy.submit()
        await until_later(lambda: not store.query("SELECT 1 FROM poolhand_waits"), runtime)
        tickets = [await families[0].outer.submit(n) for n in (0, 1)]
        await never_within(runtime, families[0], tickets, gate.set)


@seeded
async def test_a_worker_that_starts_in_time_prevents_a_deadlock(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    one, other = StoreApp(store, runtime), StoreApp(store, runtime)
    families = [Family(app, runtime) for app in (one, other)]
    async with one, other, one.worker(slots=1):
        ticket = await families[0].outer.submit(7)
        await until_later(lambda: families[0].begun == 1, runtime)
        await asyncio.sleep(3)
        async with other.worker(slots=1):
            assert await ticket == 7
    assert families[0].caught == []


@seeded
async def test_inner_jobs_with_their_own_worker_complete(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    family = Family(app, runtime, inner_pool="inner")
    async with app, app.worker(slots=2, pools=["work"]), app.worker(slots=1, pools=["inner"]):
        tickets = [await family.outer.submit(n) for n in range(20)]
        assert [await ticket for ticket in tickets] == list(range(20))
    assert family.caught == []


@seeded
async def test_a_paused_pool_and_a_pool_without_a_worker_are_no_deadlock(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    family = Family(app, runtime, inner_pool="inner")
    async with app, app.worker(slots=1, pools=["work"]):
        ticket = await family.outer.submit(0)
        await until_later(lambda: family.begun == 1, runtime)
        await asyncio.sleep(60)
        assert family.caught == []
        async with app.worker(slots=1, pools=["inner"]):
            assert await ticket == 0


@seeded
async def test_a_wait_with_a_timeout_is_not_a_deadlock(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ended: list[type[BaseException]] = []

    @app.task(name="inner", pool="work", retry=None)
    async def inner() -> None: ...

    @app.task(name="outer", pool="work", retry=None)
    async def outer() -> None:
        try:
            await (await inner.submit()).result(timeout=40)
        except (TimeoutError, Deadlock) as error:
            ended.append(type(error))

    async with app, app.worker(slots=1):
        await (await outer.submit())
    assert ended == [TimeoutError]


@seeded
async def test_a_turn_of_the_session_of_the_job_that_awaits_it_is_a_deadlock(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    caught: list[Deadlock] = []

    @app.task(name="inner", pool="work", retry=None)
    async def inner() -> None: ...

    @app.task(name="outer", pool="work", retry=None)
    async def outer() -> None:
        try:
            await (await inner.with_options(session="s").submit())
        except Deadlock as error:
            caught.append(error)

    async with app, app.worker(slots=5):
        await (await outer.with_options(session="s").submit())
    assert len(caught) == 1


@seeded
async def test_explain_reports_that_all_slots_are_held_by_waiting_jobs(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    family = Family(app, runtime)
    async with app, app.worker(slots=1):
        ticket = await family.outer.submit(1)
        await until_later(lambda: family.begun == 1, runtime)
        await asyncio.sleep(3)
        (inner,) = await find(app, "inner")
        told = await app.get(inner.id)
        assert told is not None
        why = await told.explain()
        assert why.reason == "held_by_waits"
        assert str(why) == (
            "it waits for a slot; all are held by jobs that wait "
            f"(outer {ticket.id} waits for inner {inner.id})"
        )
        await ticket


@seeded
async def test_wait_records_are_deleted_when_no_job_waits(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime, events=Events())
    family = Family(app, runtime)

    async def written() -> list[str]:
        connection = await app.core.connection()
        return await connection.thread.ask(lambda: connection.store.scan("nested/"))

    async with app, app.worker(slots=1):
        ticket = await family.outer.submit(1)
        await until_later(lambda: family.begun == 1, runtime)
        await asyncio.sleep(3)
        assert len(await written()) == 1
        await ticket
        await asyncio.sleep(3)
        assert await written() == []
