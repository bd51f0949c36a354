"""Context that travels with a job: values of its submitter are set where the job runs."""

from __future__ import annotations

import asyncio
import os
from contextvars import copy_context
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from msgspec.structs import replace

from poolhand import App, Pool, Retry, Session, UsageError, wait
from poolhand.contract import Filter
from poolhand.durable.calls.call_record import CallRecord, read_call_record
from poolhand.durable.calls.task_registry import TaskCode, run_apart
from poolhand.errors import BadSignature, JobFailed, Undecodable
from poolhand.pool.ticket import Ticket
from poolhand.settings import KeyRing, Wire
from tests.contract.support import call_record
from tests.unit.durable import context_tasks
from tests.unit.durable.context_tasks import request_id
from tests.unit.durable.test_processes import crash_twice

LIMIT = 30
HERE = os.getpid()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Two kinds of stores are enough: no store reads a call record."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


async def result(ticket: Ticket[Any]) -> Any:
    async with asyncio.timeout(LIMIT):
        return await ticket


async def brief_of(app: App, id: str) -> bytes:
    connection = await app.core.connection()
    found = await connection.thread.ask(lambda: call_record(connection.store, id))
    assert found is not None
    return found


@pytest.mark.parametrize("fn", [context_tasks.on_loop, context_tasks.beside])
async def test_a_loop_or_thread_task_gets_the_context_of_its_submitter(url: str, fn: Any) -> None:
    app = App(url)
    task = app.task(fn)
    async with app, app.worker(2):
        tickets = []
        for value in ("r-1", {"user": ["ann"]}):
            request_id.set(value)
            tickets.append(await task.submit(HERE))
        request_id.set("later")
        assert [await result(ticket) for ticket in tickets] == [
            ("r-1", True),
            ({"user": ["ann"]}, True),
        ]


@pytest.mark.slow
async def test_a_process_task_gets_the_context_of_its_submitter(url: str) -> None:
    app = App(url)
    task = app.task(run_in="process")(context_tasks.beside)
    async with app, app.worker(1):
        without = await task.submit(HERE)
        request_id.set("r-1")
        first = await task.submit(HERE)
        request_id.set("r-2")
        second = await task.submit(HERE)
        found = [await result(ticket) for ticket in (first, second, without)]
    assert found == [("r-1", False), ("r-2", False), (None, False)]


@pytest.mark.slow
async def test_a_suspect_that_runs_alone_gets_the_context_of_its_submitter(url: str) -> None:
    app = App(url)
    task = app.task(context_tasks.on_loop)
    async with app:
        request_id.set("r-1")
        ticket = await task.submit(HERE)
        await crash_twice(app)
        request_id.set("later")
        async with app.worker():
            assert await result(ticket) == ("r-1", False)


async def test_every_attempt_starts_with_the_submitted_context(url: str) -> None:
    app = App(url)
    seen: list[Any] = []

    @app.task(name="fail_twice", retry=Retry(attempts=3, first=0.0))
    async def fail_twice() -> int:
        value = request_id.get()
        seen.append(list(value))
        value.append("changed by the attempt")
        if len(seen) < 3:
            raise OSError
        return len(seen)

    async with app, app.worker():
        request_id.set(["r-1"])
        ticket = await fail_twice.submit()
        request_id.set(["later"])
        assert await result(ticket) == 3
    assert seen == [["r-1"]] * 3


async def test_a_dead_job_that_is_run_again_has_the_context_of_its_first_submit(url: str) -> None:
    app = App(url)
    seen: list[Any] = []

    @app.task(name="die_once", retry=Retry(attempts=1))
    async def die_once() -> None:
        seen.append(request_id.get())
        if len(seen) == 1:
            raise OSError

    async with app, app.worker():
        request_id.set("r-1")
        ticket = await die_once.submit()
        await wait(ticket)
        request_id.set("of the operator")
        (answer,) = await app.operator().retry([ticket.id], "anna")
        assert answer.new_id is not None
        again = await app.get(answer.new_id)
        assert again is not None
        await result(again)
    assert seen == ["r-1", "r-1"]


async def test_the_jobs_of_a_submit_many_share_the_submitted_context(url: str) -> None:
    app = App(url)
    task = app.task(context_tasks.on_loop)
    async with app, app.worker(5):
        request_id.set("r-1")
        tickets = await task.submit_many([(HERE,)] * 20)
        request_id.set("later")
        assert {await result(ticket) for ticket in tickets} == {("r-1", True)}


async def test_a_submit_from_a_thread_takes_the_context_of_its_thread(url: str) -> None:
    app = App(url)
    task = app.task(context_tasks.on_loop)

    def run() -> Any:
        request_id.set("of the thread")
        return task.submit_sync(HERE).result()

    async with app, app.worker():
        request_id.set("r-1")
        assert tuple(await asyncio.to_thread(run)) == ("of the thread", True)


async def test_a_job_submitted_in_a_transaction_gets_the_context(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    task = app.task(context_tasks.on_loop)
    async with app, app.worker():
        request_id.set("r-1")
        async with app.transaction() as tx:
            id = await task.submit_in(tx, HERE)
        request_id.set("later")
        ticket = await app.get(id)
        assert ticket is not None
        assert await result(ticket) == ("r-1", True)


@pytest.mark.slow
async def test_a_job_submitted_on_a_user_connection_gets_the_context(database: str) -> None:
    connection = await asyncpg.connect(database)
    app = App(database)
    task = app.task(context_tasks.on_loop)
    async with app, app.worker():
        async with connection.transaction():
            request_id.set("r-1")
            id = await task.submit_in(connection, HERE)
            request_id.set("later")
        ticket = await app.get(id)
        assert ticket is not None
        assert await result(ticket) == ("r-1", True)
    await connection.close()


async def test_each_turn_of_a_session_has_the_context_of_its_own_submit(url: str) -> None:
    app = App(url)

    @app.agent(name="assistant")
    async def assistant(session: Session, message: str) -> str:
        return f"{message} of {request_id.get()}"

    async with app, app.worker():
        talk = assistant.session("s-1")
        tickets = []
        for value in ("r-1", "r-2"):
            request_id.set(value)
            tickets.append(await talk.submit("turn"))
        assert [await result(one) for one in tickets] == ["turn of r-1", "turn of r-2"]


async def test_a_nested_job_gets_the_context_of_the_outer_one(url: str) -> None:
    app = App(url)
    inner = app.task(context_tasks.on_loop)

    @app.task(name="outer")
    async def outer() -> str:
        return (await inner.submit(HERE)).id

    async with app, app.worker(2):
        request_id.set("r-1")
        id = await result(await outer.submit())
        request_id.set("later")
        ticket = await app.get(id)
        assert ticket is not None
        assert await result(ticket) == ("r-1", True)


async def test_context_set_by_a_job_ends_with_it(url: str) -> None:
    app = App(url)

    @app.task(name="change")
    async def change(value: str) -> Any:
        before = request_id.get()
        request_id.set(value)
        return before

    async with app, app.worker(1):
        found = [await result(await change.submit(value)) for value in ("a", "b")]
        assert found == [None, None]
        assert request_id not in copy_context()


async def test_a_durable_pool_passes_the_context_to_tasks_and_closures(tmp_path: Path) -> None:
    task = context_tasks.app.task(context_tasks.on_loop)
    async with Pool("kept", max_concurrent=2, scope="pipeline", scope_id="p", dir=tmp_path) as pool:
        request_id.set("r-1")
        assert await pool.run(task, HERE) == ("r-1", True)
        assert await pool.run(lambda: request_id.get()) == "r-1"
        request_id.set("r-2")
        assert await pool.map(task, [HERE]) == [("r-2", True)]
        request_id.set(object())
        with pytest.raises(UsageError, match="'farm_request_id'"):
            await pool.run(task, HERE)
        # A closure never leaves the process, so its context need not be JSON.
        assert await pool.run(lambda: request_id.get()) is request_id.get()


async def test_a_value_that_is_no_json_is_refused_by_the_submit_and_nothing_is_kept(
    url: str,
) -> None:
    app = App(url)
    task = app.task(context_tasks.on_loop)
    async with app:
        request_id.set({"when": object()})
        with pytest.raises(UsageError, match=r"'farm_request_id' .* cannot be stored as JSON"):
            await task.submit(HERE)
        with pytest.raises(UsageError, match="'farm_request_id'"):
            await task.submit_many([(HERE,)])
        connection = await app.core.connection()
        counted = await connection.thread.ask(lambda: connection.store.count(Filter()))
        assert sum(counted.values()) == 0


async def test_the_context_changes_nothing_else_of_a_call_record() -> None:
    app = App("memory://")
    task = app.task(context_tasks.on_loop)
    async with app:
        plain = read_call_record(await brief_of(app, (await task.submit(HERE)).id), "job-1")
        request_id.set("r-1")
        laden = read_call_record(await brief_of(app, (await task.submit(HERE)).id), "job-1")
    assert plain.context is None
    assert laden.context is not None
    assert replace(laden, context=None) == plain


def test_call_records_of_the_version_before_and_after_are_read() -> None:
    fields = ["add", b"x", None, None, None, None, False, False, None]
    old = msgspec.msgpack.encode(fields)
    assert read_call_record(old, "job-1") == CallRecord("add", b"x", rerun=False)
    newer = msgspec.msgpack.encode([*fields, b"c", None, "v", "a.py", None, "added later"])
    brief = CallRecord("add", b"x", rerun=False, context=b"c", version="v", source="a.py")
    assert read_call_record(newer, "job-1") == brief


def named(name: str, ring: KeyRing | None = None) -> TaskCode:
    return TaskCode(name, context_tasks.beside, Wire(ring=ring))


def test_the_context_of_another_task_is_not_used() -> None:
    moved = named("other").pack_context({"farm_request_id": "r-1"})
    assert named("other").unpack_context(moved) == {"farm_request_id": "r-1"}
    with pytest.raises(Undecodable, match="it was moved"):
        named("beside").unpack_context(moved)


async def test_a_context_that_was_altered_under_a_key_ring_is_not_run_with() -> None:
    ring = KeyRing({"k1": b"x" * 32}, current="k1")
    signed = named("beside", ring).pack_context({"farm_request_id": "r-1"})
    assert named("beside", ring).unpack_context(signed) == {"farm_request_id": "r-1"}
    with pytest.raises(BadSignature):
        named("beside", ring).unpack_context(signed.replace(b"r-1", b"r-2"))
    app = App("memory://", wire=Wire(ring=ring))
    task = app.task(name="beside")(context_tasks.beside)
    async with app, app.worker():
        request_id.set("r-1")
        order = task.request(HERE)
        altered = msgspec.structs.replace(
            order, call_record=order.call_record.replace(b"r-1", b"r-2")
        )
        assert altered.call_record != order.call_record
        (ticket,) = await app.core.submitter.submit([altered], task._how())
        with pytest.raises((JobFailed, BadSignature), match="context of a call of beside"):
            await result(ticket)


def test_an_isolated_call_leaves_the_context_unchanged() -> None:
    call = (context_tasks.__name__, "beside", (HERE,), dict[str, Any]())
    brought = {"farm_request_id": "r-1", "of another version": 1}
    assert run_apart(*call, context=brought) == ("r-1", True)
    assert run_apart(*call) == (None, True)
