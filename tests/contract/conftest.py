"""Every store, one after the other, for the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from poolhand.contract import Store
from poolhand.stores.postgres import PostgresStore
from poolhand.stores.sqlite import SqliteStore
from poolhand.stores.sqlite_memory import MemoryStore
from tests.conditions import use_at, used_file
from tests.contract.support import Another, Clock, Hand, owner

STORES = ["memory", "sqlite", "postgres", "sqlite-used", "postgres-used"]
# It takes a server a tenth of a second to be used: these are the verbs that number what they keep.
ALSO_USED_SERVERS = ("test_documents", "test_log", "test_leases", "test_erase")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make_store" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        kinds = STORES if module in ALSO_USED_SERVERS else STORES[:-1]
        metafunc.parametrize("make_store", kinds, indirect=True)


@pytest.fixture
def make_store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Callable[[], Store]:
    """Make one more store on the same data; of memory there is only one."""
    kind, _, condition = request.param.partition("-")
    path = tmp_path / "jobs.db"
    match kind:
        case "memory":
            memory = MemoryStore(clock)
            return lambda: memory
        case "sqlite":
            if condition:
                used_file(path, clock)
            return lambda: SqliteStore(path, clock)
        case _:
            url = request.getfixturevalue("schema")

            def make() -> Store:
                return PostgresStore(url, clock, lambda: (clock.now, clock.date))

            if condition:
                asyncio.run(use_at(make()))
            return make


@pytest.fixture
async def another(make_store: Callable[[], Store]) -> AsyncIterator[Another]:
    """Give one more store on the same data, open."""
    async with AsyncExitStack() as stack:

        async def open_store() -> Store:
            store = make_store()
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_store


@pytest.fixture
async def store(another: Another) -> Store:
    return await another()


@pytest.fixture
async def hand(store: Store, clock: Clock) -> Hand:
    await store.enroll(owner("hand"))
    hand = Hand(store, clock)
    await hand.look_around()
    return hand
