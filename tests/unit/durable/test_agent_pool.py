"""Agent pools whose jobs are kept in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from poolhand import AgentPool
from poolhand.errors import NoFreeSlot, PoolFull
from poolhand.testing import simulate_restart
from tests.unit.pool.support import until


class Clerk:
    """An agent that answers, refuses, or waits until it is released."""

    gate = asyncio.Event()
    closed = 0

    async def run(self, session_id: str, payload: Any) -> Any:
        if payload == "wait":
            await Clerk.gate.wait()
        if payload == "fail":
            raise LookupError("no such file")
        return f"{session_id}: {payload}"

    async def aclose(self) -> None:
        Clerk.closed += 1


def make(folder: Path, **options: Any) -> AgentPool:
    Clerk.gate, Clerk.closed = asyncio.Event(), 0
    options = {"num_workers": 1, "max_queue_size": 1, **options}
    return AgentPool(
        agent_factory=Clerk, name="clerks", scope="pipeline", scope_id="p", dir=folder, **options
    )


async def over(pool: AgentPool, id: str) -> dict[str, Any]:
    """Return the view of a job when it is over."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(pool.get(id) or {})
        return "result" in found or "error" in found

    async with asyncio.timeout(30):
        await until(look)
    return found


async def test_a_durable_agent_pool_answers_like_one_in_memory(tmp_path: Path) -> None:
    async with make(tmp_path) as pool:
        assert await pool.submit("ann", 1) == {"status": "success", "result": "ann: 1"}
        failed = await pool.submit("ann", "fail", block=False)
        assert failed == {"status": "error", "error": "LookupError: no such file"}
        id = await pool.submit_nowait("bob", 2)
        assert await over(pool, id) == {"job_id": id, "status": "completed", "result": "bob: 2"}
        assert pool.snapshot().durable
        assert pool.health_check()["pool_size"] == 1
    assert Clerk.closed == 3
    assert list(tmp_path.glob("*.db")) != []  # noqa: ASYNC240


@pytest.mark.slow
async def test_a_full_durable_agent_pool_refuses_or_blocks_its_submitters(
    tmp_path: Path,
) -> None:
    async with make(tmp_path) as pool:
        first = await pool.submit_nowait("ann", "wait")
        async with asyncio.timeout(30):
            # Until a worker has claimed it, it takes the place of a waiting job.
            while pool.snapshot().active == 0:  # noqa: ASYNC110
                await asyncio.sleep(0)
        second = await pool.submit_nowait("bob", 1)
        with pytest.raises(PoolFull):
            await pool.submit("eve", 2, block=False)
        with pytest.raises(PoolFull):
            await pool.submit_nowait("eve", 2)
        third = asyncio.create_task(pool.submit("eve", 3))
        assert await pool.cancel(second)
        Clerk.gate.set()
        assert (await over(pool, first))["result"] == "ann: wait"
        assert (await third)["result"] == "eve: 3"
        assert (await over(pool, second))["status"] == "cancelled"


async def test_a_durable_agent_pool_without_a_queue_accepts_what_finds_a_free_slot(
    tmp_path: Path,
) -> None:
    async with make(tmp_path, max_queue_size=0) as pool:
        first = await pool.submit_nowait("ann", "wait")
        with pytest.raises(NoFreeSlot):
            await pool.submit("bob", 1, block=False)
        Clerk.gate.set()
        assert (await over(pool, first))["status"] == "completed"


async def test_a_durable_agent_pool_starts_again_after_a_drain_and_after_a_restart(
    tmp_path: Path,
) -> None:
    pool = make(tmp_path)
    async with pool:
        old = await pool.submit_nowait("ann", 1)
        await over(pool, old)
    async with pool:
        assert await pool.submit("ann", 2) == {"status": "success", "result": "ann: 2"}
        assert (pool.get(old) or {})["result"] == "ann: 1"
    await pool.start()
    lost = await pool.submit_nowait("ann", "wait")
    simulate_restart()
    async with make(tmp_path) as again:
        async with asyncio.timeout(30):
            while not again.pool.dead():  # noqa: ASYNC110 - its end is told by another thread
                await asyncio.sleep(0)
        (dead,) = again.pool.dead()
        assert (dead.id, dead.error and dead.error.type) == (lost, "poolhand.errors.JobLost")
