"""Views and actions are the same on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from poolhand.contract import Store
from poolhand.stores.sqlite.store import MemoryStore, SqliteStore
from tests.conditions import used_file
from tests.schemas import KeptStore
from tests.unit.durable.conftest import MEMORY, USED
from tests.unit.operate.world import Clock, World, made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "each_store" in item.fixturenames:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(params=[MEMORY, "sqlite", "postgres", USED])
def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Clock]:
    """Give a store of each kind, and the clock that it goes by."""
    clock = Clock()
    match request.param:
        case "memory":
            return MemoryStore(clock), clock
        case "sqlite" | "sqlite-used":
            if request.param == "sqlite-used":
                used_file(tmp_path / "agents.db", clock)
            return SqliteStore(tmp_path / "agents.db", clock), clock
        case _:
            url, kept = map(request.getfixturevalue, ("store_schema", "kept"))
            return KeptStore(url, clock, lambda: (clock.seconds, clock.wall()), kept), clock


# All on one event loop: what a store has of a server is left to the store of the next test.
@pytest_asyncio.fixture(loop_scope="session")
async def world(each_store: tuple[Store, Clock]) -> AsyncIterator[World]:
    async with made(*each_store) as one:
        yield one
