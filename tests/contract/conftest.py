"""Every store, one after the other, for the same tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from poolhand.contract import Store
from poolhand.stores.memory import MemoryStore
from poolhand.stores.sqlite import SqliteStore
from tests.contract.support import Another, Clock, Hand, owner


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
async def another(
    request: pytest.FixtureRequest, clock: Clock, tmp_path: Path
) -> AsyncIterator[Another]:
    """Give one more store on the same data; of memory there is only one."""
    async with AsyncExitStack() as stack:
        memory = MemoryStore(clock)

        async def open_store() -> Store:
            if request.param == "memory":
                store: Store = memory
            else:
                store = SqliteStore(tmp_path / "jobs.db", clock)
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
