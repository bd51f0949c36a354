"""Cancelling stored jobs: waiting and running ones, from this process and from others."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest

from poolhand import Retry, Snooze, stop_requested, wait
from poolhand.app import App
from poolhand.errors import JobCancelled
from poolhand.observe.events import JobMarked
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Gate, Heard, SharedStore, StoreApp, seeded, stored, until


@seeded
async def test_a_waiting_job_never_runs(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[int] = []

    @app.task(name="call")
    async def call() -> None:
        ran.append(1)

    async with app:
        tickets = [await call.submit(), await call.with_options(delay=5).submit()]
        assert [await ticket.cancel() for ticket in tickets] == [True, True]
        async with app.worker():
            await asyncio.sleep(10)
        for ticket in tickets:
            with pytest.raises(JobCancelled):
                await ticket
    assert ran == []


@seeded
async def test_a_running_job_is_stopped_at_once_and_not_tried_again(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    gate = Gate()

    @app.task(name="call")
    async def call() -> None:
        await gate.pass_through()

    async with app, app.worker():
        ticket = await call.submit()
        await until(lambda: gate.entered == 1)
        began = runtime.monotonic()
        assert await ticket.cancel()
        assert runtime.monotonic() - began <= 0.1
        assert (await stored(app, ticket.id)).job.status is Status.CANCELLED
        assert not await ticket.cancel() or ticket.status is Status.CANCELLED
    assert [event.mark for event in heard.of(JobMarked)] == ["cancel"]
    assert gate.entered == 1


@seeded
async def test_a_cancelled_job_that_raises_is_not_retried(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    gate = Gate()
    errors: list[Any] = [ValueError("stopped"), Snooze(5)]

    @app.task(name="call")
    async def call(number: int) -> None:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            raise errors[number] from None

    async with app, app.worker(2):
        tickets = [await call.submit(0), await call.submit(1)]
        await until(lambda: gate.entered == 2)
        assert [await ticket.cancel() for ticket in tickets] == [False, True]
        assert [ticket.status for ticket in tickets] == [Status.FAILED, Status.CANCELLED]
        await asyncio.sleep(60)
    assert gate.entered == 2


@seeded
async def test_a_finished_job_is_not_cancelled(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> int:
        return 1

    async with app, app.worker():
        ticket = await call.submit()
        assert await ticket == 1
        assert not await ticket.cancel()
        assert (await stored(app, ticket.id)).job.status is Status.COMPLETED


@seeded
async def test_a_cancelled_job_that_does_not_stop_ends_after_its_grace_period(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    app.pool("slow", max_concurrent=1, cancel_grace=3)

    @app.task(name="call", pool="slow")
    async def call() -> None:
        while True:
            try:
                await asyncio.sleep(20)
                return
            except asyncio.CancelledError:
                continue

    @app.task(name="after", pool="slow")
    async def after() -> float:
        return runtime.monotonic()

    async with app, app.worker(2):
        ticket = await call.submit()
        await asyncio.sleep(1)
        follower = await after.submit()
        began = runtime.monotonic()
        assert await ticket.cancel()
        assert 3 <= runtime.monotonic() - began <= 3.5
        # Its code still runs, and counts against the cap of its pool until it ends.
        assert await follower - began >= 19


async def test_a_job_in_a_thread_is_asked_to_stop(url: str) -> None:
    app = App(url)
    entered, asked = Event(), Event()

    @app.task(name="call")
    def call() -> None:
        entered.set()
        while not stop_requested():
            asked.wait(0.01)
        asked.set()

    async with app, app.worker():
        ticket = await call.submit()
        await asyncio.to_thread(entered.wait)
        await ticket.cancel()
        assert asked.is_set()


async def test_another_app_on_the_same_file_cancels_a_waiting_and_a_running_job(
    shared_url: str,
) -> None:
    here, there = App(shared_url), App(shared_url)
    entered = asyncio.Event()

    async def work() -> None:
        entered.set()
        await asyncio.Event().wait()

    running = here.task(name="work")(work)
    there.task(name="work")(work)
    async with here, there, here.worker(1):
        first = await running.submit()
        await entered.wait()
        second = await running.submit()
        for id in (second.id, first.id):
            ticket = await there.get(id)
            assert ticket is not None
            assert await ticket.cancel()
        for ticket in (first, second):
            with pytest.raises(JobCancelled):
                await ticket


@seeded
async def test_a_cancel_request_survives_a_worker_that_did_not_receive_it(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)
    gate = Gate()

    async def work() -> None:
        await gate.pass_through()

    task = here.task(name="work")(work)
    there.task(name="work")(work)
    async with there:
        async with here, here.worker(drain_timeout=0):
            ticket = await task.submit()
            await until(lambda: gate.entered == 1)
            # Cancel and stop at the same moment: the job is handed back and ends, it does not wait.
            wishing = asyncio.create_task(ticket.cancel())
            wished = "SELECT 1 FROM poolhand_claims WHERE wished = 1"
            # The worker may see the request before this test does.
            await until(lambda: bool(store.query(wished)) or ticket.status.terminal)
        found = await there.get(ticket.id)
        assert found is not None
        assert (await wait(found, timeout=5)).status is Status.CANCELLED
        async with there.worker():
            await asyncio.sleep(5)
        wishing.cancel()
        await asyncio.gather(wishing, return_exceptions=True)
    assert gate.entered == 1


@seeded
async def test_a_cancelled_caller_cancels_its_job_if_requested(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> None:
        await gate.pass_through()

    async with app, app.worker(2):
        bound = await call.with_options(cancel_with_caller=True).submit()
        free = await call.submit()
        await until(lambda: gate.entered == 2)
        waiting = [asyncio.ensure_future(one.result(timeout=900)) for one in (bound, free)]
        await asyncio.sleep(1)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        assert (await wait(bound, timeout=5)).status is Status.CANCELLED
        assert (await free.refresh()).status is Status.RUNNING
        gate.opened.set()
        await free


@seeded
async def test_a_cancelled_caller_does_not_cancel_a_shared_job(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> int:
        await gate.pass_through()
        return 5

    bound = call.with_options(cancel_with_caller=True, idempotency_key="k")
    async with app, app.worker():
        first, second = await bound.submit(), await bound.submit()
        leaving = asyncio.ensure_future(first.result(timeout=900))
        staying = asyncio.ensure_future(second.result(timeout=900))
        await asyncio.sleep(1)
        leaving.cancel()
        await asyncio.wait([leaving])
        await asyncio.sleep(6)
        gate.opened.set()
        assert await staying == 5


@seeded
async def test_a_cancelled_job_frees_its_key_its_session_and_its_slot(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    app.pool("chat", max_concurrent=1, max_per_key=1)
    gate = Gate()

    @app.task(name="call", pool="chat", retry=Retry(attempts=1))
    async def call(wait: bool) -> int:
        if wait:
            await gate.pass_through()
        return 1

    turn = call.with_options(session="s", key="k")
    async with app, app.worker(3):
        first = await turn.submit(True)
        await until(lambda: gate.entered == 1)
        second = await turn.submit(False)
        assert (await second.refresh()).status is Status.BLOCKED
        assert await first.cancel()
        assert await second.result(timeout=5) == 1


async def test_many_concurrent_cancels_are_all_answered(url: str) -> None:
    app = App(url)

    @app.task(name="call", pool="many")
    async def call(number: int) -> None: ...

    async with app:
        turns = [
            call.with_options(session=f"s-{n % 10}", idempotency_key=f"k-{n}") for n in range(200)
        ]
        tickets = await asyncio.gather(*(turn.submit(n) for n, turn in enumerate(turns)))
        assert await asyncio.gather(*(ticket.cancel() for ticket in tickets)) == [True] * 200
        assert {ticket.status for ticket in tickets} == {Status.CANCELLED}
        assert not [job for job in await app.operator().jobs() if not job.status.terminal]
