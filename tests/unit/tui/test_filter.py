"""Filters: which jobs are shown."""

from __future__ import annotations

import pytest

from poolhand.tui import model
from poolhand.tui.model import STATES, JobFilter, jobs_of
from tests.unit.operate.world import World, made


async def shown(world: World, which: JobFilter, limit: int = 100) -> list[str]:
    return [job.id for job in await jobs_of(world.operator, which, limit)]


async def test_jobs_are_chosen_by_state_and_pool_newest_first() -> None:
    async with made() as world:
        running = await world.add()
        await world.claim(1)
        waiting, dead = await world.add(), await world.dead(pool="research")
        assert await shown(world, JobFilter()) == [dead, waiting, running]
        assert await shown(world, JobFilter(), limit=1) == [dead]
        expected = {"waiting": [waiting], "running": [running], "ended": [dead], "dead": [dead]}
        for state, ids in expected.items():
            assert await shown(world, JobFilter(state=state)) == ids
        assert await shown(world, JobFilter(pool="chat")) == [waiting, running]
        assert await shown(world, JobFilter(state="dead", pool="chat")) == []


async def test_a_search_finds_a_part_of_an_id_or_name() -> None:
    async with made() as world:
        fetch, think = await world.add("agents.Fetch"), await world.add("agents.think")
        assert await shown(world, JobFilter(search="fetch")) == [fetch]
        assert await shown(world, JobFilter(search="AGENTS")) == [think, fetch]
        assert await shown(world, JobFilter(search=think[-4:])) == [think]
        assert await shown(world, JobFilter(search="nothing")) == []


async def test_a_search_finds_an_old_job_by_its_whole_id_or_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "SEARCHED", 2)
    async with made() as world:
        old = await world.add("agents.fetch")
        for _ in range(3):
            await world.add("think")
        assert await shown(world, JobFilter(search="fetch")) == []
        assert await shown(world, JobFilter(search="agents.fetch")) == [old]
        assert await shown(world, JobFilter(search=old)) == [old]


def test_states_and_pools_are_cycled_through() -> None:
    now, seen = JobFilter(), []
    for _ in STATES:
        now = now.next_state()
        seen.append(now.state)
    assert seen == [*list(STATES)[1:], "all"]
    pools = [JobFilter(pool=name).next_pool(["a", "b"]).pool for name in (None, "a", "b", "gone")]
    assert pools == ["a", "b", None, None]


def test_a_filter_is_described_without_control_sequences() -> None:
    words = JobFilter("dead", "\x1b[0m", "\x07").words
    assert words.isprintable()
    assert words.startswith("dead · pool ")
