"""The claim runner: the events that a worker emits, and what its jobs see of themselves."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from poolhand import Retry, current_job, subscribe, wait
from poolhand.app import App
from poolhand.context import fencing_token
from poolhand.observe.events import (
    Event,
    Events,
    JobEnded,
    JobMarked,
    JobRetried,
    JobStarted,
    JobSubmitted,
)
from poolhand.testing import SeededRuntime
from poolhand.views import Job, Status
from tests.unit.durable.support import Heard, seeded, until

request: ContextVar[str] = ContextVar("request", default="none")


@seeded
async def test_the_events_of_a_job_are_emitted_in_order(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    runs: list[int] = []

    @app.task(name="call", pool="chat", retry=Retry(attempts=2, first=1.0), timeout=5)
    async def call() -> int:
        runs.append(1)
        if len(runs) == 1:
            await asyncio.sleep(100)
        return 7

    async with app, app.worker():
        ticket = await call.submit()
        assert await ticket == 7
        await asyncio.sleep(1)
    mine = [event for event in heard.all if getattr(event, "job", None)]
    kinds = [type(event) for event in mine if not isinstance(event, JobSubmitted)]
    assert kinds == [JobStarted, JobMarked, JobRetried, JobStarted, JobEnded]
    assert {event.pool for event in mine} == {"chat"}
    (submitted,) = heard.of(JobSubmitted)
    assert submitted.job.id == ticket.id
    (ended,) = heard.of(JobEnded)
    assert isinstance(ended.job, Job)
    assert (ended.job.status, ended.job.attempts) == (Status.COMPLETED, 2)
    assert heard.of(JobStarted)[0].slot == "worker-000"


async def test_without_a_subscriber_no_events_are_emitted() -> None:
    told: list[Event] = []
    app = App("memory://", events=Events())
    end = subscribe(told.append)
    try:

        @app.task(name="call")
        async def call() -> None: ...

        async with app, app.worker():
            await (await call.submit())
    finally:
        end()
    assert told == []


async def test_global_subscribers_receive_events_of_stored_jobs() -> None:
    told: list[Event] = []
    app = App("memory://")

    @app.task(name="call")
    async def call() -> None: ...

    async with app:
        async with app.worker():
            end = subscribe(told.append)
            await (await call.submit())
        end()
    assert {JobSubmitted, JobStarted, JobEnded} <= {type(event) for event in told}


async def test_a_subscriber_that_raises_does_not_break_the_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard()

    def refuse(event: Event) -> None:
        raise ZeroDivisionError

    heard.events.subscribe(refuse)
    app = App("memory://", events=heard.events)

    @app.task(name="call")
    async def call() -> int:
        return 1

    async with app, app.worker():
        assert await (await call.submit()) == 1
    assert "a subscriber failed on" in caplog.text


async def test_a_job_sees_the_token_of_its_lease_wherever_it_runs(url: str) -> None:
    app = App(url)
    seen: list[tuple[str, int | None, str]] = []

    def note() -> None:
        job = current_job()
        assert job is not None
        seen.append((threading.current_thread().name, fencing_token(), job.id))

    @app.task(name="on_loop")
    async def on_loop() -> None:
        note()

    @app.task(name="in_thread")
    def in_thread() -> None:
        note()

    async with app, app.worker(1):
        tickets = [await on_loop.submit(), await in_thread.submit(), await on_loop.submit()]
        await wait(tickets)
    assert fencing_token() is None
    assert [id for *_, id in seen] == [ticket.id for ticket in tickets]
    tokens = [token for _, token, _ in seen]
    assert tokens == sorted({token for token in tokens if token is not None})
    assert seen[1][0] == "worker-worker-000"


@seeded
async def test_every_attempt_has_a_higher_token(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    tokens: list[int | None] = []

    @app.task(name="call", retry=Retry(attempts=3, first=1.0))
    async def call() -> None:
        tokens.append(fencing_token())
        raise OSError

    async with app, app.worker():
        await wait(await call.submit())
    known = [token for token in tokens if token is not None]
    assert known == sorted(set(known))
    assert len(known) == 3


async def test_jobs_run_in_the_context_of_their_worker_and_not_of_each_other(url: str) -> None:
    app = App(url)

    @app.task(name="call")
    async def call(name: str) -> str:
        before = request.get()
        request.set(name)
        return before

    @app.task(name="in_thread")
    def in_thread(name: str) -> str:
        before = request.get()
        request.set(name)
        return before

    request.set("opener")
    await app.core.connection()
    request.set("worker")
    async with app.worker(3):
        request.set("submitter")
        tickets = [await call.submit(str(number)) for number in range(5)]
        tickets += [await in_thread.submit(str(number)) for number in range(5)]
        assert {await ticket for ticket in tickets} == {"worker"}
    request.set("none")
    await app.close()


async def test_a_worker_runs_as_many_jobs_at_once_as_it_has_slots(url: str) -> None:
    app = App(url)
    inside: set[int] = set()
    opened = asyncio.Event()

    @app.task(name="call")
    async def call(number: int) -> None:
        inside.add(number)
        await opened.wait()

    async with app, app.worker(3) as worker:
        tickets = await call.submit_many([(number,) for number in range(7)])
        await until(lambda: len(inside) == 3)
        assert worker.running == 3
        assert {job.status for job in worker.jobs()} == {Status.RUNNING}
        opened.set()
        await wait(tickets)
    assert len(inside) == 7


async def test_two_workers_of_one_app_share_its_jobs(url: str) -> None:
    app = App(url)
    inside = 0
    both = asyncio.Event()

    @app.task(name="call")
    async def call() -> None:
        nonlocal inside
        inside += 1
        if inside == 2:
            both.set()
        await both.wait()

    async with app, app.worker(1), app.worker(1):
        await wait(await call.submit_many([(), ()]))


async def test_a_job_that_raises_any_exception_frees_its_slot(url: str) -> None:
    app = App(url)

    class Nasty(Exception):
        def __str__(self) -> str:
            raise SystemExit

    errors: list[BaseException] = [
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(5),
        GeneratorExit(),
        BaseException("bare"),
        Nasty(),
        ValueError("half a pair: \ud800"),
    ]

    @app.task(name="call", retry=Retry(attempts=1))
    async def call(number: int) -> Any:
        raise errors[number]

    @app.task(name="in_thread", retry=Retry(attempts=1))
    def in_thread(number: int) -> Any:
        raise errors[number]

    async with app, app.worker(1):
        for task in (call, in_thread):
            for number in range(len(errors)):
                job = await wait(await task.submit(number))
                assert job.status is Status.FAILED, errors[number]
                assert job.error is not None


async def test_a_blocked_loop_does_not_stop_the_store_thread(url: str) -> None:
    """The store thread renews the leases, not the loop of the worker."""
    app = App(url)
    renewed = threading.Event()

    @app.task(name="block")
    async def block() -> bool:
        connection.thread.do("renew", renew)
        return renewed.wait(20)

    async def renew() -> None:
        await connection.heartbeat.renew()
        renewed.set()

    async with app, app.worker():
        connection = await app.core.connection()
        assert await (await block.submit())
