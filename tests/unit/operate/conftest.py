"""Views and actions are the same on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from poolhand.contract import Store
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.sqlite.store import MemoryStore, SqliteStore
from tests.conditions import used_file
from tests.unit.durable.conftest import MEMORY, USED
from tests.unit.operate.world import Clock, World, made


@pytest.fixture(params=[MEMORY, "sqlite", "postgres", USED])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    clock = Clock()
    store: Store
    match request.param:
        case "memory":
            store = MemoryStore(clock)
        case "sqlite" | "sqlite-used":
            if request.param == "sqlite-used":
                await asyncio.to_thread(used_file, tmp_path / "agents.db", clock)
            store = SqliteStore(tmp_path / "agents.db", clock)
        case _:
            url = request.getfixturevalue("store_schema")
            store = PostgresStore(url, clock, lambda: (clock.seconds, clock.wall()))
    async with made(store, clock) as one:
        yield one
