"""Failures of stored jobs are on the logger "poolhand", without a subscriber."""

from __future__ import annotations

import asyncio

import pytest

from poolhand import App, Pool, Retry, RetryLater, Snooze, log_events, wait
from poolhand.observe.events import Events
from poolhand.testing import SeededRuntime
from poolhand.views import Job
from tests.unit.durable.support import Gate, SharedStore, StoreApp, bury_all, seeded, until_later
from tests.unit.durable.test_leases import Farm


def logged(caplog: pytest.LogCaptureFixture, level: str | None = None) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.name == "poolhand" and level in (None, one.levelname)
    ]


@seeded
async def test_failed_attempts_are_warnings_and_a_dead_job_is_an_error(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="ask", retry=Retry(attempts=3, first=1.0))
    async def ask() -> None:
        raise LookupError("no such page")

    async with app, app.worker():
        ticket = await ask.submit()
        await wait(ticket)
    first, second, last = logged(caplog)
    start = f"job {ticket.id} of task 'ask' failed at attempt"
    assert first.startswith(f"{start} 1 and is retried in ")
    assert second.startswith(f"{start} 2 and is retried in ")
    assert "\n" not in first + second
    assert first.endswith(" s: LookupError: no such page")
    assert logged(caplog, "WARNING") == [first, second]
    line, *trace = last.split("\n")
    assert (
        line == f"job {ticket.id} of task 'ask' is dead after 3 attempts: LookupError: no such page"
    )
    assert trace[0] == "    Traceback (most recent call last):"
    assert trace[1].startswith(f'      File "{__file__}", line ')
    assert trace[2].strip() == 'raise LookupError("no such page")'


@seeded
async def test_an_orderly_stop_and_a_snooze_are_no_failures(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app, gate = App("memory://", runtime=runtime), Gate()
    turns: list[int] = []

    @app.task(name="nap")
    async def nap() -> None:
        turns.append(1)
        if len(turns) == 1:
            raise RetryLater(0.5, "busy")
        if len(turns) == 2:
            raise Snooze(1.0)

    @app.task(name="long")
    async def long() -> None:
        await gate.pass_through()

    async with app, app.worker(drain_timeout=0):
        await (await nap.submit())
        await long.submit()
        await until_later(lambda: gate.entered == 1, runtime)
    assert len(logged(caplog)) == 1


@seeded
async def test_a_task_that_a_worker_does_not_have_is_logged_once(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    store = SharedStore(runtime)
    web, app = StoreApp(store, runtime), StoreApp(store, runtime)

    @web.task(name="billing.charge", pool="p")
    async def charge() -> None:
        pass

    app.pool("p")
    async with web, app, app.worker():
        tickets = [await charge.submit() for _ in range(5)]
        await until_later(lambda: bool(logged(caplog)), runtime)
        await until_later(
            lambda: store.query("SELECT set_aside FROM poolhand_pools")[0][0] == 5, runtime
        )
    (line,) = logged(caplog, "WARNING")
    assert any(ticket.id in line for ticket in tickets)
    assert "this worker does not have the task 'billing.charge'; start a worker whose code" in line


@seeded
async def test_a_lost_lease_is_logged(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app, gate = App("memory://", runtime=runtime), Gate()

    @app.task(name="ask")
    async def ask() -> None:
        await gate.pass_through()

    async with app, app.worker():
        ticket = await ask.submit()
        await until_later(lambda: gate.entered == 1, runtime)
        await bury_all(app)
        await until_later(lambda: bool(logged(caplog)), runtime)
        gate.opened.set()
    assert logged(caplog)[0].startswith(f"the lease of job {ticket.id} of task 'ask' was lost: ")


@pytest.mark.parametrize("works", [True, False])
@seeded
async def test_the_jobs_of_a_dead_process_are_logged_by_the_process_that_reaps_them(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture, works: bool
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    await one.core.connection()
    worker = one.worker(5)
    await worker.start()
    async with two:
        helper = two.worker() if works else None
        ticket = await farm.tasks[0].submit(3600)
        await until_later(lambda: farm.ran == ["one"], runtime)
        if helper is not None:
            await helper.start()
        await farm.kill(one)
        await until_later(lambda: any(ticket.id in line for line in logged(caplog)), runtime)
        await worker.drain(0)
        if helper is not None:
            await helper.drain(0)
    (line,) = [one for one in logged(caplog, "WARNING") if " failed at attempt 1 " in one]
    assert line == (
        f"job {ticket.id} of task 'work' failed at attempt 1 and is retried at once: "
        "poolhand.errors.JobLost: the process that ran it died"
    )


@seeded
async def test_an_on_dead_that_raises_is_logged(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    def on_dead(job: Job) -> None:
        raise KeyError("pager")

    app = App("memory://", runtime=runtime)
    app.pool("p", on_dead=on_dead)

    @app.task(name="ask", pool="p", retry=None)
    async def ask() -> None:
        raise LookupError("no such page")

    async with app, app.worker():
        await wait(await ask.submit())
    async with Pool("q", on_dead=on_dead, runtime=runtime) as pool:
        await wait(await pool.submit(ask.fn))
    assert logged(caplog, "WARNING") == [
        "on_dead of pool 'p' raised KeyError: 'pager'",
        "on_dead of pool 'q' raised KeyError: 'pager'",
    ]


@seeded
async def test_an_unavailable_store_is_logged_once(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="ask")
    async def ask() -> None: ...

    async with app, app.worker():
        store.down = True
        await until_later(lambda: any("'heartbeat'" in one for one in logged(caplog)), runtime)
        store.down = False
        await (await ask.submit())
    assert all("is retried: Unavailable: the store is away" in one for one in logged(caplog))
    assert len(set(logged(caplog))) == len(logged(caplog))


@seeded
async def test_when_events_are_logged_each_failure_has_one_line(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    events = Events()
    log_events(events=events)
    app = App("memory://", runtime=runtime, events=events)

    @app.task(name="ask", retry=Retry(attempts=2, first=1.0))
    async def ask() -> None:
        raise LookupError("no such page")

    async with app, app.worker():
        ticket = await ask.submit()
        await wait(ticket)
    assert [line.partition(" pool=")[0] for line in logged(caplog)] == ["job retried", "job ended"]
    assert all(ticket.id in line for line in logged(caplog))
    assert "raise LookupError" in logged(caplog, "ERROR")[0]


@seeded
async def test_many_failures_are_a_few_lines(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="ask", retry=None)
    async def ask() -> None:
        raise LookupError("no such page")

    async with app, app.worker(slots=50):
        await wait([await ask.submit() for _ in range(200)])
    lines = logged(caplog)
    assert len(lines) < 200
    assert lines[-1].startswith("and ")
    assert " more failures of task 'ask' in the last " in lines[-1]


@seeded
async def test_a_job_that_raises_cancelled_error_itself_is_logged_as_a_warning_with_a_reason(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="ask")
    async def ask() -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    @app.task(name="plain")
    def plain() -> None:
        raise asyncio.CancelledError

    async with app, app.worker():
        tickets = [await ask.submit(), await plain.submit()]
        await wait(tickets)
        job = await app.operator().job(tickets[0].id)
    why = (
        "its code raised CancelledError (an inner task that was cancelled?); catch it, or raise "
        "another error to have it retried"
    )
    assert sorted(logged(caplog, "WARNING")) == sorted(
        f"job {ticket.id} of task '{name}' ended as cancelled although no one cancelled it: {why}"
        for ticket, name in zip(tickets, ("ask", "plain"), strict=True)
    )
    assert job is not None
    assert job.error is not None
    assert (job.status, job.error.message) == ("cancelled", why)
    assert job.why == f"it is over: cancelled, although no one cancelled it: {why}"


@seeded
async def test_a_cancelled_job_is_not_logged_as_a_warning(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app, gate = App("memory://", runtime=runtime), Gate()

    @app.task(name="ask")
    async def ask() -> None:
        await gate.pass_through()

    async with app, app.worker():
        ticket = await ask.submit()
        await until_later(lambda: gate.entered == 1, runtime)
        assert await ticket.cancel()
        assert (await ticket.refresh()).error is None
    assert not logged(caplog)
