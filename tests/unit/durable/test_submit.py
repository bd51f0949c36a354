"""Submitting: from loops, threads and jobs, once per key, and never more than requested."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from poolhand import Session, Ticket, UsageError, current_job, wait
from poolhand.app import App
from poolhand.contract import Filter
from poolhand.durable.calls.call_record import CallRecord
from poolhand.errors import IdempotencyConflict
from poolhand.observe.events import JobJoined, JobSubmitted
from poolhand.rules.queue.idempotency import DIGEST_AT
from poolhand.settings import KeyRing, Wire
from poolhand.testing import SeededRuntime
from poolhand.views import Status, SyncTicket
from tests.unit.durable.support import Heard, SharedStore, StoreApp, seeded


def adder(app: App, **options: Any) -> Any:
    @app.task(name="add", **options)
    async def add(number: int) -> int:
        return number + 1

    return add


async def test_a_plain_thread_can_submit(url: str) -> None:
    app = App(url)
    add = adder(app)
    tickets: list[SyncTicket[int]] = []
    thread = Thread(target=lambda: tickets.append(add.submit_sync(4)))
    thread.start()
    await asyncio.to_thread(thread.join)
    async with app, app.worker():
        ticket = await app.get(tickets[0].id)
        assert ticket is not None
        assert await ticket == 5


def test_a_script_without_a_loop_can_submit_and_another_process_runs_it(url: str) -> None:
    app = App(url)
    add = adder(app)
    first, second = add.submit_sync(1), add.submit_sync(2)
    assert first.status is second.status is Status.QUEUED

    async def main() -> list[int]:
        async with app, app.worker():
            tickets = [await app.get(one.id) for one in (first, second)]
            return [await one for one in tickets if one is not None]

    assert asyncio.run(main()) == [2, 3]


async def test_submit_sync_on_a_loop_is_refused() -> None:
    app = App("memory://")
    add = adder(app)
    with pytest.raises(UsageError, match=r"use await add\.submit"):
        add.submit_sync(1)


async def test_a_job_in_a_thread_can_submit_another(url: str) -> None:
    app = App(url)
    add = adder(app)

    @app.task(name="plan")
    def plan() -> str:
        return str(add.submit_sync(6).id)

    async with app, app.worker():
        ticket = await app.get(await (await plan.submit()))
        assert ticket is not None
        assert await ticket == 7
        assert ticket.snapshot().submitted_by.startswith("worker-")


async def test_a_job_can_submit_another_and_wait_for_it(url: str) -> None:
    app = App(url)
    add = adder(app)

    @app.task(name="plan")
    async def plan() -> int:
        job = current_job()
        assert job is not None
        found: int = await (await add.submit(6))
        return found

    async with app, app.worker(2):
        assert await (await plan.submit()) == 7


async def test_an_app_can_be_used_from_several_loops_and_threads_at_once(url: str) -> None:
    app = App(url)
    add = adder(app)
    found: list[list[int]] = []

    async def many(first: int) -> None:
        tickets = [await add.submit(first + number) for number in range(10)]
        found.append([await one for one in tickets])

    async with app, app.worker(4):
        threads = [Thread(target=lambda n=n: asyncio.run(many(n * 100))) for n in range(3)]
        for thread in threads:
            thread.start()
        await many(900)
        for thread in threads:
            await asyncio.to_thread(thread.join)
    expected = [[n + 1 for n in range(start, start + 10)] for start in (0, 100, 200, 900)]
    assert sorted(found) == expected


async def test_a_ticket_can_be_awaited_on_another_loop_than_its_own(url: str) -> None:
    app = App(url)
    add = adder(app)

    async def wait_there(ticket: Ticket[int]) -> int:
        return await ticket

    async with app, app.worker():
        ticket = await add.submit(1)
        assert await asyncio.to_thread(asyncio.run, wait_there(ticket)) == 2


async def test_a_hundred_submits_of_one_key_are_one_job(url: str) -> None:
    app = App(url)
    runs: list[int] = []

    @app.task(name="call")
    async def call(number: int) -> int:
        runs.append(number)
        return number

    keyed = call.with_options(idempotency_key="once")
    async with app, app.worker(5):
        tickets = await asyncio.gather(*(keyed.submit(7) for _ in range(100)))
        assert len({ticket.id for ticket in tickets}) == 1
        assert [await ticket for ticket in tickets] == [7] * 100
        assert (await keyed.submit(7)).id == tickets[0].id
    assert runs == [7]


@seeded
async def test_a_key_is_one_job_for_all_apps_of_a_store(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    apps = [StoreApp(store, runtime) for _ in range(3)]
    runs: list[int] = []

    async def call(number: int) -> int:
        runs.append(number)
        return number

    tasks = [app.task(name="call")(call) for app in apps]
    views = [task.with_options(idempotency_key="k", tenant="t") for task in tasks]
    others = tasks[0].with_options(idempotency_key="k", tenant="u")
    async with apps[0], apps[1], apps[2], apps[2].worker(3):
        tickets = await asyncio.gather(*(view.submit(1) for view in views for _ in range(5)))
        assert {await ticket for ticket in tickets} == {1}
        assert len({ticket.id for ticket in tickets}) == 1
        assert (await others.submit(2)).id != tickets[0].id, "keys are those of a tenant"


@seeded
async def test_a_key_whose_job_failed_runs_again_only_on_request(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    runs: list[int] = []

    @app.task(name="call", retry=None)
    async def call() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise OSError("first")
        return 5

    app.pool("default", retry=None)
    keyed = call.with_options(idempotency_key="k")
    async with app, app.worker():
        first = await keyed.submit()
        assert (await wait(first)).status is Status.FAILED
        assert (await keyed.submit()).id == first.id
        second = await keyed.with_options(rerun_failed=True).submit()
        assert second.id != first.id
        assert await second == 5
        assert (await keyed.with_options(rerun_failed=True).submit()).id == second.id


@seeded
async def test_submits_and_joins_emit_their_events(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    keyed = adder(app).with_options(idempotency_key="k")
    async with app:
        ticket = await keyed.submit(1)
        await keyed.submit(1)
    assert [event.job.id for event in heard.of(JobSubmitted)] == [ticket.id]
    assert [event.job.id for event in heard.of(JobJoined)] == [ticket.id]


@seeded
async def test_concurrent_submits_share_a_write(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    add = adder(app)
    async with app:
        await app.core.connection()
        store.adds = 0
        await asyncio.gather(*(add.submit(number) for number in range(100)))
        assert 1 <= store.adds < 60
        assert await store.count(Filter()) == {Status.QUEUED: 100}


async def test_ids_sort_in_the_order_of_the_submits(url: str) -> None:
    app = App(url)
    add = adder(app)
    async with app:
        ids = [(await add.submit(number)).id for number in range(20)]
        ids += [ticket.id for ticket in await add.submit_many([(1,)] * 20)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 40


@pytest.mark.parametrize("field", ["key", "session", "tenant", "user", "idempotency_key"])
async def test_a_text_that_no_store_can_write_is_refused_with_its_option(field: str) -> None:
    add = adder(App("memory://"))
    with pytest.raises(UsageError, match=f"{field}='.ud800' is not allowed; no store can keep it"):
        add.with_options(**{field: "\ud800"})


def test_names_are_texts_that_can_be_written() -> None:
    app = App("memory://")

    async def call() -> None: ...

    with pytest.raises(UsageError, match="task name="):
        app.task(name="\ud800")(call)
    with pytest.raises(UsageError, match="pool="):
        app.task(pool="\ud800")(call)


@seeded
async def test_a_submit_that_the_store_fails_on_does_not_fail_its_neighbours(
    runtime: SeededRuntime,
) -> None:
    class Picky(SharedStore):
        async def add(self, batches: Any) -> Any:
            if any(order.job.key == "odd" for batch in batches for order in batch.requests):
                raise ZeroDivisionError
            return await super().add(batches)

    app = StoreApp(Picky(runtime), runtime)
    add = adder(app)
    odd = add.with_options(key="odd")
    async with app, app.worker(3):
        submits = [view.submit(number) for number, view in enumerate([add, odd, add, add, odd])]
        found = await asyncio.gather(*submits, return_exceptions=True)
        kinds = [isinstance(one, ZeroDivisionError) for one in found]
        assert kinds == [False, True, False, False, True]
        assert [await one for one in found if isinstance(one, Ticket)] == [1, 3, 4]


# One call per key


async def test_a_key_of_another_task_or_other_arguments_is_a_conflict(url: str) -> None:
    app = App(url)
    add = adder(app).with_options(idempotency_key="k")

    @app.task(name="mail")
    async def mail(number: int) -> None: ...

    async with app, app.worker():
        first = await add.submit(1)
        for _ in range(2):
            with pytest.raises(IdempotencyConflict, match=r"a call of add; .* such as 'mail:k'"):
                await mail.with_options(idempotency_key="k").submit(1)
            with pytest.raises(IdempotencyConflict, match="a call with other arguments") as other:
                await add.submit(2)
            assert (other.value.key, other.value.job_id) == ("k", first.id)
            assert await first == 2
        assert (await add.submit(number=1)).id == first.id
        with pytest.raises(IdempotencyConflict):
            await asyncio.to_thread(mail.with_options(idempotency_key="k").submit_sync, 1)


async def test_a_conflict_does_not_fail_submits_beside_it(url: str) -> None:
    app = App(url)
    add = adder(app).with_options(idempotency_key="k")
    async with app:
        await add.submit(1)
        answers = await asyncio.gather(
            add.submit(1), add.submit(2), add.submit(1), return_exceptions=True
        )
    found = [isinstance(one, IdempotencyConflict) for one in answers]
    assert found == [False, True, False]


async def test_the_same_arguments_in_another_order_or_under_another_key_are_no_conflict(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    ids = set()
    names = [f"name-{n}" for n in range(30)]
    rings = (
        KeyRing({"a": b"a" * 32}, current="a"),
        KeyRing({"b": b"b" * 32, "a": b"a" * 32}, current="b"),
    )
    for ring, given in zip(rings, (names, names[::-1]), strict=True):
        app = App(url, wire=Wire(ring=ring))

        @app.task(name="greet")
        async def greet(names: set[str], tone: str = "kind") -> None: ...

        async with app:
            keyed = greet.with_options(idempotency_key="k")
            ids.add((await keyed.submit(set(given))).id)
            ids.add((await keyed.submit(set(given), tone="kind")).id)
    assert len(ids) == 1


async def test_a_new_version_of_a_task_joins_the_job_of_its_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    found: list[Ticket[None]] = []

    async def old(amount: int) -> None: ...

    async def new(cents: int) -> None: ...

    for fn in (old, new):
        app = App(url)
        task: Any = app.task(name="pay")(fn)
        async with app:
            found.append(await task.with_options(idempotency_key="k").submit(len(found)))
    assert found[0].id == found[1].id


async def test_a_task_by_name_joins_what_its_own_process_submitted(shared_url: str) -> None:
    app, other = App(shared_url), App(shared_url)

    @app.task(name="at")
    async def at(moment: datetime) -> None: ...

    now = datetime.now(UTC)
    async with app, app.worker(), other:
        first = await at.with_options(idempotency_key="k").submit(now)
        task = (await other.find_task("at")).with_options(idempotency_key="k")
        assert (await task.submit(now.isoformat())).id == first.id


def test_a_key_for_every_call_of_a_task_is_refused() -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match=r"task\.with_options\(idempotency_key=…\)"):
        adder(app, idempotency_key="k")
    with pytest.raises(UsageError, match=r"agent\.session\('s-1'\)\.with_options"):

        @app.agent(name="turn", idempotency_key="k")
        async def turn(session: Session) -> None: ...


async def test_a_key_for_many_calls_is_refused() -> None:
    app = App("memory://")
    keyed = adder(app).with_options(idempotency_key="k")
    with pytest.raises(UsageError, match="a key stands for one job"):
        await keyed.submit_many([(1,), (2,)])


def test_a_store_finds_the_digest_where_a_call_record_has_it() -> None:
    assert CallRecord.__struct_fields__[DIGEST_AT] == "digest"
