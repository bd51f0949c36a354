"""What is seen and done is the same on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from poolhand.stores.memory import MemoryStore
from poolhand.stores.sqlite import SqliteStore
from tests.unit.operate.world import Clock, World, made


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    clock = Clock()
    memory = request.param == "memory"
    store = MemoryStore(clock) if memory else SqliteStore(tmp_path / "agents.db", clock)
    async with made(store, clock) as one:
        yield one
