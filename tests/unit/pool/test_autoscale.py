"""Autoscaling: the size follows the load, and no job is lost."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import Any

import pytest

from poolhand import Pool, Refused, Ticket, UsageError, bounded, fail_fast, list_pools, wait
from poolhand.errors import NoFreeSlot
from poolhand.observe.events import DrainStarted, Event, JobEnded, JobStarted, PoolResized
from poolhand.rules.queue.backpressure import Policy, unbounded
from poolhand.settings import Autoscale
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import SEEDS, Heard, large, occupied, park, seeded, until

WHY = re.compile(r"utilisation \d+\.\d\d|backlog \d+ for \d+ workers?|queue fill \d+\.\d\d")
QUICK = Autoscale(min=2, max=12, interval=0.1, cooldown=0, idle_after=1)


class Ledger(Heard):
    """Follows the size of a pool and its running jobs, by events alone.

    A job may start only while fewer run than the size in force. After a shrink more may still
    run; then no job may start.
    """

    def __init__(self, size: int, low: int, high: int) -> None:
        super().__init__()
        self.size = size
        self.low, self.high = low, high
        self.running: set[str] = set()
        self.slots: set[str] = set()
        self.faults: list[str] = []
        self.events.subscribe(self.follow)

    def follow(self, event: Event) -> None:
        match event:
            case PoolResized(before=before, after=after):
                self.check(before == self.size != after, f"{event} after size {self.size}")
                self.check(self.low <= after <= self.high, f"{event} leaves the bounds")
                self.size = after
            case JobStarted(job=job, slot=slot):
                self.running.add(job.id)
                self.slots.add(slot)
                self.check(len(self.running) <= self.size, f"{len(self.running)} of {self.size}")
            case JobEnded(job=job):
                self.running.discard(job.id)
            case _:
                pass

    def check(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)

    @property
    def resizes(self) -> list[PoolResized]:
        return self.of(PoolResized)

    def turns(self) -> int:
        """Return how often the size changed its direction."""
        grew = [one.after > one.before for one in self.resizes]
        return sum(one is not other for one, other in pairwise(grew))


async def constant_load(
    runtime: SeededRuntime, pool: Pool, need: int, seconds: float
) -> list[Ticket[Any]]:
    """Submit jobs of one second at a rate that keeps `need` of them running."""
    taken: list[Ticket[Any]] = []

    async def submit() -> None:
        try:
            taken.append(await pool.submit(asyncio.sleep, 1))
        except Refused:
            return

    async with asyncio.TaskGroup() as submitters:
        end = runtime.monotonic() + seconds
        while runtime.monotonic() < end:
            submitters.create_task(submit())
            await asyncio.sleep(1 / need)
    return taken


async def at_rest(runtime: SeededRuntime, pool: Pool, size: int) -> None:
    """Advance time until the pool has that size."""
    while pool.snapshot().max_concurrent != size:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(10)


# A step load


@pytest.mark.slow
@pytest.mark.parametrize("policy", [unbounded(), bounded(40), fail_fast()], ids=str)
@seeded
@large
async def test_a_pool_grows_with_a_step_load_and_shrinks_after_it(
    runtime: SeededRuntime, policy: Policy
) -> None:
    ledger = Ledger(2, 2, 50)
    options: Any = {"backpressure": policy, "autoscale": Autoscale(min=2, max=50)}
    async with Pool(runtime=runtime, events=ledger.events, **options) as pool:
        await asyncio.sleep(60)
        assert ledger.resizes == []
        tickets = await constant_load(runtime, pool, need=20, seconds=200)
        assert all(one.after > one.before for one in ledger.resizes)
        assert 20 <= ledger.size <= 50
        assert {job.status for job in await wait(tickets)} == {Status.COMPLETED}
        await at_rest(runtime, pool, 2)
        await asyncio.sleep(200)
        assert ledger.size == 2
    assert ledger.faults == []
    assert ledger.turns() <= 2
    assert [one.why for one in ledger.resizes if not WHY.fullmatch(one.why)] == []


@seeded
@large
async def test_under_a_steady_load_a_pool_only_grows(runtime: SeededRuntime) -> None:
    ledger = Ledger(2, 2, 50)
    async with Pool(runtime=runtime, events=ledger.events, autoscale=Autoscale()) as pool:
        await constant_load(runtime, pool, need=4, seconds=600)
        assert all(one.after > one.before for one in ledger.resizes)
        assert 4 / ledger.size <= 0.8
    assert ledger.faults == []


@seeded
async def test_each_resize_is_emitted_with_its_reason(runtime: SeededRuntime) -> None:
    heard = Heard()
    scale = Autoscale(min=1, max=3, interval=1, cooldown=0)
    async with Pool(runtime=runtime, events=heard.events, autoscale=scale) as pool:
        long = await pool.submit(asyncio.sleep, 2.5)
        await wait(long)
        backlog = [await pool.submit(asyncio.sleep, 2.5) for _ in range(9)]
        await wait(backlog)
        await at_rest(runtime, pool, 1)
        await pool.resize(2)
    reasons = [one.why for one in heard.of(PoolResized)]
    assert reasons[0] == "utilisation 1.00"
    assert reasons[1] == "backlog 7 for 2 workers"
    assert reasons[2:-1] == ["utilisation 0.00"] * 2
    assert reasons[-1] == "asked"


@seeded
async def test_a_full_queue_makes_a_pool_grow(runtime: SeededRuntime) -> None:
    heard = Heard()
    scale = Autoscale(min=1, max=2, up_at=1.0, interval=1)
    async with Pool(
        runtime=runtime, events=heard.events, backpressure=bounded(4), autoscale=scale
    ) as pool:
        tickets = [await pool.submit(asyncio.sleep, 10) for _ in range(4)]
        await asyncio.sleep(2.5)
        await wait(tickets)
    assert heard.of(PoolResized)[0].why == "queue fill 0.75"


@seeded
async def test_submitters_that_wait_for_a_place_make_a_pool_grow(runtime: SeededRuntime) -> None:
    heard = Heard()
    scale = Autoscale(min=1, max=2, up_at=1.0, interval=1)
    async with (
        Pool(
            runtime=runtime, events=heard.events, backpressure=bounded(1), autoscale=scale
        ) as pool,
        occupied(pool),
    ):
        await pool.submit(asyncio.sleep, 1)
        parked = await park(pool, pool, asyncio.sleep, 1)
        await parked
        assert heard.of(PoolResized)[0].why == "queue fill 2.00"


@seeded
async def test_blocked_submitters_that_no_slot_would_help_do_not_make_a_pool_grow(
    runtime: SeededRuntime,
) -> None:
    ledger = Ledger(2, 2, 50)
    scale = Autoscale(min=2, max=50, interval=1, cooldown=0)
    async with Pool(
        runtime=runtime, events=ledger.events, backpressure=bounded(2), autoscale=scale
    ) as pool:
        turns = pool.with_options(session="one")
        tickets = [await turns.submit(asyncio.sleep, 20) for _ in range(3)]
        parked = [await park(pool, turns, asyncio.sleep, 20) for _ in range(5)]
        await asyncio.sleep(15)
        assert ledger.resizes == []
        await pool.drain(0)
        await asyncio.gather(*parked, return_exceptions=True)
        await wait(tickets)


async def test_a_pool_scales_on_a_real_loop() -> None:
    heard = Heard()
    grown, shrunk = asyncio.Event(), asyncio.Event()

    def listen(event: Event) -> None:
        if isinstance(event, PoolResized):
            (grown if event.after > event.before else shrunk).set()

    heard.events.subscribe(listen)
    scale = Autoscale(min=1, max=2, interval=0.01, cooldown=0)
    async with Pool(events=heard.events, autoscale=scale) as pool:
        async with occupied(pool):
            await grown.wait()
        await shrunk.wait()
        assert pool.snapshot().max_concurrent == 1


# Nothing is lost


@pytest.mark.slow
@seeded
async def test_a_thousand_random_scale_downs_cancel_and_lose_no_job(
    runtime: SeededRuntime,
) -> None:
    downs = 1000 // len(SEEDS)
    ledger = Ledger(12, 1, 12)
    tickets: dict[int, Ticket[int]] = {}
    ran: list[int] = []
    draw = runtime.random

    async def later(number: int) -> int:
        ran.append(number)
        await asyncio.sleep(draw.uniform(0, 0.5))
        return number

    def plain(number: int) -> int:
        ran.append(number)
        return number

    async def submit() -> None:
        # Bursts and lulls, so that the scaler has to change direction as well.
        while len(downhill()) < downs:
            for _ in range(draw.randrange(20)):
                job = plain if draw.random() < 0.2 else later
                tickets[len(tickets)] = await pool.submit(job, len(tickets))
            await asyncio.sleep(draw.uniform(0, 1))

    def downhill() -> list[PoolResized]:
        return [one for one in ledger.resizes if one.after < one.before]

    async with Pool(max_concurrent=12, runtime=runtime, events=ledger.events) as pool:
        load = asyncio.create_task(submit())
        while len(downhill()) < downs:
            await asyncio.sleep(draw.uniform(0, 0.3))
            low = draw.randint(1, 6)
            scale = Autoscale(low, draw.randint(low, 12), interval=0.05, cooldown=0, idle_after=1)
            pool.set_autoscale(scale if draw.random() < 0.5 else None)
            if pool._scaler is None:
                size = draw.randint(1, 12)
                if size != ledger.size:
                    await pool.resize(size)
            shown = pool.snapshot()
            assert shown.active <= shown.max_concurrent == len(shown.workers) <= 12
        await load
        jobs = await wait(list(tickets.values()))
        assert {job.status for job in jobs} == {Status.COMPLETED}
        assert [job.result for job in jobs] == list(tickets)
        assert (pool.snapshot().cancelled, pool.snapshot().failed) == (0, 0)
    assert sorted(ran) == list(tickets)
    assert ledger.faults == []
    assert any(one.why != "asked" for one in downhill())
    assert any(one.why == "asked" for one in downhill())


@seeded
async def test_scaling_down_retires_idle_workers_and_leaves_busy_ones_alone(
    runtime: SeededRuntime,
) -> None:
    gate = asyncio.Event()
    scale = Autoscale(min=2, max=10, interval=1, cooldown=0)
    async with Pool(max_concurrent=10, runtime=runtime, autoscale=scale) as pool:
        short = [await pool.submit(asyncio.sleep, 0.5) for _ in range(8)]
        long = [await pool.submit(gate.wait) for _ in range(2)]
        await wait(short)
        await asyncio.sleep(30)
        workers = pool.health().workers
        idle = [id for id, worker in workers.items() if worker.state == "idle"]
        busy = [id for id, worker in workers.items() if worker.state == "busy"]
        assert idle == [f"worker-00{n}" for n in range(4)]
        assert busy == ["worker-008", "worker-009"]
        assert [workers[f"worker-00{n}"].job for n in (8, 9)] == [one.id for one in long]
        gate.set()
        assert {job.status for job in await wait(long)} == {Status.COMPLETED}
        await at_rest(runtime, pool, 2)


@seeded
async def test_worker_states_are_busy_then_draining_then_gone_and_stopped_at_the_end(
    runtime: SeededRuntime,
) -> None:
    def states() -> dict[str, str]:
        return {id[-3:]: worker.state for id, worker in pool.health().workers.items()}

    pool = await Pool(max_concurrent=4, runtime=runtime).start()
    gates = [asyncio.Event() for _ in range(3)]
    tickets = [await pool.submit(gate.wait) for gate in gates]
    assert states() == {"000": "busy", "001": "busy", "002": "busy", "003": "idle"}
    await pool.resize(1)
    assert states() == {"000": "busy", "001": "draining", "002": "draining"}
    gates[0].set()
    await tickets[0]
    assert states() == {"001": "busy", "002": "draining"}
    gates[2].set()
    await tickets[2]
    assert states() == {"001": "busy"}
    await pool.resize(2)
    assert states() == {"000": "idle", "001": "busy"}
    draining = asyncio.create_task(pool.drain())
    await until(lambda: pool.snapshot().draining)
    assert states() == {"000": "idle", "001": "draining"}
    gates[1].set()
    await draining
    assert states() == {"000": "stopped", "001": "stopped"}


@seeded
async def test_workers_added_later_are_numbered_and_named_like_the_first(
    runtime: SeededRuntime,
) -> None:
    names: set[str] = set()

    async def job() -> None:
        task = asyncio.current_task()
        assert task is not None
        names.add(task.get_name())
        await asyncio.sleep(100)

    scale = Autoscale(min=2, max=4, interval=1)
    async with Pool("grown", runtime=runtime, autoscale=scale) as pool:
        tickets = [await pool.submit(job) for _ in range(4)]
        await asyncio.sleep(10)
        assert names == {f"grown-worker-00{n}" for n in range(4)}
        assert sorted(pool.health().workers) == [f"worker-00{n}" for n in range(4)]
        await wait(tickets)


# Bounds


def test_a_pool_starts_at_the_minimum_unless_a_size_is_given() -> None:
    assert Pool(autoscale=Autoscale(min=3, max=9))._config.max_concurrent == 3
    assert Pool(autoscale=Autoscale(min=3, max=9), max_concurrent=9)._config.max_concurrent == 9
    assert Pool()._config.max_concurrent == 1


@pytest.mark.parametrize("size", [2, 10])
def test_a_first_size_outside_the_bounds_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=rf"max_concurrent={size}.*between 3 and 9"):
        Pool(max_concurrent=size, autoscale=Autoscale(min=3, max=9))
    assert list_pools() == []


@seeded
async def test_a_resize_stays_within_the_bounds_of_the_scaler(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events, autoscale=Autoscale()) as pool:
        for size in (1, 51):
            with pytest.raises(
                UsageError, match=rf"resize: max_concurrent={size} .*2 and 50.*set_autoscale"
            ):
                await pool.resize(size)
        assert heard.of(PoolResized) == []
        await pool.resize(50)
        assert pool.snapshot().max_concurrent == 50
        pool.set_autoscale(None)
        await pool.resize(51)
        assert pool.snapshot().max_concurrent == 51


@seeded
async def test_a_scaler_that_is_taken_away_changes_nothing_any_more(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events, autoscale=QUICK) as pool:
        async with occupied(pool, 12):
            await asyncio.sleep(0.25)
            assert len(heard.of(PoolResized)) == 1
            pool.set_autoscale(None)
            size = pool.snapshot().max_concurrent
            await asyncio.sleep(100)
        await asyncio.sleep(100)
        assert pool.snapshot().max_concurrent == size
        pool.set_autoscale(QUICK)
        await at_rest(runtime, pool, 2)


@seeded
async def test_new_autoscale_settings_replace_the_old_ones(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events, autoscale=Autoscale()) as pool:
        pool.set_autoscale(Autoscale(min=6, max=8, interval=1))
        await asyncio.sleep(1.5)
        pool.set_autoscale(Autoscale(min=1, max=4, interval=1))
        await asyncio.sleep(1.5)
        assert [(one.before, one.after, one.why) for one in heard.of(PoolResized)] == [
            (2, 6, "size 2 below min 6"),
            (6, 4, "size 6 above max 4"),
        ]


@pytest.mark.parametrize("settings", [True, 5, (2, 50), Autoscale])
@seeded
async def test_an_invalid_autoscale_is_refused_and_changes_nothing(
    runtime: SeededRuntime, settings: Any
) -> None:
    async with Pool(runtime=runtime, autoscale=QUICK) as pool:
        with pytest.raises(
            UsageError, match=r"set_autoscale: settings=.*an Autoscale\(…\), or None"
        ):
            pool.set_autoscale(settings)
        async with occupied(pool, 12):
            await at_rest(runtime, pool, 12)


# When the size stays


@seeded
async def test_a_paused_pool_keeps_its_size(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events, autoscale=QUICK) as pool:
        pool.pause()
        tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(50)]
        await asyncio.sleep(100)
        assert heard.of(PoolResized) == []
        pool.resume()
        await wait(tickets)
        assert heard.of(PoolResized) != []
        await pool.resize(9)
        pool.pause()
        before = len(heard.of(PoolResized))
        await asyncio.sleep(100)
        assert len(heard.of(PoolResized)) == before
        pool.resume()
        await at_rest(runtime, pool, 2)


@seeded
async def test_a_pause_does_not_shorten_the_cooldown(runtime: SeededRuntime) -> None:
    heard = Heard()
    times: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, PoolResized):
            times.append(runtime.monotonic())

    heard.events.subscribe(note)
    scale = Autoscale(min=1, max=2, interval=1, cooldown=100)
    async with Pool(runtime=runtime, events=heard.events, autoscale=scale) as pool:
        await pool.run(asyncio.sleep, 3)
        await asyncio.sleep(1)
        pool.pause()
        await asyncio.sleep(5)
        pool.resume()
        await asyncio.sleep(200)
        grew, shrank = times
        assert 100 <= shrank - grew <= 102


@seeded
async def test_samples_before_a_pause_do_not_count_after_it(runtime: SeededRuntime) -> None:
    heard = Heard()
    scale = Autoscale(min=1, max=2, interval=1)
    options: Any = {"events": heard.events, "autoscale": scale}
    async with Pool(runtime=runtime, **options) as pool, occupied(pool):
        await asyncio.sleep(1.5)
        pool.pause()
        await asyncio.sleep(1)
        pool.resume()
        await asyncio.sleep(1)
        assert heard.of(PoolResized) == []
        await asyncio.sleep(1)
        assert len(heard.of(PoolResized)) == 1


@seeded
async def test_a_draining_pool_keeps_its_size(runtime: SeededRuntime) -> None:
    heard = Heard()
    pool = await Pool(runtime=runtime, events=heard.events, autoscale=QUICK).start()
    for _ in range(40):
        await pool.submit(asyncio.sleep, 1)
    draining = asyncio.create_task(pool.drain(100))
    await until(lambda: bool(heard.of(DrainStarted)))
    pool.set_autoscale(QUICK)
    report = await draining
    assert report.completed == 40
    assert heard.of(PoolResized) == []


@seeded
async def test_nothing_is_left_of_a_scaler_after_a_drain(runtime: SeededRuntime) -> None:
    tasks = runtime.loop.pending_tasks()
    pool = await Pool(runtime=runtime, autoscale=QUICK).start()
    async with occupied(pool, 12):
        await asyncio.sleep(2)
    pool.set_autoscale(QUICK)
    await pool.drain()
    assert [handle for _, _, handle in runtime.loop._timers if not handle.dead] == []
    await asyncio.sleep(0)
    assert runtime.loop.pending_tasks() == tasks


@seeded
async def test_fail_fast_accepts_as_many_jobs_as_the_grown_pool_has_slots(
    runtime: SeededRuntime,
) -> None:
    options: Any = {"backpressure": fail_fast(), "autoscale": QUICK}
    async with Pool(runtime=runtime, **options) as pool, occupied(pool, 2):
        with pytest.raises(NoFreeSlot):
            pool.submit_nowait(asyncio.sleep, 1)
        await asyncio.sleep(1)
        await pool.run(asyncio.sleep, 1)
