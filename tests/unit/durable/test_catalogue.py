"""The catalogue: what other processes can know about the tasks of workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from poolhand import Retry
from poolhand.agents.session import Session
from poolhand.contract import Owner, Put
from poolhand.durable.catalogue import (
    PREFIX,
    PUBLISH_EVERY,
    TASK,
    KnownTask,
    PublishedTasks,
    TaskRecord,
    known_tasks,
)
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import SharedStore, StoreApp, seeded
from tests.unit.pool.support import large


def tasks_of(store: SharedStore, runtime: SeededRuntime) -> StoreApp:
    app = StoreApp(store, runtime)
    app.pool("research", timeout=600)

    @app.task(name="research", pool="research", retry=Retry(attempts=2), priority=3)
    async def research(topic: str, depth: int = 1) -> str:
        return topic

    @app.agent(name="chat", on_busy="reject")
    async def chat(session: Session, message: str) -> str:
        return message

    return app


def by_name(tasks: list[KnownTask]) -> dict[str, KnownTask]:
    return {task.record.name: task for task in tasks}


@seeded
async def test_a_worker_publishes_its_tasks(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = tasks_of(store, runtime)
    async with app:
        assert await known_tasks(store) == []
        async with app.worker():
            await asyncio.sleep(6)
            found = by_name(await known_tasks(store))
            research, chat = found["research"].record, found["chat"].record
            assert (research.kind, research.pool, research.priority) == ("task", "research", 3)
            assert research.timeout == 600
            assert research.retry is not None
            assert research.retry.retry().attempts == 2
            assert research.arguments["required"] == ["topic"]
            assert (chat.kind, chat.pool, chat.on_busy) == ("agent", "default", "reject")
            assert list(chat.arguments["properties"]) == ["message"]
            (worker,) = found["research"].workers
            assert worker.serves("research")
        await asyncio.sleep(6)
        # It can still be submitted by its name while no worker runs.
        assert by_name(await known_tasks(store))["research"].workers == ()


@seeded
async def test_workers_of_one_version_share_a_document(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    one, two = tasks_of(store, runtime), tasks_of(store, runtime)
    async with one, two, one.worker(), two.worker():
        await asyncio.sleep(6)
        assert len(await store.scan(PREFIX)) == 1
        assert len(by_name(await known_tasks(store))["research"].workers) == 2


@pytest.mark.slow
@seeded
@large
async def test_a_published_catalogue_is_renewed_while_a_worker_runs(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = tasks_of(store, runtime)
    async with app, app.worker():
        await asyncio.sleep(6)
        (key,) = await store.scan(PREFIX)
        await store.put([Put(key, None)])  # as if its retention were over
        await asyncio.sleep(PUBLISH_EVERY + 10)
        assert len(by_name(await known_tasks(store))["research"].workers) == 1


@seeded
async def test_the_version_with_workers_comes_first_and_then_the_newest(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    now = runtime.wall()

    def version(number: int) -> PublishedTasks:
        return PublishedTasks(f"v{number}", (TaskRecord("task", f"pool-{number}", TASK, "1", {}),))

    documents = [version(n).document(now + timedelta(seconds=n)) for n in range(120)]
    async with StoreApp(store, runtime):
        await store.put(documents)
        found = await known_tasks(store)
        assert (len(found), found[0].record.pool) == (120, "pool-119")
        worker = Owner("w", *runtime.identity(), works=True, catalogue="v7")
        await store.enroll(worker)
        assert (await known_tasks(store))[0].record.pool == "pool-7"


@seeded
async def test_a_name_that_matches_two_tasks_of_a_worker_is_explained(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)

    async def call() -> None: ...

    async def other() -> None: ...

    task = here.task(name="agents.f")(call)
    there.task(name="x.agents.f")(call)
    there.task(name="y.agents.f")(other)
    async with here, there, there.worker():
        ticket = await task.submit()
        await asyncio.sleep(10)
        explained = await ticket.explain()
        assert explained.reason == "ambiguous_task"
        assert "'agents.f' may mean x.agents.f or y.agents.f" in str(explained)


@seeded
async def test_an_unreadable_catalogue_does_not_hide_the_others(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = tasks_of(store, runtime)
    async with app, app.worker():
        await asyncio.sleep(6)
        await store.put([Put(f"{PREFIX}newer", b'{"format": 9}')])
        assert set(by_name(await known_tasks(store))) == {"research", "chat"}


@seeded
async def test_a_task_that_has_moved_names_the_pool_that_no_worker_serves(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    before, after, other = (StoreApp(store, runtime) for _ in range(3))

    async def call(number: int) -> int:
        return number

    async def another() -> None: ...

    old = before.task(name="call", pool="old")(call)
    after.task(name="call", pool="new")(call)
    other.task(name="another", pool="old")(another)
    async with before, after, other, after.worker():
        async with other.worker():
            ticket = await old.submit(7)
            await asyncio.sleep(10)
            explained = await ticket.explain()
        assert explained.reason == "no_worker"
        assert str(explained) == (
            "no worker that has the task 'call' serves pool 'old'; declare that pool in its app, "
            "or give a worker pools=['old']"
        )
        async with after.worker(pools=["old"]):
            assert await ticket == 7
