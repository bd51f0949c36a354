"""Closures in a store: they run only in their own process, and are lost with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from poolhand import App, Pool, wait
from poolhand.contract import Lease, Owner, PoolRow
from poolhand.durable.leases.reaper import CLOSURE_HOLDERS, MOST_MISSED, ClosureHomes
from poolhand.durable.local_pool.counts import (
    DOUBT,
    LOOKS_UNHINTED,
    LOT,
    ExpectedEnd,
    ExpectedJobs,
)
from poolhand.durable.local_pool.durable_pool import DurablePool
from poolhand.errors import JobLost, Unavailable
from poolhand.observe.events import JobEnded, JobRetried, JobSetAside
from poolhand.rules.audit import STREAM
from poolhand.rules.explain import Standing, explain, home_cause
from poolhand.runtime import Identity, Runtime, process_started
from poolhand.stores.sqlite.store import MemoryStore
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import (
    Heard,
    Machine,
    SharedStore,
    StoreApp,
    seeded,
    until,
    until_later,
)

OTHER = ("elsewhere", "boot", 7, "1")
POOL = """
import asyncio, sys
from poolhand import Pool

async def main():
    options = dict(scope="pipeline", scope_id="night", dir=sys.argv[1], max_concurrent=4)
    async with Pool("kept", **options) as pool:
        if sys.argv[2] == "paused":
            pool.pause()
        ticket = await pool.submit(lambda: 1)
        print(ticket.id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def make(tmp_path: Path, **options: Any) -> Pool:
    return Pool("kept", **{"scope": "pipeline", "scope_id": "night", "dir": tmp_path, **options})


def kept_in(store: SharedStore, tmp_path: Path, **options: Any) -> DurablePool:
    """Return a durable pool over a store of the test."""

    class Kept(DurablePool):
        make_store = staticmethod(lambda url, runtime: store)

    return Kept("kept", **{"scope": "pipeline", "scope_id": "night", "dir": tmp_path, **options})


class Unseen(SharedStore):
    """A store that can hide the state of its pools."""

    unseen = False

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        if self.unseen:
            raise Unavailable("the store is away")
        return await super().pools(names)


@contextmanager
def another_process(tmp_path: Path, paused: bool) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The same pool in another process, and the id of a closure that it has submitted."""
    with subprocess.Popen(
        [sys.executable, "-c", POOL, str(tmp_path), "paused" * paused],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def audited(store: SharedStore) -> list[int]:
    return [line.number for line in await store.read(STREAM)]


def lease(identity: Identity, *, expired: bool = False) -> Lease:
    return Lease(Owner("owner-1", *identity), 1, 0, expired)


async def test_a_worker_of_the_same_process_leaves_closures_to_the_pool_that_holds_them(
    shared_url: str,
) -> None:
    heard = Heard()
    app = App(shared_url, events=heard.events)
    async with (
        app,
        app.worker(slots=5),
        Pool(
            "kept", scope="pipeline", scope_id="night", store=shared_url, max_concurrent=2
        ) as pool,
    ):
        assert [await pool.run(lambda: pool) for _ in range(20)] == [pool] * 20
        assert pool.dead() == []
    # The other worker only handed the closures on, so it emits no event about them.
    assert heard.of(JobRetried) == heard.of(JobEnded) == []


@pytest.mark.slow
async def test_a_worker_of_another_process_leaves_closures_to_their_process(
    tmp_path: Path,
) -> None:
    with another_process(tmp_path, paused=False):
        async with make(tmp_path, max_concurrent=4) as pool:
            tickets = [await pool.submit(lambda: 1) for _ in range(20)]
            jobs = await wait(tickets)
    assert [(job.status, job.attempts) for job in jobs] == [(Status.COMPLETED, 1)] * 20


@pytest.mark.slow
async def test_a_closure_is_lost_when_its_process_is_killed(tmp_path: Path) -> None:
    with another_process(tmp_path, paused=True) as (process, id):
        process.kill()
        process.wait()
    async with make(tmp_path) as pool:
        pool.resume()
        await until(lambda: pool.dead() != [])
        (job,) = pool.dead()
    assert job.id == id
    assert job.error is not None
    assert "which is gone" in job.error.message


@seeded
async def test_a_closure_is_lost_with_its_host_and_not_before(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = Unseen(runtime)
    app = StoreApp(store, runtime)
    home = Machine(runtime, "home")
    async with app, app.worker(slots=5, pools=["kept"]):
        pool = await kept_in(store, tmp_path, runtime=home, max_concurrent=1).start()
        assert [await pool.run(lambda: 1) for _ in range(5)] == [1] * 5

        began = asyncio.Event()

        async def hold() -> None:
            began.set()
            await asyncio.sleep(100)

        held = await pool.submit(hold)
        await began.wait()
        # Its own process has no free slot and cannot see the resize; a worker elsewhere claims it
        # and sets it aside, and no attempt is charged.
        store.unseen = True
        await store.set_pool("kept", "user", slots=5)
        waiting = await pool.submit(lambda: 2)
        await asyncio.sleep(10)
        job = await waiting.refresh()
        assert (job.status, job.attempts) == (Status.SCHEDULED, 0)
        assert job.waits_for == home_cause(home.identity())
        explained = explain(Standing(job, None))
        assert explained.reason == "at_home"
        assert "its process, 1 on home" in str(explained)
        # No worker claims it in vain again.
        lines = await audited(store)
        await asyncio.sleep(60)
        assert await audited(store) == lines
        store.unseen = False
        await pool.drain(0)
        for left in (held, waiting):
            lost = await app.get(left.id)
            assert lost is not None
            with pytest.raises(JobLost, match="which is gone"):
                await lost


@seeded
async def test_a_drain_finishes_closures_that_other_workers_have_parked(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = Unseen(runtime)
    app = StoreApp(store, runtime)
    home = Machine(runtime, "home")
    heard = Heard()
    async with app, app.worker(slots=5, pools=["kept"]):
        pool = await kept_in(
            store, tmp_path, runtime=home, max_concurrent=1, events=heard.events
        ).start()
        release = asyncio.Event()
        held = await pool.submit(release.wait)
        await until_later(lambda: held.status is Status.RUNNING, runtime)
        store.unseen = True
        await store.set_pool("kept", "user", slots=5)
        waiting = await pool.submit(lambda: 2)
        await asyncio.sleep(10)
        assert (await waiting.refresh()).waits_for == home_cause(home.identity())
        store.unseen = False
        release.set()
        report = await pool.drain(60)
    assert await waiting == 2
    assert (report.completed, report.failed) == (2, 0)
    # A closure that runs in its own process needs no warning.
    assert heard.of(JobSetAside) == []


def test_a_closure_of_this_process_is_held_or_lost() -> None:
    class Holder:
        def holds(self, id: str) -> bool:
            return id == "job-1"

    here = Runtime().identity()
    homes, holder = ClosureHomes(here), Holder()
    CLOSURE_HOLDERS.append(holder.holds)
    try:
        assert homes.hold(here, "job-1")
        assert not homes.hold(here, "job-2")
    finally:
        CLOSURE_HOLDERS.remove(holder.holds)
    assert not homes.hold(here, "job-1")


def test_a_remote_closure_home_is_gone_when_a_later_check_does_not_find_it() -> None:
    homes = ClosureHomes(Runtime().identity())
    homes.look([])
    for _ in range(2):
        # A look at the owners may have begun before this owner enrolled.
        assert homes.hold(OTHER, "job-1")
        assert homes.hold(OTHER, "job-1")
        homes.look([])
        assert homes.hold(OTHER, "job-1")
        homes.look([lease(OTHER)])
        assert homes.hold(OTHER, "job-1")
        homes.look([lease(OTHER, expired=True)])
    assert homes.hold(OTHER, "job-1")
    homes.look([])
    assert homes.hold(OTHER, "job-1")
    homes.look([])
    assert not homes.hold(OTHER, "job-1")
    homes.look([lease(OTHER)])
    assert homes.hold(OTHER, "job-1")


def test_the_number_of_remembered_missing_homes_is_bounded() -> None:
    homes = ClosureHomes(Runtime().identity())
    assert homes.hold(OTHER, "job-1")
    for number in range(MOST_MISSED):
        homes.hold(("elsewhere", "boot", number + 100, "1"), "job-2")
    homes.look([])
    homes.look([])
    # The first observation was forgotten, so it starts again.
    assert homes.hold(OTHER, "job-1")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_closure_home_on_this_host_is_gone_when_its_process_is() -> None:
    host, boot, _, _ = here = Runtime().identity()
    homes = ClosureHomes(here)
    parent = os.getppid()
    started = process_started(parent)
    assert started
    assert not homes.hold((host, boot, parent, "another"), "job-1")
    assert not homes.hold((host, "another boot", parent, started), "job-1")
    alive = (host, boot, parent, started)
    for _ in range(4):
        # The process lives but does not use this store: it may open it again.
        assert homes.hold(alive, "job-1")
        homes.look([])


async def test_a_submit_that_is_cancelled_leaves_no_dead_letter(tmp_path: Path) -> None:
    async with make(tmp_path) as pool:
        ran: list[int] = []
        for number in range(10):
            task = asyncio.ensure_future(pool.submit(ran.append, number))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await pool.run(ran.append, -1)
        report = await pool.drain()
    assert pool.dead() == []
    assert report.failed == 0
    assert -1 in ran


@seeded
async def test_a_job_of_a_cancelled_submitter_is_cancelled_unless_it_has_a_key(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = SharedStore(runtime)
    store.lag = lambda: 0.2
    async with kept_in(store, tmp_path, runtime=runtime) as pool:
        pool.pause()
        keyed = pool.with_options(idempotency_key="k")
        for view in (pool, keyed):
            task = asyncio.ensure_future(view.submit(lambda: 5))
            # The job is stored, but the submit has not returned yet.
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.wait([task])
        await until_later(lambda: pool.snapshot().cancelled == 1, runtime)
        pool.resume()
        assert await keyed.run(lambda: 6) == 5
        report = await pool.drain()
    assert (report.cancelled, report.completed, report.failed) == (1, 1, 0)


@seeded
async def test_a_closure_is_kept_while_its_submit_may_have_been_accepted(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = SharedStore(runtime)
    async with kept_in(store, tmp_path, runtime=runtime) as pool:
        store.down = True
        with pytest.raises(Unavailable):
            await pool.submit(lambda: 1)
        assert len(pool._executor.closures) == 1
        store.down = False
        await asyncio.sleep(2 * DOUBT)
        assert pool._executor.closures == {}


@seeded
async def test_jobs_that_end_while_waiting_are_counted_reported_and_released(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    heard = Heard()
    store = SharedStore(runtime)
    async with kept_in(store, tmp_path, runtime=runtime, events=heard.events) as pool:
        later = pool.with_options(run_at=runtime.wall() + timedelta(seconds=100))
        for _ in range(3):
            await (await later.submit(lambda: 1)).cancel()
        expiring = [await later.with_options(expires=1.0).submit(lambda: 1) for _ in range(2)]
        assert await pool.run(lambda: 1) == 1
        await asyncio.sleep(10)
        seen = pool.snapshot()
        assert (seen.cancelled, seen.expired, seen.completed) == (3, 2, 1)
        assert pool._executor.closures == {}
        last = await later.submit(lambda: 1)
        await last.cancel()
        report = await pool.drain()
    assert (report.submitted, report.cancelled, report.expired) == (7, 4, 2)
    ended = [event.job.id for event in heard.of(JobEnded)]
    assert len(ended) == len(set(ended)) == 7
    assert {one.id for one in [*expiring, last]} < set(ended)


@seeded
async def test_expected_jobs_are_checked_in_batches_when_a_job_has_ended(
    runtime: SeededRuntime,
) -> None:
    store = MemoryStore(runtime)
    await store.open()
    expected = ExpectedJobs(runtime.monotonic)
    ids = [f"job-{number}" for number in range(LOT + 1)]
    for id in ids:
        expected.add(id)
        expected.confirm(id)
    assert await expected.look(store) == []
    expected.hint("ready")
    assert await expected.look(store) == []
    expected.hint("over")
    found = [await expected.look(store) for _ in range(2)]
    assert [len(one) for one in found] == [LOT, 1]
    assert found[1] == [ExpectedEnd(ids[-1], None)]
    assert [await expected.look(store) for _ in range(LOOKS_UNHINTED - 1)][-1] == []
    assert len(await expected.look(store)) == LOT
    assert len(await expected.look_at_all(store)) == LOT + 1
    assert expected.discard(ids[0])
    assert not expected.discard(ids[0])
    await store.close()
