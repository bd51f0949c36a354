"""A store of an earlier version, with jobs in every state, continues with the present code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from poolhand import App, Ticket
from poolhand.errors import ToolOutcomeUnknown
from poolhand.operate.views import JobView
from poolhand.rules.audit import STREAM
from poolhand.runtime import Runtime
from poolhand.views import Status
from tests.old_store.agents import Somewhere, Tasks, World, elsewhere, make_app
from tests.old_store.load import load_postgres, load_sqlite

pytestmark = pytest.mark.slow

WAITING = {
    "queued": "work",
    "queued-keyed": "work",
    "delayed": "work",
    "again": "flaky",
    "asleep": "snoozes",
    "placed": "work_full",
    "unknown": "elsewhere",
}


@dataclass
class Reader:
    """A process with the present code, on the machine whose processes were killed."""

    app: App
    tasks: Tasks
    world: World

    async def jobs(self) -> dict[str, JobView]:
        """Return the jobs of the old store by their labels."""
        page = await self.app.operator().jobs(limit=1000)
        return {one.user: one for one in page.jobs if one.user and one.session is None}

    async def ticket(self, label: str) -> Ticket[Any]:
        found = await self.app.get((await self.jobs())[label].id)
        assert found is not None
        return found

    async def result(self, label: str) -> Any:
        return await (await self.ticket(label))

    async def turns(self) -> list[Ticket[Any]]:
        """Return the tickets of all turns of the session s-1, oldest first."""
        page = await self.app.operator().jobs(limit=1000)
        ids = [one.id for one in reversed(page.jobs) if one.session == "s-1"]
        found = [await self.app.get(id) for id in ids]
        return [one for one in found if one is not None]


class OldStore:
    """The place of the old store, and the time at which it is read."""

    def __init__(self, url: str, at: datetime, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._at = at

    def runtime(self, host: str) -> Runtime:
        """Return a runtime of a machine that was rebooted."""
        return Somewhere(host, "second", self._at)

    def reader(self, host: str = "alpha", *, whole: bool = True) -> Reader:
        """Return an app; one that is not `whole` lacks a task."""
        world = World(self.folder / "ledger.txt")
        app, tasks = make_app(self.url, world, self.runtime(host))
        return Reader(app, {**tasks, **(elsewhere(app, world) if whole else {})}, world)

    @asynccontextmanager
    async def worked_on(self, host: str = "alpha") -> AsyncIterator[Reader]:
        reader = self.reader(host)
        async with reader.app, reader.app.worker():
            yield reader


@pytest.fixture(params=["sqlite", "postgres"])
async def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldStore:
    """Return a store as an earlier version left it."""
    if request.param == "sqlite":
        at = load_sqlite(tmp_path / "jobs.db")
        return OldStore(f"sqlite:///{tmp_path / 'jobs.db'}", at, tmp_path)
    url: str = request.getfixturevalue("schema")
    return OldStore(url, await load_postgres(url), tmp_path)


async def test_stored_jobs_of_an_old_store_are_read_unchanged(old: OldStore) -> None:
    reader = old.reader("epsilon")
    async with reader.app:
        jobs = await reader.jobs()
        statuses = {label: job.status.value for label, job in jobs.items()}
        over = ("done", "told", "o-done", "dead", "expired", "cancelled", "rejected")
        assert " ".join(statuses[label] for label in over) == (
            "completed completed completed failed expired cancelled rejected"
        )
        assert {statuses[label] for label in ("alpha", "beta", "half", "holds")} == {"running"}
        assert (statuses["behind"], statuses["queued"]) == ("blocked", "queued")
        dead = await reader.app.operator().dead()
        assert {job.user for job in dead.jobs} == {"dead", "dead-keyed"}
        assert await reader.result("done") == "done"
        assert await reader.result("o-done") == "paid 500 for o-done"
    assert reader.world.lines() == []


async def test_every_waiting_job_of_an_old_store_runs_to_its_end(old: OldStore) -> None:
    async with old.worked_on() as reader:
        for label in WAITING:
            assert await reader.result(label) == label
        # The submitter counts as alive; its parked job has got a place.
        assert await reader.result("parked") == "parked"
        await reader.app.operator().resume("ring", "ann")
        assert await reader.result("last") == "last"
        ran = [f"{task} {label}" for label, task in WAITING.items()]
        assert {reader.world.lines().count(line) for line in ran} == {1}
        assert "work_ring rejected" not in reader.world.lines()


async def test_jobs_of_a_machine_that_went_down_run_again(old: OldStore) -> None:
    async with old.worked_on() as reader:
        for label in ("alpha", "holds", "behind"):
            assert await reader.result(label) == label
        jobs = await reader.jobs()
        assert (jobs["alpha"].attempts, jobs["alpha"].crashes) == (2, 1)
        keyed = [line for line in reader.world.lines() if line.startswith("work_keyed")]
        assert sorted(keyed) == ["work_keyed behind", "work_keyed holds"]


async def test_a_job_of_a_machine_that_may_live_is_left_to_it(old: OldStore) -> None:
    async with old.worked_on() as reader:
        await reader.result("alpha")
        assert (await reader.jobs())["beta"].status is Status.RUNNING
        assert "work beta" not in reader.world.lines()
    async with old.worked_on("beta") as reader:
        assert await reader.result("beta") == "beta"


async def test_a_call_that_was_begun_is_reported_and_not_made_twice(old: OldStore) -> None:
    async with old.worked_on() as reader:
        with pytest.raises(ToolOutcomeUnknown, match=r"settle_tool\('[^']+'"):
            await reader.result("o-begun")
        job = (await reader.jobs())["o-begun"]
        assert job.dead
        assert job.error is not None
        assert "pay o-begun" not in reader.world.lines()
        key = job.error.message.partition("settle_tool('")[2].partition("'")[0]
        await reader.app.settle_tool(key, happened=True, result="paid by hand")
        (answer,) = await reader.app.operator().retry([job.id], "ann")
        again = await reader.app.get(answer.new_id or "")
        assert again is not None
        assert await again == "paid by hand"
        assert reader.world.lines().count("bought o-begun") == 1
        assert "pay o-begun" not in reader.world.lines()


async def test_a_call_that_was_made_is_replayed(old: OldStore) -> None:
    async with old.worked_on() as reader:
        assert await reader.result("o-paid") == "paid 500 for o-paid"
        assert await reader.result("o-later") == "paid 700 for o-later"
        assert "bought o-paid" in reader.world.lines()
        assert not [line for line in reader.world.lines() if line.startswith("pay")]


async def test_a_partial_journal_is_continued(old: OldStore) -> None:
    async with old.worked_on() as reader:
        page = await reader.app.operator().jobs(limit=1000)
        (id,) = [job.id for job in page.jobs if job.name == "crawl"]
        ticket = await reader.app.get(id)
        assert ticket is not None
        assert await ticket == ["first of half", "second of half"]
        assert reader.world.lines().count("second half") == 1
        assert "first half" not in reader.world.lines()


async def test_sessions_keep_their_state_and_continue(old: OldStore) -> None:
    async with old.worked_on() as reader:
        assert await (await reader.turns())[-1] == "5 said"
        talk = reader.tasks["chat"].session("s-1", tenant="acme", user="ann")
        record = await talk.record()
        # The interrupted turn had saved its state, and appends its message again.
        said = ["first", "second", "third", "third", "fourth"]
        assert record.state["messages"] == said
        states = [one.state["messages"] for one in await talk.revisions()]
        assert states[0] == ["first"]
        assert states[-1] == said
        told = [(one.message, one.attempt, one.status) for one in await talk.history()]
        assert told[:2] == [("first", 1, "completed"), ("second", 1, "completed")]
        assert told[-1] == ("fourth", 1, "completed")
        assert await (await talk.submit("fifth")) == "6 said"


async def test_keys_of_the_old_store_return_their_jobs(old: OldStore) -> None:
    async with old.worked_on() as reader:
        work, before = reader.tasks["work"], await reader.jobs()
        for key, label in (("k-done", "done"), ("k-queued", "queued-keyed")):
            ticket = await work.with_options(idempotency_key=key).submit("not again")
            assert ticket.id == before[label].id
            assert await ticket == label
        assert "work not again" not in reader.world.lines()


async def test_dead_letters_can_be_run_again(old: OldStore) -> None:
    async with old.worked_on() as reader:
        before = await reader.jobs()
        for label in ("dead", "dead-keyed"):
            (answer,) = await reader.app.operator().retry([before[label].id], "ann")
            again = await reader.app.get(answer.new_id or "")
            assert again is not None
            assert await again == label


async def test_streams_can_be_read_and_continue(old: OldStore) -> None:
    async with old.worked_on() as reader:
        ids = [job.id for job in (await reader.app.operator().jobs(limit=1000)).jobs]
        told: dict[str, list[tuple[int, str, Any]]] = {}
        for id in ids:
            ticket: Any = await reader.app.get(id)
            if ticket is not None and ticket.snapshot().name == "tells":
                events = [event async for event in ticket.events()]
                assert [event.number for event in events] == list(range(1, len(events) + 1))
                told[ticket.snapshot().user] = [
                    (event.attempt, event.kind.value, event.data) for event in events
                ]
    assert told["told"] == [
        (1, "chunk", "told begins"),
        (1, "chunk", "told ends"),
        (1, "state", "completed"),
    ]
    assert [line[:2] for line in told["half"]] == [
        *((1, "chunk"), (2, "restarted"), (2, "chunk"), (2, "chunk"), (2, "state"))
    ]


async def test_a_schedule_runs_once_for_what_it_has_missed(old: OldStore) -> None:
    reader = old.reader()
    ticked = asyncio.Event()
    reach = reader.world.reach

    async def hear(what: str) -> None:
        await reach(what)
        if what == "tick":
            ticked.set()

    reader.world.reach = hear  # type: ignore[method-assign]
    async with reader.app, reader.app.worker():
        (before,) = await reader.app.operator().schedules()
        assert before.task == "tick"
        await ticked.wait()
    async with reader.app, reader.app.worker():
        await reader.result("queued")
    assert reader.world.lines().count("tick") == 1


async def test_the_audit_log_continues_its_numbering(old: OldStore) -> None:
    async with old.worked_on() as reader:
        before = await reader.app.operator().audit(0, 10_000)
        await reader.result("queued")
        after = await reader.app.operator().audit(0, 10_000)
    assert [line.number for line in after] == list(range(1, len(after) + 1))
    assert after[: len(before)] == before
    assert before[0].kind == "pool_create"


async def test_an_audit_log_restored_on_a_newer_server_can_be_read(
    tmp_path: Path, schema: str
) -> None:
    old = OldStore(schema, await load_postgres(schema), tmp_path)
    connection = await asyncpg.connect(schema.partition("?")[0])
    name = schema.partition("?schema=")[2]
    # Transaction numbers that this server has not reached, as records of another cluster have.
    await connection.execute(f"SET search_path = {name}")
    waiting = await connection.fetchval(
        "WITH moved AS (UPDATE poolhand_audit SET xid = '900000000000' RETURNING count) "
        "SELECT sum(count)::int FROM moved"
    )
    await connection.close()
    reader = old.reader()
    async with reader.app:
        connection = await reader.app.core.connection()
        lines = await connection.thread.ask(lambda: connection.store.read(STREAM, limit=10_000))
    assert len(lines) >= waiting > 0


async def test_a_job_of_a_task_that_is_not_here_waits_for_a_worker_that_has_it(
    old: OldStore,
) -> None:
    without = old.reader(whole=False)
    async with without.app, without.app.worker():
        assert await without.result("queued") == "queued"
        job = (await without.jobs())["unknown"]
        assert not job.status.terminal
    async with old.worked_on() as reader:
        assert await reader.result("unknown") == "unknown"
    assert reader.world.lines().count("elsewhere unknown") == 1
