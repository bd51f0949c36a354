"""A pool in a file: the same pool, and it outlives its process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from poolhand import (
    App,
    Autoscale,
    Draining,
    JobLost,
    Pool,
    PoolFull,
    Status,
    UsageError,
    bounded,
    fencing_token,
    get_pool,
    list_pools,
    wait,
)
from poolhand.testing import simulate_restart

app = App("memory://")


@app.task
async def double(number: int) -> int:
    return 2 * number


def make(tmp_path: Path, name: str = "kept", **options: Any) -> Pool:
    options = {"scope": "pipeline", "scope_id": "night", "dir": tmp_path, **options}
    return Pool(name, **options)


@pytest.fixture
async def gate() -> AsyncIterator[asyncio.Event]:
    event = asyncio.Event()
    yield event
    event.set()


async def test_it_runs_closures_and_tasks_like_any_pool(tmp_path: Path) -> None:
    async with make(tmp_path, max_concurrent=3) as pool:
        assert isinstance(pool, Pool)
        assert await pool.run(lambda: "closure") == "closure"
        assert await pool.run(double, 21) == 42
        assert await pool.map(double, range(5)) == [0, 2, 4, 6, 8]
        assert get_pool("kept") is pool
    assert list_pools() == []
    assert (tmp_path / "night__kept.db").exists()


async def test_a_value_that_no_file_could_hold_comes_back_from_a_closure(tmp_path: Path) -> None:
    thing = object()
    async with make(tmp_path) as pool:
        assert await pool.run(lambda: thing) is thing


async def test_a_job_raises_its_own_error_to_its_callers(tmp_path: Path) -> None:
    async with make(tmp_path) as pool:
        ticket = await pool.submit(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            await ticket
        (dead,) = pool.dead()
        assert (dead.id, dead.status) == (ticket.id, Status.FAILED)


async def test_a_dead_job_can_run_again_once(tmp_path: Path) -> None:
    ways = iter([KeyError("first"), None])

    def once_bad() -> str:
        way = next(ways)
        if way is not None:
            raise way
        return "well"

    async with make(tmp_path) as pool:
        ticket = await pool.submit(once_bad)
        await wait(ticket)
        again = await pool.rerun(ticket.snapshot())
        assert await again == "well"
        assert pool.dead() == []
        with pytest.raises(UsageError, match="no dead job"):
            await pool.rerun(ticket.id)


async def test_what_waits_outlives_the_pool_and_goes_on(tmp_path: Path) -> None:
    async with make(tmp_path) as pool:
        ticket = await pool.with_options(delay=3600).submit(double, 4)
        assert ticket.status is Status.SCHEDULED
    async with make(tmp_path) as pool:
        assert pool.snapshot().scheduled == 1
        assert pool.id == pool.snapshot().id


async def test_a_task_goes_on_after_a_crash_and_a_closure_fails_and_says_so(
    tmp_path: Path, gate: asyncio.Event
) -> None:
    pool = await make(tmp_path, max_concurrent=1).start()
    began = asyncio.Event()

    async def hold() -> None:
        began.set()
        await gate.wait()

    held = await pool.submit(hold)
    await began.wait()
    task = await pool.submit(double, 5)
    closure = await pool.submit(lambda: 1)
    simulate_restart()
    assert get_pool("kept") is None
    async with make(tmp_path, max_concurrent=1) as again:
        joined = await again.with_options(idempotency_key="x").run(double, 1)
        assert joined == 2
        ids = [held.id, closure.id]
        letters = {job.id: job for job in again.dead()}
        assert sorted(letters) == sorted(ids)
        for id in ids:
            error = letters[id].error
            assert error is not None
            assert error.type == "poolhand.errors.JobLost"
            assert "no task is" in error.message
        assert again.snapshot().completed == 2
    assert task.id not in ids


async def test_a_lost_closure_raises_job_lost_to_whoever_asks(tmp_path: Path) -> None:
    pool = await make(tmp_path, max_concurrent=1).start()
    pool.pause()
    ticket = await pool.with_options(idempotency_key="k").submit(lambda: 1)
    simulate_restart()
    async with make(tmp_path, max_concurrent=1) as again:
        again.resume()
        same = await again.with_options(idempotency_key="k").submit(lambda: 2)
        assert same.id == ticket.id
        with pytest.raises(JobLost, match="that is gone"):
            await same


async def test_keys_sessions_and_bounds_hold(tmp_path: Path, gate: asyncio.Event) -> None:
    policy = bounded(1, on_full="fail_submitter")
    async with make(tmp_path, max_concurrent=1, backpressure=policy) as pool:
        began = asyncio.Event()

        async def hold() -> int:
            began.set()
            await gate.wait()
            return 1

        running = await pool.submit(hold)
        await began.wait()
        keyed = pool.with_options(idempotency_key="one")
        waiting = await keyed.submit(double, 1)
        assert (await keyed.submit(double, 1)).id == waiting.id
        with pytest.raises(PoolFull):
            await pool.submit(double, 2)
        gate.set()
        assert [await running, await waiting] == [1, 2]


async def test_what_a_store_cannot_do_at_once_is_refused(tmp_path: Path) -> None:
    async with make(tmp_path) as pool:
        with pytest.raises(UsageError, match=r"await pool\.submit"):
            pool.submit_nowait(double, 1)
        with pytest.raises(UsageError, match="does not scale itself"):
            pool.set_autoscale(Autoscale())


async def test_a_drained_pool_takes_nothing_new(tmp_path: Path) -> None:
    pool = await make(tmp_path).start()
    await pool.run(double, 1)
    report = await pool.drain()
    assert (report.submitted, report.completed) == (1, 1)
    with pytest.raises(Draining):
        await pool.submit(double, 1)
    with pytest.raises(UsageError, match="make a new one"):
        await pool.start()


async def test_a_drain_gives_back_what_does_not_end_in_time(
    tmp_path: Path, gate: asyncio.Event
) -> None:
    began = asyncio.Event()

    @app.task(name="slow")
    async def slow() -> str:
        began.set()
        await gate.wait()
        return "done"

    pool = await make(tmp_path).start()
    ticket = await pool.submit(slow)
    await began.wait()
    report = await pool.drain(0)
    assert report.completed == 0
    gate.set()
    async with make(tmp_path) as again:
        job = await wait(await again.with_options(idempotency_key="after").submit(double, 1))
        assert job.status is Status.COMPLETED
        assert again.snapshot().completed == 2
    assert ticket.id


async def test_jobs_see_their_token_and_the_context_of_their_submitter(tmp_path: Path) -> None:
    from contextvars import ContextVar

    who: ContextVar[str] = ContextVar("who", default="nobody")
    async with make(tmp_path) as pool:
        who.set("me")
        first = await pool.run(lambda: (who.get(), fencing_token()))
        second = await pool.run(lambda: (who.get(), fencing_token()))
    assert [first[0], second[0]] == ["me", "me"]
    assert first[1] is not None
    assert second[1] is not None
    assert first[1] < second[1]


async def test_a_name_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    async with make(tmp_path / "in", name="../../out", scope_id="a/b") as pool:
        assert await pool.run(double, 1) == 2
    assert os.listdir(tmp_path) == ["in"]


async def test_resize_pause_and_resume(tmp_path: Path) -> None:
    async with make(tmp_path, max_concurrent=1) as pool:
        await pool.resize(2)
        barrier = asyncio.Barrier(2)
        assert sorted(await pool.map(lambda n: _meet(barrier, n), range(2))) == [0, 1]
        pool.pause()
        ticket = await pool.submit(double, 1)
        assert pool.snapshot().paused
        pool.resume()
        assert await ticket == 2


async def _meet(barrier: asyncio.Barrier, number: int) -> int:
    await barrier.wait()
    return number


async def test_every_job_is_counted_once_however_soon_it_is_over(tmp_path: Path) -> None:
    policy = bounded(1, on_full="drop_newest")
    async with make(tmp_path, max_concurrent=5, backpressure=policy) as pool:
        tickets = [await pool.submit(double, number) for number in range(40)]
        jobs = await wait(tickets)
        kept = sum(job.status is Status.COMPLETED for job in jobs)
        report = await pool.drain()
    assert (report.submitted, report.completed) == (40, kept)
    assert report.rejected == 40 - kept


async def test_a_drain_leaves_its_audit_record(tmp_path: Path) -> None:
    async with make(tmp_path) as pool:
        await pool.run(double, 1)
    async with App(f"sqlite:///{tmp_path}/night__kept.db") as reader:
        lines = await reader.operator().audit(0, kind="pool_drain")
    assert [line.pool for line in lines] == ["kept"]


async def test_what_a_pool_refuses_to_run_again_stays_dead(
    tmp_path: Path, gate: asyncio.Event
) -> None:
    policy = bounded(1, on_full="fail_submitter")
    async with make(tmp_path, max_concurrent=1, backpressure=policy) as pool:
        dead = await pool.submit(int, "no number")
        await wait(dead)
        began = asyncio.Event()

        async def hold() -> None:
            began.set()
            await gate.wait()

        await pool.submit(hold)
        await began.wait()
        await pool.submit(double, 1)
        with pytest.raises(PoolFull):
            await pool.rerun(dead.id)
        assert [job.id for job in pool.dead()] == [dead.id]
        gate.set()
