"""Tickets of code without an event loop: waiting, cancelling and looking, from any thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from poolhand import Retry, UsageError
from poolhand.app import App
from poolhand.errors import JobCancelled, JobFailed, JobLost
from poolhand.views import Status, SyncTicket
from tests.contract.support import over


@contextmanager
def worker(app: App, slots: int = 4, pools: list[str] | None = None) -> Iterator[None]:
    """Run a worker of the app on a thread with its own loop, as another process would."""
    started, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        async with app, app.worker(slots, pools):
            loops.append(asyncio.get_running_loop())
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    assert started.wait(30)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


def adder(app: App, **options: Any) -> Any:
    @app.task(name="add", **options)
    async def add(number: int) -> int:
        if number < 0:
            raise ValueError("a negative number")
        return number + 1

    return add


def closed(app: App) -> None:
    asyncio.run(app.close())


def test_a_script_submits_and_waits_for_the_value(url: str) -> None:
    app = App(url)
    add = adder(app)
    with worker(app):
        ticket = add.submit_sync(1)
        assert ticket.result() == 2
        assert ticket.result(timeout=5) == 2
        assert ticket.status is Status.COMPLETED
        assert ticket.snapshot().result == 2
        assert add.with_options(priority=3).submit_sync(4).result(timeout=30) == 5


def test_the_error_of_a_job_is_raised(url: str) -> None:
    app = App(url)
    add = adder(app, retry=Retry(attempts=1))
    # The worker runs in this process, so the exception itself is available.
    with worker(app), pytest.raises(ValueError, match="a negative number"):
        add.submit_sync(-1).result()


def test_a_value_of_another_app_on_the_same_store_is_read(shared_url: str) -> None:
    here, there = App(shared_url), App(shared_url)
    add, _ = adder(here, retry=Retry(attempts=1)), adder(there)
    with worker(there):
        assert add.submit_sync(1).result(timeout=30) == 2
        with pytest.raises(JobFailed, match="ValueError: a negative number"):
            add.submit_sync(-1).result(timeout=30)
    closed(here)


def test_many_threads_wait_at_once(url: str) -> None:
    app = App(url)
    add = adder(app)
    with worker(app), ThreadPoolExecutor(8) as threads:
        values = list(threads.map(lambda n: add.submit_sync(n).result(timeout=30), range(40)))
        shared = add.submit_sync(1)
        same = [threads.submit(shared.result, 30) for _ in range(8)]
        assert [one.result() for one in same] == [2] * 8
    assert values == list(range(1, 41))


def test_a_wait_that_times_out_gives_the_reason_and_leaves_the_job(url: str) -> None:
    app = App(url)
    add = adder(app)
    ticket = add.submit_sync(1)
    with pytest.raises(TimeoutError, match=f"job {ticket.id} is not over after 0.05 s: .*worker"):
        ticket.result(timeout=0.05)
    assert ticket.status is Status.QUEUED
    assert ticket.explain().reason == "no_worker"
    with worker(app):
        assert ticket.result(timeout=30) == 2


def test_a_timeout_of_0_returns_the_value_of_a_job_that_ended_elsewhere(shared_url: str) -> None:
    here, there = App(shared_url), App(shared_url)
    add, other = adder(here, retry=Retry(attempts=1)), adder(there)
    done, failed = add.submit_sync(1), add.submit_sync(-1)
    with worker(there, slots=1):
        assert other.submit_sync(5).result(timeout=30) == 6
    assert done.snapshot().status is Status.QUEUED
    assert done.result(timeout=0) == 2
    with pytest.raises(JobFailed, match="ValueError: a negative number"):
        failed.result(timeout=0)
    closed(here)


def test_a_timeout_of_0_raises_job_lost_for_a_pruned_job(shared_url: str) -> None:
    here, there = App(shared_url), App(shared_url)
    add, other = adder(here), adder(there)
    ticket = add.submit_sync(1)

    async def prune() -> None:
        connection = await there.core.connection()
        await connection.thread.ask(lambda: connection.store.prune(over(0.0)))
        await there.close()

    with worker(there, slots=1):
        assert other.submit_sync(5).result(timeout=30) == 6
    asyncio.run(prune())
    with pytest.raises(JobLost, match="is no longer kept"):
        ticket.result(timeout=0)
    closed(here)


def test_a_waiting_job_is_cancelled(url: str) -> None:
    app = App(url)
    add = adder(app)
    ticket = add.submit_sync(1)
    assert ticket.cancel() is True
    assert ticket.status is Status.CANCELLED
    assert ticket.cancel() is True
    with pytest.raises(JobCancelled):
        ticket.result()
    closed(app)


def test_status_reads_the_store(shared_url: str) -> None:
    here, there = App(shared_url), App(shared_url)
    add, other = adder(here), adder(there)
    ticket = add.submit_sync(1)
    with worker(there):
        assert other.submit_sync(5).result(timeout=30) == 6
    assert ticket.snapshot().status is Status.QUEUED
    assert ticket.status is Status.COMPLETED
    assert ticket.refresh().result == 2
    closed(here)


def test_a_ticket_is_found_by_its_id(url: str) -> None:
    app = App(url)
    add = adder(app)
    ticket = add.submit_sync(1)
    found = app.get_sync(ticket.id)
    assert isinstance(found, SyncTicket)
    assert found.id == ticket.id
    assert app.get_sync("no such job") is None
    with worker(app):
        assert found.result(timeout=30) == 2
    assert repr(found) == f"<SyncTicket {ticket.id} completed>"


async def test_blocking_calls_on_a_loop_are_refused(url: str) -> None:
    app = App(url)
    add = adder(app)
    ticket = await asyncio.to_thread(add.submit_sync, 1)
    for verb in ("result", "cancel", "refresh", "explain"):
        with pytest.raises(UsageError, match=rf"{verb}\(\) .* would block .* await app\.get\('"):
            getattr(ticket, verb)()
    with pytest.raises(UsageError, match=r"use await app\.get"):
        app.get_sync(ticket.id)
    assert ticket.status is Status.QUEUED
    await app.close()


def test_a_job_in_a_thread_waits_for_another(url: str) -> None:
    app = App(url)
    add = adder(app)

    @app.task(name="plan")
    def plan() -> int:
        found: int = add.submit_sync(6).result(timeout=30)
        return found

    with worker(app):
        assert plan.submit_sync().result(timeout=30) == 7


def nested(app: App, id: str) -> list[tuple[str | None, str]]:
    """Return which job awaits which in this process, once the job `id` is awaited."""

    async def found() -> list[tuple[str | None, str]]:
        watch = (await app.core.connection()).outcomes.watch
        while not watch.is_awaited(id):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return [(reply.waiter, awaited) for reply, awaited in watch.nested()]

    return app.core.slot.connection_sync().thread.ask_sync(found)


def test_a_wait_inside_a_thread_job_is_attributed_to_that_job() -> None:
    app = App("memory://")
    add = adder(app, pool="no worker")
    inner = add.submit_sync(6)

    @app.task(name="plan", pool="plans", retry=None)
    def plan() -> int:
        return inner.result()  # type: ignore[no-any-return]

    with worker(app, pools=["plans"]):
        outer = plan.submit_sync()
        assert nested(app, inner.id) == [(outer.id, inner.id)]
        inner.cancel()
        with pytest.raises(JobCancelled):
            outer.result(timeout=30)


def test_a_wait_of_a_plain_thread_is_that_of_no_job() -> None:
    app = App("memory://")
    inner = adder(app, pool="no worker").submit_sync(6)
    entered, proceed = threading.Event(), threading.Event()

    def wait() -> None:
        with pytest.raises(JobCancelled):
            inner.result()

    outside = threading.Thread(target=wait)

    def hold() -> None:
        entered.set()
        assert proceed.wait(30)

    @app.task(name="plan", pool="plans", retry=None)
    def plan() -> None:
        store_thread = app.core.slot.connection_sync().thread
        store_thread.post(hold)
        assert entered.wait(30)
        # The job wakes the store's thread, which then finds the call of the plain thread.
        store_thread._wake()
        outside.start()
        while not store_thread._calls:
            pass
        proceed.set()

    with worker(app, pools=["plans"]):
        outer = plan.submit_sync()
        assert proceed.wait(30)
        outer.result(timeout=30)
        assert nested(app, inner.id) == []
        inner.cancel()
        outside.join()


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")], ids=str)
def test_a_timeout_must_be_seconds(timeout: Any) -> None:
    app = App("memory://")
    ticket = adder(app).submit_sync(1)
    with pytest.raises(UsageError, match="it must be seconds, 0 or more"):
        ticket.result(timeout)
    closed(app)


def test_a_ticket_works_after_the_app_was_closed(shared_url: str) -> None:
    app = App(shared_url)
    ticket = adder(app).submit_sync(1)
    closed(app)
    with worker(app):
        assert ticket.result(timeout=30) == 2


def test_ctrl_c_ends_a_wait_and_cancels_the_job_on_request(url: str) -> None:
    app = App(url)
    tickets: list[SyncTicket[None]] = []

    @app.task(name="interrupt")
    async def interrupt() -> None:
        while not (tickets and tickets[0]._ticket._seen.waiting):  # noqa: ASYNC110
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    with worker(app):
        tickets.append(interrupt.with_options(cancel_with_caller=True).submit_sync())
        with pytest.raises(KeyboardInterrupt):
            tickets[0].result()
        with pytest.raises(JobCancelled):
            tickets[0].result(timeout=30)
