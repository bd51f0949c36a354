"""A pool in a file whose other process is killed: every job is counted once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from poolhand import App, Pool, Retry
from poolhand.views import PoolSnapshot
from tests.unit.pool.support import until

pytestmark = pytest.mark.slow
app = App("memory://")
began, opened = asyncio.Semaphore(0), asyncio.Event()


@app.task(name="partner.hold")
async def hold() -> None:
    began.release()
    await opened.wait()


def states(seen: PoolSnapshot) -> int:
    return seen.queued + seen.blocked + seen.scheduled + seen.active + seen.completed + seen.failed


async def test_jobs_of_a_killed_process_are_counted_once(tmp_path: Path) -> None:
    partner = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-m", "tests.system.pool_partner", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with partner:
        try:
            assert partner.stdout is not None
            assert await asyncio.to_thread(partner.stdout.readline) == "running\n"
        finally:
            partner.kill()
    totals: set[tuple[int, int]] = set()
    place = {"scope": "pipeline", "scope_id": "night", "dir": tmp_path}
    async with Pool("kept", max_concurrent=4, retry=Retry(attempts=3), **place) as pool:  # type: ignore[arg-type]

        def look() -> PoolSnapshot:
            seen = pool.snapshot()
            totals.add((seen.total, states(seen)))
            return seen

        look()
        for _ in range(4):
            await began.acquire()
            look()
        assert (await pool.refresh()).active == 4
        look()
        opened.set()
        await until(lambda: look().completed == 4)
        assert pool.stats().submitted == 4
    look()
    assert totals == {(4, 4)}
