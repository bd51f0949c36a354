"""Runs the contract tests over every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio

from poolhand.contract import Store
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.sqlite.store import MemoryStore, SqliteStore
from tests.conditions import migrate_at, old_file, use_at, used_file
from tests.contract.support import Another, Clock, Hand, owner
from tests.old_store.load import load_postgres
from tests.schemas import KeptStore

# A new store is the one in memory, a file is the used one: a new file has nothing of its own.
NEW_FILE = pytest.param("sqlite", marks=pytest.mark.full)
STORES = ["memory", NEW_FILE, "postgres", "sqlite-used"]
# Preparing a used server takes a tenth of a second, so only tests of verbs that number their
# records run over one.
USED_SERVER = pytest.param("postgres-used", marks=pytest.mark.full)
ALSO_USED_SERVERS = {
    "test_documents": "postgres-used",
    "test_log": "postgres-used",
    "test_leases": USED_SERVER,
    "test_erase": USED_SERVER,
}
# Tests of tools, steps, sessions and causes; the other tests assert about all jobs or owners of
# a store, and an old store has its own.
ALSO_OLD = (
    *("test_causes", "test_claims", "test_documents", "test_erase", "test_keys", "test_log"),
    *("test_transaction", "test_turns", "test_users"),
)
# What is done with an old server is also held by tests/system/test_old_store.py.
OLD_SERVER = pytest.param("postgres-old", marks=pytest.mark.full)
ALSO_OLD_SERVERS = ("test_causes", "test_turns")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make_store" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        kinds: list[object] = list(STORES)
        kinds += [ALSO_USED_SERVERS[module]] if module in ALSO_USED_SERVERS else []
        kinds += ["sqlite-old"] if module in ALSO_OLD else []
        kinds += [OLD_SERVER] if module in ALSO_OLD_SERVERS else []
        metafunc.parametrize("make_store", kinds, indirect=True)


@pytest.fixture
def make_store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Callable[[], Store]:
    """Make another store on the same data; a memory store has only one."""
    kind, _, condition = request.param.partition("-")
    path = tmp_path / "jobs.db"
    match kind:
        case "memory":
            memory = MemoryStore(clock)
            return lambda: memory
        case "sqlite":
            if condition == "used":
                used_file(path, clock)
            elif condition == "old":
                old_file(path, clock)
            return lambda: SqliteStore(path, clock)
        case _:
            made = "schema" if condition == "old" else "store_schema"
            url, ahead = request.getfixturevalue(made), 0.0
            kept = request.getfixturevalue("kept")
            if condition == "old":
                # The clock continues at the last moment of the old store.
                ahead = asyncio.run(load_postgres(url)).timestamp() - clock.now

            def tell() -> tuple[float, datetime]:
                return clock.now + ahead, clock.date

            if condition:
                before = PostgresStore(url, clock, tell)
                asyncio.run(use_at(before) if condition == "used" else migrate_at(before))
            return lambda: KeptStore(url, clock, tell, kept)


# All on one event loop: what a store has of a server is left to the store of the next test.
@pytest_asyncio.fixture(loop_scope="session")
async def another(make_store: Callable[[], Store]) -> AsyncIterator[Another]:
    """Return another opened store on the same data."""
    async with AsyncExitStack() as stack:

        async def open_store() -> Store:
            store = make_store()
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_store


@pytest_asyncio.fixture(loop_scope="session")
async def store(another: Another) -> Store:
    return await another()


@pytest_asyncio.fixture(loop_scope="session")
async def hand(store: Store, clock: Clock) -> Hand:
    await store.enroll(owner("hand"))
    hand = Hand(store, clock)
    await hand.look_around()
    return hand
