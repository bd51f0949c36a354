"""The line that a live view prints when it has closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from poolhand.cli.commands.top import UNKNOWN, ViewSummary, after_farm
from poolhand.contract import Put
from poolhand.farm.records import FARMS
from poolhand.stores.sqlite.store import SqliteStore
from tests.unit.operate.test_farms import FARM, a_farm, write_down
from tests.unit.operate.world import START, Clock, World, made


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = Clock()
    async with made(SqliteStore(tmp_path / "agents.db", clock), clock) as one:
        yield one


async def test_a_farm_reports_its_uptime_its_finished_jobs_and_the_remaining_ones(
    world: World,
) -> None:
    ended = START + timedelta(minutes=12)
    farm = a_farm(FARM, completed=1204, failed=3, started_at=START, written_at=ended)
    assert await after_farm(world.operator, farm) == (
        f"farm {FARM} ran 12 min 00 s: 1,204 jobs completed, 3 attempts failed; no jobs left"
    )
    await world.add("fetch", "research")
    await world.add("fetch", "research", delay=60.0)
    await world.add("other", "chat")
    told = await after_farm(world.operator, farm, ["research"])
    assert told.endswith("; 1 still queued, 1 scheduled")
    assert (await after_farm(world.operator, farm)).endswith("; 2 still queued, 1 scheduled")


async def test_an_unavailable_store_only_shortens_the_closing_line(world: World) -> None:
    await world.store.close()
    assert (await after_farm(world.operator, a_farm(FARM))).endswith(f"; {UNKNOWN}")
    watched = ViewSummary(world.operator, 0.0)
    await watched.begin()
    assert await watched.end(5.0) == f"watched 5.0 s: no farm was running; {UNKNOWN}"
    await world.store.open()


async def test_jobs_finished_before_the_view_started_are_not_counted(world: World) -> None:
    other = f"{FARM[:-1]}0"
    await write_down(world.store, a_farm(FARM, completed=40, failed=1))
    await write_down(world.store, a_farm(other, completed=7))
    watched = ViewSummary(world.operator, 100.0)
    await watched.begin()
    await write_down(world.store, a_farm(FARM, completed=41, failed=3))
    await world.store.put([Put(f"{FARMS}{other}", None)])
    assert await watched.end(160.0) == (
        "watched 1 min 00 s: 1 job completed, 2 attempts failed in 1 farm, 1 farm ended; "
        "no jobs left"
    )
