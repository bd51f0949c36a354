"""Draining a worker: running jobs finish or are handed back; every claimed job runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from poolhand import GiveUp, Retry, UsageError, wait
from poolhand.app import App
from poolhand.contract import Filter
from poolhand.observe.events import JobEnded
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import (
    Gate,
    Heard,
    SharedStore,
    StoreApp,
    seeded,
    stored,
    until,
    until_later,
)


@seeded
async def test_leaving_a_worker_waits_for_its_running_jobs(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async with app:
        async with app.worker(3) as worker:
            tickets = [await call.submit(number) for number in (5, 10, 20)]
            later = await call.with_options(delay=1).submit(1)
            await until(lambda: worker.running == 3)
        assert [await ticket for ticket in tickets] == [5, 10, 20]
        # No job was started during the drain.
        assert (await later.refresh()).status is Status.QUEUED


@seeded
async def test_jobs_still_running_at_the_deadline_are_handed_back_uncharged(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    began: list[int] = []

    @app.task(name="call")
    async def call(number: int) -> int:
        began.append(number)
        await asyncio.sleep(100 if began.count(number) == 1 else 1)
        return number

    async with app:
        async with app.worker(2) as worker:
            tickets = await call.submit_many([(1,), (2,), (3,)])
            await until(lambda: worker.running == 2)
            before = runtime.monotonic()
            report = await worker.drain(timeout=4)
            assert runtime.monotonic() - before <= 5
        assert (report.handed_back, report.stuck, report.completed) == (2, 0, 0)
        for ticket in tickets:
            job = (await stored(app, ticket.id)).job
            assert (job.status, job.attempts) == (Status.QUEUED, 0)
        async with app.worker(3):
            assert [await ticket for ticket in tickets] == [1, 2, 3]
            assert {ticket.snapshot().attempts for ticket in tickets} == {1}


@pytest.mark.parametrize("error", [ValueError("stopped"), OSError()], ids=["text", "no text"])
@seeded
async def test_a_stopped_job_that_raises_its_own_error_is_handed_back_too(
    runtime: SeededRuntime, error: Exception
) -> None:
    app = App("memory://", runtime=runtime)
    began: list[int] = []

    @app.task(name="call", retry=Retry(attempts=1))
    async def call() -> int:
        began.append(1)
        if len(began) == 2:
            return 1
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise error from None
        return 0

    async with app:
        async with app.worker(drain_timeout=1) as worker:
            ticket = await call.submit()
            await until(lambda: worker.running == 1)
        assert (await ticket.refresh()).status is Status.QUEUED
        async with app.worker():
            assert await ticket == 1


@seeded
async def test_a_stopped_job_that_raises_give_up_fails(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise GiveUp("half done, and cannot be begun again") from None

    async with app:
        async with app.worker(drain_timeout=1) as worker:
            ticket = await call.submit()
            await until(lambda: worker.running == 1)
        assert (await ticket.refresh()).status is Status.FAILED


@seeded
async def test_a_job_that_ends_while_it_is_stopped_has_ended(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return "saved"
        return "whole"

    async with app:
        async with app.worker(drain_timeout=1) as worker:
            ticket = await call.submit()
            await until(lambda: worker.running == 1)
        assert await ticket == "saved"


@seeded
async def test_every_outcome_is_written_before_the_worker_has_left(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> None: ...

    async with app:
        connection = await app.core.connection()
        for _ in range(10):
            tickets = await call.submit_many([()] * 5)
            async with app.worker(2) as worker:
                # At every stage: claimed, begun, done or written.
                for _ in range(runtime.random.randrange(60)):
                    await asyncio.sleep(0)
                await worker.drain(runtime.random.choice([0, 5]))
            jobs = [(await stored(app, one.id)).job for one in tickets]
            assert {job.status for job in jobs} <= {Status.QUEUED, Status.COMPLETED}
            assert {job.attempts for job in jobs if job.status is Status.QUEUED} <= {0}
            assert connection.workers == []
        rows = await connection.store.pools()
        assert [row.running for row in rows] == [0]
        async with app.worker(2):
            await asyncio.sleep(5)
        assert set(await connection.store.count(Filter())) == {Status.COMPLETED}


@seeded
async def test_code_that_does_not_stop_keeps_its_lease_until_it_does(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    inside = 0
    most = 0

    @app.task(name="call")
    async def call() -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        end = runtime.monotonic() + 30
        while runtime.monotonic() < end:
            try:
                await asyncio.sleep(end - runtime.monotonic())
            except asyncio.CancelledError:
                continue
        inside -= 1
        return 1

    async with app:
        async with app.worker(drain_timeout=2) as worker:
            ticket = await call.submit()
            await until(lambda: worker.running == 1)
            report = await worker.drain()
        assert (report.stuck, report.handed_back) == (1, 0)
        async with app.worker():
            await asyncio.sleep(20)
            assert (await ticket.refresh()).status is Status.RUNNING
            # When its code has ended, the worker that is there runs the job again.
            assert await ticket == 1
    assert most == 1
    assert ticket.snapshot().attempts == 1


@seeded
async def test_a_second_cancel_shortens_the_drain_and_hands_everything_back(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> None:
        await gate.pass_through()

    async def work() -> None:
        async with app.worker(2, drain_timeout=1000):
            await asyncio.sleep(10_000)

    async with app:
        working = asyncio.create_task(work())
        tickets = await call.submit_many([(), ()])
        await until(lambda: gate.entered == 2)
        working.cancel()
        await asyncio.sleep(5)
        assert not working.done()
        began = runtime.monotonic()
        working.cancel()
        await asyncio.wait([working])
        assert working.cancelled()
        assert runtime.monotonic() - began <= 1
        for ticket in tickets:
            job = await ticket.refresh()
            assert (job.status, job.attempts) == (Status.QUEUED, 0)


@seeded
async def test_a_drain_can_be_shortened(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> None:
        await gate.pass_through()

    async with app:
        worker = await app.worker().start()
        await call.submit()
        await until(lambda: gate.entered == 1)
        first = asyncio.create_task(worker.drain(timeout=1000))
        await asyncio.sleep(3)
        second = await worker.drain(timeout=1)
        assert await first == second
        assert second.handed_back == 1
        assert 4 <= second.seconds <= 5


@seeded
async def test_a_worker_is_started_once(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    async with app:
        worker = app.worker()
        with pytest.raises(UsageError, match="is not started"):
            await worker.drain()
        found = await asyncio.gather(worker.start(), worker.start(), return_exceptions=True)
        assert sum(isinstance(one, UsageError) for one in found) == 1
        with pytest.raises(UsageError, match="started before"):
            await worker.start()
        await worker.drain()
        assert (await app.core.connection()).workers == []


@pytest.mark.parametrize(
    ("slots", "options"),
    [
        (0, {}),
        ("two", {}),
        (1, {"pools": "chat"}),
        (1, {"pools": [5]}),
        (1, {"drain_timeout": -1}),
    ],
    ids=str,
)
def test_wrong_worker_options_are_reported(slots: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"worker: .* is not allowed"):
        App("memory://").worker(slots, **options)


@seeded
async def test_closing_an_app_hands_back_the_running_jobs_of_its_workers(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> None:
        await gate.pass_through()

    async with app:
        worker = await app.worker(2).start()
        tickets = await call.submit_many([(), (), ()])
        await until(lambda: gate.entered == 2)
    jobs = [(await store.get([ticket.id]))[0] for ticket in tickets]
    assert [(one.job.status, one.job.attempts) for one in jobs if one] == [(Status.QUEUED, 0)] * 3
    assert await store.leases() == []
    report = await worker.drain()
    assert report.handed_back == 2


@seeded
async def test_a_worker_can_be_left_after_its_app_was_closed(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    async with app.worker():
        await app.close()


def test_a_loop_that_ends_with_a_running_worker_hands_everything_back(url: str) -> None:
    app = App(url)
    runs: list[int] = []

    @app.task(name="call")
    async def call() -> None:
        runs.append(1)
        await asyncio.Event().wait()

    async def forget() -> Any:
        await app.worker(2).start()
        ticket = await call.submit()
        await until(lambda: len(runs) == 1)
        return ticket

    async def look(ticket: Any) -> None:
        # The loop of that worker is closed; other workers get the jobs it had claimed.
        async with app, app.worker(2):
            await until(lambda: len(runs) == 2)
            job = await ticket.refresh()
            assert (job.status, job.attempts) == (Status.RUNNING, 1)
            assert await ticket.cancel()

    ticket = asyncio.run(forget())
    connection = app.core.slot.current
    assert connection is not None
    (given_back,) = connection.thread.ask_sync(lambda: connection.store.get([ticket.id]))
    assert given_back is not None
    assert (given_back.job.status, given_back.job.attempts) == (Status.QUEUED, 0)
    asyncio.run(look(ticket))


@pytest.mark.slow
def test_a_loop_that_is_closed_under_a_worker_gives_its_claims_back(url: str) -> None:
    app = App(url)
    runs: list[int] = []

    @app.task(name="call")
    async def call() -> int:
        runs.append(1)
        if len(runs) == 1:
            await asyncio.Event().wait()
        return len(runs)

    async def begin() -> Any:
        await app.worker(1).start()
        ticket = await call.submit()
        await until(lambda: len(runs) == 1)
        return ticket

    async def look(ticket: Any) -> int:
        async with app, app.worker(1):
            found: int = await ticket
            return found

    loop = asyncio.new_event_loop()
    ticket = loop.run_until_complete(begin())
    # No task is cancelled and nothing is logged: as if the interpreter had dropped the loop.
    tasks = asyncio.all_tasks(loop)
    loop.close()
    assert asyncio.run(look(ticket)) == 2
    for task in tasks:
        # Python reports tasks that never ended, as this test intends.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_thread_that_outlives_its_loop_does_not_keep_its_job(url: str) -> None:
    app = App(url)
    let_go = threading.Event()
    runs: list[int] = []

    @app.task(name="call")
    def call() -> int:
        runs.append(1)
        if len(runs) == 1:
            let_go.wait(50)
        return len(runs)

    async def forget() -> Any:
        await app.worker(1).start()
        ticket = await call.submit()
        await until(lambda: len(runs) == 1)
        return ticket

    async def look(ticket: Any) -> int:
        async with app, app.worker(1):
            found: int = await ticket
            return found

    try:
        assert asyncio.run(look(asyncio.run(forget()))) == 2
    finally:
        let_go.set()


@seeded
async def test_every_end_of_a_job_is_emitted_before_the_worker_has_left(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)

    @app.task(name="call")
    async def call() -> None:
        await asyncio.sleep(1)

    async with app:
        async with app.worker(5):
            tickets = await call.submit_many([()] * 5)
            await asyncio.sleep(0.5)
        ended = {event.job.id for event in heard.of(JobEnded)}
        assert ended == {ticket.id for ticket in tickets}
        assert {job.status for job in await wait(tickets)} == {Status.COMPLETED}


@seeded
async def test_a_worker_that_leaves_during_a_store_outage_writes_when_it_is_back(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call")
    async def call() -> int:
        await asyncio.sleep(2)
        return 7

    async with app:
        async with app.worker() as worker:
            ticket = await call.submit()
            await until_later(lambda: worker.running == 1, runtime)
            store.down = True
            began = runtime.monotonic()
        assert runtime.monotonic() - began <= 13
        store.down = False
        assert await ticket.result(timeout=5) == 7
        await asyncio.sleep(2)
        assert (await app.core.connection()).workers == []
    assert ticket.snapshot().attempts == 1
