"""Opening and closing: once for all users, again after a failure, without leftovers."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from concurrent.futures import Future as PlainFuture
from pathlib import Path

import pytest

from poolhand import fair_round_robin
from poolhand.app import App
from poolhand.durable.connection.connection import ConnectionSlot, StoreConnection
from poolhand.errors import Unavailable
from poolhand.observe.events import Events
from poolhand.rules.lifecycle import KEEP
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import MemoryStore
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import SharedStore, StoreApp, seeded


class Counting(SharedStore):
    """Counts how often it was opened."""

    opened = 0

    async def open(self) -> None:
        self.opened += 1
        await asyncio.sleep(0)
        await super().open()


@seeded
async def test_a_store_is_opened_once_for_all_callers(runtime: SeededRuntime) -> None:
    store = Counting(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call")
    async def call() -> None: ...

    await asyncio.gather(*(call.submit() for _ in range(10)), app.ready(), app.core.connection())
    assert store.opened == 1
    await app.close()
    await app.close()
    await call.submit()
    assert store.opened == 2
    await app.close()


@seeded
async def test_closing_an_app_that_is_being_opened_closes_it(runtime: SeededRuntime) -> None:
    store = Counting(runtime)
    app = StoreApp(store, runtime)
    for turns in range(12):
        opening = asyncio.ensure_future(app.core.connection())
        for _ in range(turns):
            await asyncio.sleep(0)
        await app.close()
        await asyncio.gather(opening, return_exceptions=True)
    await app.close()
    assert await store.leases() == []


@seeded
async def test_a_caller_cancelled_while_a_store_opens_does_not_affect_the_others(
    runtime: SeededRuntime,
) -> None:
    store = Counting(runtime)
    app = StoreApp(store, runtime)
    first, second = (asyncio.ensure_future(app.core.connection()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).store is store
    assert store.opened == 1
    await app.close()


@seeded
async def test_a_failed_open_is_raised_to_every_waiting_caller(runtime: SeededRuntime) -> None:
    store = Counting(runtime)
    store.down = True
    app = StoreApp(store, runtime)
    found = await asyncio.gather(*(app.core.connection() for _ in range(5)), return_exceptions=True)
    assert {type(one) for one in found} == {Unavailable}
    store.down = False
    assert (await app.core.connection()).store is store
    await app.close()


@seeded
async def test_pools_are_declared_before_anything_is_submitted(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    app.pool("one", max_concurrent=3)

    @app.task(name="call", pool="two")
    async def call() -> None: ...

    async with app:
        (row,) = await store.pools()
        assert (row.spec.name, row.slots) == ("one", 3)
        # Declared late: no job may be admitted under other rules.
        app.pool("two", max_concurrent=5, queue=fair_round_robin("customer"))
        await asyncio.gather(*(call.submit() for _ in range(10)))
        rows = {row.spec.name: row for row in await store.pools()}
        assert rows["two"].slots == 5


@seeded
async def test_a_pool_that_could_not_be_declared_is_declared_with_the_next_submit(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call", pool="late")
    async def call() -> None: ...

    async with app:
        app.pool("late", max_concurrent=2)
        store.down = True
        with pytest.raises(Unavailable):
            await call.submit()
        store.down = False
        await call.submit()
        (row,) = await store.pools()
        assert row.slots == 2


async def test_a_closed_app_leaves_nothing_open(url: str, tmp_path: Path) -> None:
    app = App(url)

    @app.task(name="call")
    async def call() -> int:
        return 1

    @app.task(name="in_thread")
    def in_thread() -> int:
        return 1

    files, threads = open_files(), set(threading.enumerate())
    for _ in range(3):
        async with app, app.worker(2):
            assert await (await call.submit()) == 1
            assert await (await in_thread.submit()) == 1
        gc.collect()
        await gone("poolhand-store", but=threads)
        await gone("poolhand-watchdog", but=threads)
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
    assert open_files() <= files
    left = {path.name for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))}
    assert not any(name.endswith(("-wal", "-shm")) for name in left), left


def open_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    # Only files of the store: pipes and loops of the test runner come and go.
    return {name for name in found if name.startswith("/") and "jobs.db" in name}


async def gone(name: str, but: set[threading.Thread]) -> None:
    """Wait until no thread of that name is left except those in `but`."""
    while any(one.name == name and one not in but for one in threading.enumerate()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_an_app_can_be_opened_and_closed_again_and_again(url: str) -> None:
    app = App(url)

    @app.task(name="call")
    async def call() -> int:
        return 1

    for _ in range(5):
        async with app, app.worker():
            assert await (await call.submit()) == 1
    assert not url.startswith("sqlite") or (await call.submit()).status is Status.QUEUED
    await app.close()


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), OSError(errno.EMFILE, "Too many open files")],
    ids=["no thread", "no descriptor"],
)
def test_a_failed_thread_start_is_an_error_and_the_next_call_tries_again(error: Exception) -> None:
    class Threadless(Runtime):
        threads = 0

        def loop_beside(self, name: str) -> asyncio.AbstractEventLoop:
            self.threads += 1
            if self.threads == 1:
                raise error
            return super().loop_beside(name)

    runtime = Threadless()
    opening = ConnectionSlot(lambda: StoreConnection(MemoryStore(runtime), runtime, Events(), KEEP))
    with pytest.raises(Unavailable, match="no thread or event loop can be started"):
        opening.connection_sync()
    assert opening.connection_sync() is opening.current
    asyncio.run(opening.close())


def test_a_thread_waits_for_a_store_to_open_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poolhand.durable.connection.connection.OPEN_WITHIN", 0.05)
    runtime = Runtime()
    proceed = threading.Event()

    class Slow(MemoryStore):
        async def open(self) -> None:
            await asyncio.to_thread(proceed.wait)
            await super().open()

    opening = ConnectionSlot(lambda: StoreConnection(Slow(runtime), runtime, Events(), KEEP))
    with pytest.raises(Unavailable, match="could not be opened in time"):
        opening.connection_sync()
    proceed.set()
    asyncio.run(opening.close())
    assert opening.current is None


def test_releasing_a_connection_that_is_still_opening_leaves_nothing_open() -> None:
    runtime = Runtime()
    proceed = threading.Event()
    connections: PlainFuture[StoreConnection] = PlainFuture()

    class Slow(MemoryStore):
        async def open(self) -> None:
            await asyncio.to_thread(proceed.wait)
            await super().open()

    def make() -> StoreConnection:
        connection = StoreConnection(Slow(runtime), runtime, Events(), KEEP)
        connections.set_result(connection)
        return connection

    opening = ConnectionSlot(make)

    async def leave() -> None:
        waiting = asyncio.ensure_future(opening.connection())
        await asyncio.sleep(0)
        opening.abandon()
        proceed.set()
        await asyncio.gather(waiting, return_exceptions=True)
        thread = connections.result().thread
        while not thread.loop.is_closed():  # noqa: ASYNC110 - closed on another thread
            await asyncio.sleep(0)
        assert opening.current is None

    asyncio.run(leave())
