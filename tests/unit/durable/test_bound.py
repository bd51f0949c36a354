"""Signed calls belong to their jobs: a writer to the store cannot run them as other jobs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from poolhand import App, Retry, Session, context, wait
from poolhand.contract import JobBatch
from poolhand.durable.calls.call_record import read_call_record, write_call_record
from poolhand.durable.client.task import TaskSubmitter
from poolhand.errors import BadSignature, JobFailed
from poolhand.pool.ticket import Ticket
from poolhand.rules.job import Job, Status
from poolhand.settings import KeyRing, Wire
from poolhand.wire.payload import encode
from tests.contract.support import call_record

LIMIT = 30
OLD, NEW = b"old secret, long enough", b"new secret, long enough"
BEFORE = KeyRing({"k1": OLD}, current="k1")
RING = KeyRing({"k2": NEW, "k1": OLD}, current="k2")
# The index of each field in the stored job request, and in the stored call record.
ORDERED = {"pool": 0, "session": 7, "tenant": 8, "user": 9}
BRIEF = {"task": 0, "retry": 2, "timeout": 3, "soft_timeout": 4, "run_in": 5, "on_crash": 6}

SELECT = {
    "ordered": "SELECT ordered FROM poolhand_jobs WHERE id = ?",
    "brief": "SELECT brief FROM poolhand_jobs WHERE id = ?",
}
UPDATE = {
    "ordered": "UPDATE poolhand_jobs SET ordered = ? WHERE id = ?",
    "brief": "UPDATE poolhand_jobs SET brief = ? WHERE id = ?",
}
COPY_BRIEF = """
UPDATE poolhand_jobs SET brief = (SELECT brief FROM poolhand_jobs WHERE id = ?) WHERE id = ?
"""
COPY_END = """
UPDATE poolhand_ends SET course = (
    SELECT course FROM poolhand_ends e JOIN poolhand_jobs j USING (seq) WHERE id = ?
) WHERE seq IN (SELECT seq FROM poolhand_jobs WHERE id = ?)
"""
COPY_INBOX = """
UPDATE poolhand_log SET lines = (SELECT lines FROM poolhand_log WHERE stream = ?) WHERE stream = ?
"""

request_id: ContextVar[str] = context.register(ContextVar("test_bound_request_id"))

Change = Callable[[Any], Any]


class Shop(NamedTuple):
    """An app, its task that pays, and the calls that ran."""

    app: App
    pay: TaskSubmitter[[str], str]
    runs: list[str]


def shop_at(path: Path, ring: KeyRing | None) -> Shop:
    """Return an app of two tasks that take the same arguments."""
    app, runs = App(f"sqlite:///{path / 'jobs.db'}", wire=Wire(ring=ring)), list[str]()
    app.pool("slow")

    @app.task(name="pay", timeout=5, retry=Retry(attempts=2, first=0))
    async def pay(what: str) -> str:
        runs.append(what)
        if what == "fails once" and runs.count(what) == 1:
            raise ValueError(what)
        return f"paid {what}"

    @app.task(name="refund")
    async def refund(what: str) -> str:
        runs.append(f"refund of {what}")
        return what

    return Shop(app, pay.with_options(user="ana", tenant="acme"), runs)


def edit(path: Path, column: str, id: str, place: int, change: Change) -> None:
    """Change one field of a stored job directly in the database."""
    with sqlite3.connect(path / "jobs.db") as file:
        (data,) = file.execute(SELECT[column], (id,)).fetchone()
        parts = msgspec.msgpack.decode(data)
        parts[place] = change(parts[place])
        file.execute(UPDATE[column], (msgspec.msgpack.encode(parts), id))
    file.close()


def statement(path: Path, sql: str, *parameters: Any) -> None:
    with sqlite3.connect(path / "jobs.db") as file:
        file.execute(sql, parameters)
    file.close()


async def ended(app: App, pay: TaskSubmitter[..., Any], ids: list[str]) -> list[Job]:
    """Return the jobs when all of them are over."""
    async with asyncio.timeout(LIMIT):
        tickets = [await ticket(app, pay, id) for id in ids]
        return [await wait(one) for one in tickets]


async def ticket(app: App, pay: TaskSubmitter[..., Any], id: str) -> Ticket[Any]:
    connection = await app.core.connection()
    (stored,) = await connection.thread.ask(lambda: connection.store.get([id]))
    assert stored is not None
    at = app.core.runtime.monotonic()
    return app.core.submitter.ticket(connection, stored.job, at, pay._how())


async def test_a_signed_call_of_which_anything_was_altered_is_not_run(tmp_path: Path) -> None:
    app, pay, runs = shop_at(tmp_path, RING)
    changes: dict[str, tuple[str, int, Change]] = {
        "pool": ("ordered", ORDERED["pool"], lambda _: "slow"),
        "session": ("ordered", ORDERED["session"], lambda _: "s-1"),
        "tenant": ("ordered", ORDERED["tenant"], lambda _: "other"),
        "no tenant": ("ordered", ORDERED["tenant"], lambda _: None),
        "user": ("ordered", ORDERED["user"], lambda _: "eve"),
        "task": ("brief", BRIEF["task"], lambda _: "refund"),
        "retry": ("brief", BRIEF["retry"], lambda old: [99, *old[1:]]),
        "give_up_on": ("brief", BRIEF["retry"], lambda old: [*old[:-1], ["ValueError"]]),
        "timeout": ("brief", BRIEF["timeout"], lambda _: 5000.0),
        "soft_timeout": ("brief", BRIEF["soft_timeout"], lambda _: 1.0),
        "run_in": ("brief", BRIEF["run_in"], lambda _: "thread"),
        "on_crash": ("brief", BRIEF["on_crash"], lambda _: False),
        "run": ("brief", 10, lambda _: "another"),
    }
    async with app:
        submit = pay.submit
        ids = {what: (await submit(what)).id for what in (*changes, "nothing")}
    for what, (column, place, change) in changes.items():
        edit(tmp_path, column, ids[what], place, change)
    app, pay, runs = shop_at(tmp_path, RING)
    async with app, app.worker():
        jobs = dict(zip(ids, await ended(app, pay, list(ids.values())), strict=True))
    assert runs == ["nothing"]
    assert jobs.pop("nothing").status is Status.COMPLETED
    for what, job in jobs.items():
        assert (what, job.status, job.attempts) == (what, Status.FAILED, 1)
        assert job.error is not None
        assert job.error.type == "poolhand.errors.BadSignature", what
        assert "signed" in job.error.message


async def test_a_signed_call_that_was_copied_into_another_job_is_not_run(tmp_path: Path) -> None:
    app, pay, _ = shop_at(tmp_path, RING)
    async with app:
        first = await pay.submit("once")
        second = await pay.submit("other")
    statement(tmp_path, COPY_BRIEF, first.id, second.id)
    app, pay, runs = shop_at(tmp_path, RING)
    async with app, app.worker():
        one, other = await ended(app, pay, [first.id, second.id])
    assert (one.status, other.status, runs) == (Status.COMPLETED, Status.FAILED, ["once"])
    assert other.error is not None
    assert other.error.type == "poolhand.errors.BadSignature"
    assert (
        f"was signed for job '{first.id}', not for job {second.id}: it was copied"
        in other.error.message
    )


async def test_a_job_that_has_run_cannot_be_replayed_as_a_new_one(tmp_path: Path) -> None:
    app, pay, runs = shop_at(tmp_path, RING)
    async with app, app.worker():
        done = await pay.submit("once")
        await ended(app, pay, [done.id])
    async with app:
        connection = await app.core.connection()
        brief = await connection.thread.ask(lambda: call_record(connection.store, done.id))
        assert brief is not None
        again = replace(pay.request("x"), call_record=brief)
        await connection.thread.ask(lambda: connection.store.add([JobBatch((again,))]))
    async with app, app.worker():
        (job,) = await ended(app, pay, [again.job.id])
    assert (job.status, runs) == (Status.FAILED, ["once"])


async def test_the_signed_context_of_another_job_is_not_accepted(tmp_path: Path) -> None:
    app, pay, runs = shop_at(tmp_path, RING)
    async with app:
        request_id.set("r-1")
        first = await pay.submit("r-1")
        request_id.set("r-2")
        last = await pay.submit("r-2")
        connection = await app.core.connection()
        taken = await connection.thread.ask(lambda: call_record(connection.store, first.id))
        assert taken is not None
    edit(tmp_path, "brief", last.id, 9, lambda _: read_call_record(taken, "").context)
    app, pay, runs = shop_at(tmp_path, RING)
    async with app, app.worker():
        (job,) = await ended(app, pay, [last.id])
    assert job.status is Status.FAILED
    assert job.error is not None
    assert job.error.type == "poolhand.errors.BadSignature"
    assert "r-2" not in runs


async def test_a_signed_result_moved_to_another_job_is_not_accepted(
    tmp_path: Path,
) -> None:
    app, pay, _ = shop_at(tmp_path, RING)
    async with app, app.worker():
        ids = [(await pay.submit(one)).id for one in "ab"]
        await ended(app, pay, ids)
    statement(tmp_path, COPY_END, *ids)
    app, pay, _ = shop_at(tmp_path, RING)
    async with app:
        assert await (await ticket(app, pay, ids[0])) == "paid a"
        with pytest.raises(BadSignature, match="the result of pay"):
            await (await ticket(app, pay, ids[1]))


async def test_an_operator_without_keys_can_rerun_a_dead_signed_job(tmp_path: Path) -> None:
    app, pay, runs = shop_at(tmp_path, RING)
    view = pay.with_options(retry=None)
    async with app, app.worker():
        dead = await view.submit("fails once")
        await ended(app, pay, [dead.id])
    keyless = App(app.url)
    async with keyless:
        (answer,) = await keyless.operator().retry([dead.id], by="op")
    app, pay, runs = shop_at(tmp_path, RING)
    runs.append("fails once")
    async with app, app.worker():
        (job,) = await ended(app, pay, [answer.new_id or ""])
        assert await (await ticket(app, pay, job.id)) == "paid fails once"
    assert (job.status, job.continues) == (Status.COMPLETED, dead.id)


async def test_keys_can_be_rotated_while_signed_jobs_wait(tmp_path: Path) -> None:
    app, pay, _ = shop_at(tmp_path, BEFORE)
    async with app:
        waiting = await pay.submit("early")
    app, pay, runs = shop_at(tmp_path, RING)
    async with app, app.worker():
        (job,) = await ended(app, pay, [waiting.id])
        assert await (await ticket(app, pay, job.id)) == "paid early"
    assert runs == ["early"]


async def test_a_call_signed_without_a_job_id_runs_only_if_the_ring_accepts_it(
    tmp_path: Path,
) -> None:
    app, pay, _ = shop_at(tmp_path, RING)
    async with app:
        ids = [(await pay.submit(one)).id for one in "ab"]
    for id in ids:
        old = encode(("pay", ["what"], {"what": id}), ring=RING, bound=None)
        edit(tmp_path, "brief", id, 1, lambda _, old=old: old)  # type: ignore[misc]
        edit(tmp_path, "brief", id, 10, lambda _: None)
    app, pay, runs = shop_at(tmp_path, RING)
    async with app, app.worker():
        for job in await ended(app, pay, ids[:1]):
            assert job.error is not None
            assert "KeyRing(…, accept_unbound=True)" in job.error.message
    assert runs == []
    lenient = KeyRing({"k2": NEW}, current="k2", accept_unbound=True)
    order = pay.request("c")
    old = encode(("pay", ["what"], {"what": "c"}), ring=RING, bound=None)
    brief = write_call_record(
        replace(read_call_record(order.call_record, ""), payload=old, run=None)
    )
    app, pay, runs = shop_at(tmp_path, lenient)
    async with app:
        connection = await app.core.connection()
        batch = JobBatch((replace(order, call_record=brief),))
        await connection.thread.ask(lambda: connection.store.add([batch]))
    async with app, app.worker():
        (job,) = await ended(app, pay, [order.job.id])
    assert (job.status, runs) == (Status.COMPLETED, ["c"])


async def test_a_turn_that_joins_another_has_its_own_signature(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", wire=Wire(ring=RING))
    told: list[Any] = []

    @app.agent(name="assistant", on_busy="merge", retry=None)
    async def assistant(session: Session, text: str) -> str:
        told.append((text, session.inbox))
        return text

    async with app:
        door = assistant.session("s-1", user="ana")
        first = await door.submit("one")
        joined = await door.submit("two")
        assert joined.id == first.id
        async with app.worker(), asyncio.timeout(LIMIT):
            assert await first == "one"
        other = await assistant.session("s-2", user="ana").submit("three")
        await assistant.session("s-2", user="ana").submit("four")
        connection = await app.core.connection()
        (line,) = await connection.thread.ask(lambda: connection.store.read(f"inbox/{first.id}"))
    # A message of one session is not accepted in another.
    statement(tmp_path, COPY_INBOX, f"inbox/{first.id}", f"inbox/{other.id}")
    async with app, app.worker(), asyncio.timeout(LIMIT):
        with pytest.raises(JobFailed, match="BadSignature"):
            await other
    assert told == [("one", ["two"])]
    assert read_call_record(line.body, "").run not in (None, first.id)


async def test_without_a_ring_a_call_names_no_run(tmp_path: Path) -> None:
    pay = shop_at(tmp_path, None).pay
    order = pay.request("a")
    assert read_call_record(order.call_record, "job-1").run is None
