"""Views of a durable pool and its tickets: the state of the store at the moment they name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from poolhand import App, Pool, UsageError, wait
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Gate, SharedStore, StoreApp, seeded, until, until_later
from tests.unit.durable.test_durable_pool import Place, in_file, kept_in, make
from tests.unit.durable.test_durable_pool import place as place
from tests.unit.durable.test_durable_pool_shared import Processes

app = App("memory://")


@app.task(name="sight.double")
async def double(number: int) -> int:
    return 2 * number


@app.task(name="sight.fail")
async def fail() -> None:
    raise KeyError("no")


@pytest.fixture
def blocked() -> Iterator[Callable[[], Any]]:
    """A job that blocks its thread until the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


async def test_submits_at_once_are_as_many_jobs(place: Place) -> None:
    gate = Gate()
    async with make(place, max_concurrent=2) as pool:
        tickets = await asyncio.gather(*(pool.submit(gate.pass_through) for _ in range(20)))
        await until(lambda: gate.entered == 2)
        before = datetime.now(UTC)
        seen = await pool.refresh()
        assert (seen.total, seen.active, seen.queued) == (20, 2, 18)
        assert seen.as_of is not None
        assert before <= seen.as_of <= datetime.now(UTC)
        stats = pool.stats()
        assert (stats.submitted, stats.in_flight, stats.queue_depth) == (20, 2, 18)
        assert pool.size() == 20
        assert pool.health().queue_size == 18
        gate.opened.set()
        await wait(tickets)
        seen = await pool.refresh()
        assert (seen.total, seen.completed) == (20, 20)


async def test_a_snapshot_without_a_refresh_reports_its_age(place: Place) -> None:
    async with make(place, max_concurrent=3) as pool:
        empty = await pool.refresh()
        tickets = [await pool.submit(double, number) for number in range(10)]
        seen, stats, health = pool.snapshot(), pool.stats(), pool.health()
        for shown in (seen, stats, health):
            assert empty.as_of is not None
            assert shown.as_of is not None
            assert shown.as_of >= empty.as_of
        states = (seen.queued, seen.blocked, seen.scheduled, seen.active, seen.completed)
        assert seen.total == sum(states)
        assert seen.total <= 10
        await wait(tickets)
        await until(lambda: pool.snapshot().completed == 10)
    assert pool.snapshot().total == 10
    assert (await pool.refresh()).completed == 10


@seeded
async def test_jobs_of_other_processes_are_counted_in_any_scope(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    pipeline = {"scope": "pipeline", "scope_id": "night", "store": "sqlite:///x.db"}
    async with processes.pool(**pipeline) as one, processes.pool(**pipeline) as two:
        for number in range(3):
            await two.run(double, number)
        await wait(await two.submit(fail))
        for pool in (one, two):
            seen = await pool.refresh()
            assert (seen.total, seen.completed, seen.failed) == (4, 3, 1)
            assert pool.stats().submitted == 4
        await until_later(lambda: one.health().total_completed == 3, runtime)


@seeded
async def test_jobs_that_run_in_another_process_are_active(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    gate = Gate()
    async with processes.pool(max_concurrent=2) as one, processes.pool(max_concurrent=2) as two:
        tickets = [await two.submit(gate.pass_through) for _ in range(3)]
        await until_later(lambda: gate.entered == 2, runtime)
        seen = await one.refresh()
        # The third is queued, or set aside for its own process by the other one.
        assert (seen.active, seen.queued + seen.scheduled) == (2, 1)
        assert (seen.total, seen.jobs) == (3, ())
        assert one.health().utilization == 0.0
        assert two.health().utilization == 1.0
        gate.opened.set()
        await wait(tickets)


@seeded
async def test_a_pause_is_visible_at_once_and_not_undone_by_an_earlier_read(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = SharedStore(runtime)

    def is_paused() -> bool:
        return store.query("SELECT paused FROM poolhand_pools WHERE name = 'kept'") == [(1,)]

    async with kept_in(store, tmp_path, runtime=runtime) as pool:
        store.lag = lambda: runtime.random.uniform(0, 0.01)
        for _ in range(20):
            looking = asyncio.ensure_future(pool.refresh())
            await asyncio.sleep(runtime.random.uniform(0, 0.01))
            pool.pause()
            assert pool.snapshot().paused
            await looking
            assert pool.snapshot().paused
            await until_later(is_paused, runtime)
            pool.resume()
            await until_later(lambda: not is_paused(), runtime)
        store.lag = None


async def test_the_workers_of_this_process_are_shown(place: Place) -> None:
    gate = Gate()
    async with make(place, max_concurrent=3) as pool:
        ticket = await pool.submit(gate.pass_through)
        await until(lambda: gate.entered == 1)
        health = pool.health()
        assert (health.pool_size, round(health.utilization, 2)) == (3, 0.33)
        states = sorted(worker.state for worker in health.workers.values())
        assert states == ["busy", "idle", "idle"]
        assert [one.job for one in health.workers.values() if one.job] == [ticket.id]
        assert pool.snapshot().workers.keys() == health.workers.keys()
        await pool.resize(1)
        assert [worker.state for worker in pool.health().workers.values()] == ["busy"]
        gate.opened.set()
        await ticket
    assert pool.health().pool_size == 0
    assert {worker.state for worker in pool.health().workers.values()} == {"stopped"}


@pytest.mark.slow
async def test_a_worker_is_stale_after_the_configured_time(
    tmp_path: Path, blocked: Callable[[], Any]
) -> None:
    async with (
        make(in_file(tmp_path), "soon", stale_after=0.05, drain_timeout=0) as soon,
        make(in_file(tmp_path), "late", stale_after=3600, drain_timeout=0) as late,
    ):
        for pool in (soon, late):
            await pool.with_options(run_in="thread").submit(blocked)
        await until(lambda: bool(soon.health().stale_workers))
        (stale,) = soon.health().stale_workers
        assert soon.health().workers[stale].job is not None
        assert late.health().stale_workers == ()


async def test_a_ticket_shows_at_once_that_its_job_runs_in_this_process(place: Place) -> None:
    gate = Gate()
    async with make(place, max_concurrent=1) as pool:
        before = datetime.now(UTC)
        first = await pool.submit(gate.pass_through)
        second = await pool.submit(gate.pass_through)
        await until(lambda: gate.entered == 1)
        assert (first.status, second.status) == (Status.RUNNING, Status.QUEUED)
        for ticket in (first, second):
            assert ticket.as_of is not None
            assert ticket.as_of >= before
        gate.opened.set()
        await wait([first, second])
        assert (first.status, first.as_of) == (Status.COMPLETED, None)


@seeded
async def test_a_ticket_of_a_remote_job_reports_the_age_of_its_status(
    runtime: SeededRuntime,
) -> None:
    store, gate = SharedStore(runtime), Gate()
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)
    task = here.task(name="held")(gate.pass_through)
    there.task(name="held")(gate.pass_through)
    async with here, there:
        ticket = await task.submit()
        known = ticket.as_of
        async with there.worker(slots=1):
            await until_later(lambda: gate.entered == 1, runtime)
            await asyncio.sleep(100)
            assert (ticket.status, ticket.as_of) == (Status.QUEUED, known)
            now = runtime.wall()
            assert (await ticket.refresh()).status is Status.RUNNING
            assert ticket.as_of is not None
            assert ticket.as_of >= now
            gate.opened.set()
            await ticket


@seeded
async def test_a_job_that_waits_for_its_retry_is_not_called_running(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    here = StoreApp(store, runtime)
    task = here.task(name="fails")(fail.code.fn)
    async with here, here.worker(slots=1):
        ticket = await task.submit()
        await until_later(lambda: ticket.snapshot().attempts == 1, runtime)
        await until_later(lambda: ticket.status is Status.SCHEDULED, runtime)
        await ticket.cancel()


async def test_a_pool_that_is_not_started_shows_nothing(place: Place) -> None:
    pool = make(place)
    for ask in (pool.snapshot, pool.stats, pool.size):
        with pytest.raises(UsageError, match="is not started"):
            ask()
    with pytest.raises(UsageError, match="is not started"):
        await pool.refresh()
    assert pool.health().pool_size == 0


@seeded
async def test_a_pool_in_memory_shows_its_current_state(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(asyncio.sleep, 1)
        seen = await pool.refresh()
        assert (seen.total, seen.as_of, pool.stats().as_of) == (1, None, None)
        assert (pool.health().as_of, ticket.as_of) == (None, None)
