"""Pools that many processes share: one pool for all, separate from all other pools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from poolhand import App, Pool, UsageError, bounded, get_pool, wait
from poolhand.contract import PoolRow
from poolhand.durable.local_pool.counts import LOT, ExpectedJobs
from poolhand.durable.local_pool.durable_pool import DurablePool
from poolhand.errors import Conflict, PoolFull
from poolhand.observe.events import JobEnded
from poolhand.stores.sqlite.store import MemoryStore
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.conditions import STRANGER
from tests.unit.durable.support import Gate, Heard, Machine, SharedStore, seeded, until, until_later

app = App("memory://")


@app.task
async def double(number: int) -> int:
    return 2 * number


@app.task(name="no-number")
async def no_number() -> int:
    return int("no number")


def tenant(store: str, id: str = "acme", name: str = "research", **options: Any) -> Pool:
    return Pool(name, scope="tenant", scope_id=id, store=store, **options)


class Processes:
    """Several processes, each on its own machine, that make the same pool on one store."""

    def __init__(self, runtime: SeededRuntime) -> None:
        self.store = SharedStore(runtime)
        self._runtime = runtime
        self._made = 0

    def pool(self, **options: Any) -> DurablePool:
        self._made += 1
        known, store = f"process {self._made}", self.store

        class OfAProcess(DurablePool):
            make_store = staticmethod(lambda url, runtime: store)

            @property
            def known_as(self) -> str:
                return known

        return OfAProcess(
            "research",
            runtime=Machine(self._runtime, known),
            **{"scope": "tenant", "scope_id": "acme", "store": "postgresql://host/db", **options},
        )


@seeded
async def test_all_processes_share_one_cap_and_one_queue(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    inside = most = 0
    ran: list[int] = []

    async def work(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(1)
        inside -= 1
        ran.append(number)
        return number

    task = App("memory://").task(name="work")(work)
    pools = [processes.pool(max_concurrent=2, queue="fifo") for _ in range(3)]
    async with pools[0] as one, pools[1] as two, pools[2]:
        tickets = [await (one, two)[number % 2].submit(task, number) for number in range(20)]
        assert [await ticket for ticket in tickets] == list(range(20))
    assert most == 2
    assert [number // 2 for number in ran] == [number // 2 for number in range(20)]


@seeded
async def test_keys_bounds_and_sessions_are_one_for_all_processes(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    options = {"max_concurrent": 5, "backpressure": bounded(2, on_full="fail_submitter")}
    async with processes.pool(**options) as one, processes.pool(**options) as two:
        one.pause()
        await until_later(lambda: two.snapshot().paused, runtime)
        first = await one.with_options(idempotency_key="k", session="s").submit(double, 1)
        same = await two.with_options(idempotency_key="k", session="s").submit(double, 1)
        assert same.id == first.id
        second = await two.with_options(session="s").submit(double, 2)
        assert second.snapshot().blocked_on == "session"
        with pytest.raises(PoolFull):
            await two.submit(double, 3)
        two.resume()
        assert [await same, await second] == [2, 4]


@seeded
async def test_a_closure_runs_in_the_process_that_submitted_it(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    async with processes.pool(max_concurrent=2) as one, processes.pool(max_concurrent=2) as two:
        for pool in (one, two, one, two):
            assert await pool.run(lambda pool=pool: pool) is pool


@seeded
async def test_a_process_counts_jobs_of_the_others(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    async with processes.pool(max_concurrent=1) as one, processes.pool(max_concurrent=1) as two:
        for number in range(5):
            await two.run(double, number)
        await wait(await two.submit(no_number))
        for pool in (one, two):
            await until_later(lambda pool=pool: pool.snapshot().total == 6, runtime)  # type: ignore[misc]
            seen = pool.snapshot()
            assert (seen.completed, seen.failed) == (5, 1)
    # A drain report covers what the process ran or submitted.
    reports = [await pool.drain() for pool in (one, two)]
    assert [report.submitted for report in reports] == [0, 6]
    assert (reports[1].completed, reports[1].failed) == (5, 1)


@seeded
async def test_a_count_is_right_though_every_signal_is_lost(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    processes.store.publish = lambda topic: None  # type: ignore[method-assign]
    async with processes.pool() as one, processes.pool() as two:
        await two.run(double, 1)
        await until_later(lambda: one.snapshot().completed == 1, runtime)


@seeded
async def test_a_resize_applies_to_all_processes(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    async with processes.pool(max_concurrent=1) as one:
        two = await processes.pool(max_concurrent=1).start()
        await two.resize(3)
        await two.drain()
        await until_later(lambda: one.snapshot().max_concurrent == 3, runtime)
        await until_later(lambda: one.health().pool_size == 3, runtime)
        barrier = asyncio.Barrier(3)
        tickets = [await one.submit(barrier.wait) for _ in range(3)]
        assert sorted([await ticket for ticket in tickets]) == [0, 1, 2]
        # As an operator does it.
        await processes.store.set_pool("tenant/acme/research", "operator", slots=5)
        await until_later(lambda: one.snapshot().max_concurrent == 5, runtime)


@seeded
async def test_a_late_answer_does_not_overwrite_newer_state(runtime: SeededRuntime) -> None:
    class Slow(SharedStore):
        slow = False

        async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
            rows = await super().pools(names)
            if self.slow:
                self.slow = False
                await asyncio.sleep(5)
            return rows

    processes = Processes(runtime)
    processes.store = store = Slow(runtime)
    async with processes.pool(max_concurrent=1) as pool:
        store.slow = True
        await until_later(lambda: not store.slow, runtime)
        await pool.resize(3)
        for _ in range(100):
            assert pool.snapshot().max_concurrent == 3
            await asyncio.sleep(0.1)


@seeded
async def test_a_process_that_leaves_finishes_its_own_and_leaves_theirs_to_the_others(
    runtime: SeededRuntime,
) -> None:
    processes = Processes(runtime)
    gate = Gate()
    held = App("memory://").task(name="held")(gate.pass_through)
    one = await processes.pool(max_concurrent=1).start()
    two = await processes.pool(max_concurrent=1).start()
    running = await one.submit(gate.pass_through)
    await until_later(lambda: gate.entered == 1, runtime)
    theirs = [await one.submit(held) for _ in range(3)]
    later = await two.with_options(delay=1000).submit(double, 1)
    report = await two.drain(100)
    assert (report.submitted, report.seconds < 20) == (1, True)
    assert later.snapshot().status is Status.SCHEDULED

    own = await (two := await processes.pool(max_concurrent=1).start()).submit(lambda: "own")
    drain = asyncio.ensure_future(two.drain(100))
    await asyncio.sleep(10)
    assert not drain.done()
    gate.opened.set()
    assert (await drain).submitted == 1
    assert await own == "own"
    await wait([running, *theirs])
    await one.drain()


@seeded
async def test_a_process_leaves_a_paused_pool_at_once(runtime: SeededRuntime) -> None:
    processes = Processes(runtime)
    gate = Gate()
    async with processes.pool(max_concurrent=2) as one:
        two = await processes.pool(max_concurrent=2).start()
        running = await one.submit(gate.pass_through)
        await until_later(lambda: gate.entered == 1, runtime)
        two.pause()
        await until_later(lambda: one.snapshot().paused, runtime)
        await two.submit(double, 1)
        assert (await two.drain(100)).seconds < 20
        gate.opened.set()
        await running
        one.resume()
        await until_later(lambda: one.snapshot().completed == 2, runtime)


@seeded
async def test_open_jobs_are_looked_up_with_few_queries(runtime: SeededRuntime) -> None:
    asked: list[int] = []

    class Counted(MemoryStore):
        async def get(self, ids: Any, calls: bool = False) -> Any:
            asked.append(len(ids))
            return await super().get(ids, calls)

    store = Counted(runtime)
    await store.open()
    expected = ExpectedJobs(runtime.monotonic)
    for number in range(3 * LOT):
        expected.add(f"job-{number}")
    assert not await expected.are_open(store)
    assert asked == [1, LOT, LOT, LOT - 1]
    assert not await expected.are_open(store)
    assert len(asked) == 4


@seeded
async def test_a_name_that_another_pool_has_in_the_store_is_not_taken_over(
    runtime: SeededRuntime,
) -> None:
    processes = Processes(runtime)
    async with processes.pool(max_concurrent=3) as pool:
        assert await pool.run(double, 1) == 2
    (row,) = await processes.store.pools()
    other = processes.pool(max_concurrent=1)
    other.id = "pool-of-another"
    with pytest.raises(Conflict, match=f"another pool named 'tenant/acme/research'.*{row.spec.id}"):
        await other.start()
    assert (await processes.store.pools())[0].spec == row.spec


@pytest.mark.slow
async def test_pools_of_one_name_are_separate_per_tenant(store_schema: str) -> None:
    policy = bounded(1, on_full="fail_submitter")
    options: dict[str, Any] = {"max_concurrent": 1, "backpressure": policy}
    heard = Heard()
    async with (
        tenant(store_schema, "acme", events=heard.events, **options) as acme,
        tenant(store_schema, "globex", events=heard.events, **options) as globex,
    ):
        gate = Gate()
        held = await acme.submit(gate.pass_through)
        await until(lambda: gate.entered == 1)
        keyed = await acme.with_options(idempotency_key="k", session="s").submit(double, 1)
        with pytest.raises(PoolFull, match="'tenant/acme/research' is full"):
            await acme.submit(double, 2)
        # Cap, bound, key and session of acme do not apply to globex.
        assert await globex.with_options(idempotency_key="k", session="s").run(double, 4) == 8
        dead = await globex.submit(int, "no number")
        await wait(dead)
        assert (len(globex.dead()), acme.dead()) == (1, [])
        with pytest.raises(UsageError, match="not a dead letter of pool 'research'"):
            await acme.rerun(dead.id)
        gate.opened.set()
        await held
        assert await keyed == 2
        globex.pause()
        assert await acme.run(double, 5) == 10
        await until(lambda: (acme.snapshot().total, globex.snapshot().total) == (3, 2))
        globex.resume()
    ended = heard.of(JobEnded)
    assert {(one.pool, one.job.tenant) for one in ended} == {
        ("tenant/acme/research", "acme"),
        ("tenant/globex/research", "globex"),
    }


async def test_a_process_has_a_pool_of_one_name_for_each_of_its_tenants(store_schema: str) -> None:
    async with tenant(store_schema, "acme") as acme:
        assert get_pool("research") is acme
        with pytest.raises(UsageError, match=f"already live .id {acme.id}."):
            tenant(store_schema, "acme")
        async with tenant(store_schema, "globex") as globex, Pool("other"):
            with pytest.raises(UsageError, match="'tenant/acme/research', 'tenant/globex/res"):
                get_pool("research")
            assert get_pool("tenant/globex/research") is globex
            assert get_pool(acme.id) is acme
        async with Pool("research") as plain:
            assert get_pool("research") is plain


async def test_the_jobs_of_a_tenant_pool_belong_to_the_tenant(store_schema: str) -> None:
    async with (
        tenant(store_schema) as pool,
        Pool("all", scope="org", scope_id="o", store=store_schema) as org,
    ):
        named = (pool.with_options(tenant=tenant) for tenant in (None, "acme"))
        for view in (pool, pool.with_options(priority=1), *named):
            assert (await view.submit(double, 1)).snapshot().tenant == "acme"
        with pytest.raises(UsageError, match=r"tenant='globex' is not allowed.*tenant 'acme'"):
            pool.with_options(tenant="globex")
        # A pool of an organisation accepts every tenant.
        assert (await org.submit(double, 1)).snapshot().tenant is None
        view = org.with_options(tenant="globex")
        assert (await view.submit(double, 1)).snapshot().tenant == "globex"


async def test_pools_of_one_name_are_separate_per_pipeline(shared_url: str) -> None:
    def make(id: str, **options: Any) -> Pool:
        return Pool("book", scope="pipeline", scope_id=id, store=shared_url, **options)

    async with make("bees", max_concurrent=7) as pool:
        await pool.run(double, 1)
        await wait(await pool.submit(int, "no number"))
        await pool.with_options(delay=3600).submit(double, 2)
    async with make("ants", max_concurrent=2) as pool:
        seen = pool.snapshot()
        assert (seen.max_concurrent, seen.total, pool.dead()) == (2, 0, [])
    async with make("bees", max_concurrent=7) as pool:
        assert (pool.snapshot().total, len(pool.dead())) == (3, 1)
    async with App(shared_url) as reader:
        views = await reader.operator().pools()
    assert [(one.name, one.slots) for one in views if one.name != STRANGER] == [
        ("pipeline/bees/book", 7),
        ("pipeline/ants/book", 2),
    ]


async def test_the_store_of_a_shared_pool_explains_waiting_jobs(store_schema: str) -> None:
    async with tenant(store_schema) as pool:
        gate = Gate()
        held = await pool.submit(gate.pass_through)
        await until(lambda: gate.entered == 1)
        waiting = await pool.submit(double, 1)
        assert (await waiting.explain()).reason == "pool_cap"
        assert (await held.explain()).reason == "running"
        gate.opened.set()
        assert await waiting == 2
