"""Every store, one after the other, for the same tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from poolhand.contract import Store
from poolhand.stores.postgres import PostgresStore
from poolhand.stores.sqlite import SqliteStore
from poolhand.stores.sqlite_memory import MemoryStore
from tests.contract.support import Another, Clock, Hand, owner


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Callable[[], Store]:
    """Make one more store on the same data; of memory there is only one."""
    match request.param:
        case "memory":
            memory = MemoryStore(clock)
            return lambda: memory
        case "sqlite":
            return lambda: SqliteStore(tmp_path / "jobs.db", clock)
        case _:
            url = request.getfixturevalue("schema")
            return lambda: PostgresStore(url, clock, lambda: (clock.now, clock.date))


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
    return Hand(store, clock)
