"""Snapshots of a pool: consistent at every instant."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import Any

import msgspec
import pytest

from poolhand import (
    Pool,
    Refused,
    Retry,
    Snooze,
    Ticket,
    bounded,
    fair_round_robin,
    fifo,
    ring_buffer,
    unbounded,
    wait,
)
from poolhand.observe import events
from poolhand.observe.events import Events
from poolhand.testing import SeededRuntime
from poolhand.views import Event, PoolSnapshot, Status
from tests.unit.pool.support import Heard, Journal, occupied, park, seeded, until

POLICIES = [
    unbounded(),
    bounded(2),
    bounded(2, wait_timeout=0.3),
    bounded(2, on_full="drop_oldest"),
    bounded(2, on_full="drop_newest"),
    bounded(2, on_full="fail_submitter"),
    ring_buffer(2),
]

STATES = (
    "active", "queued", "blocked", "scheduled",
    "completed", "failed", "cancelled", "rejected", "expired",
)  # fmt: skip


def lies(snapshot: PoolSnapshot) -> list[str]:
    """Return which invariants of a pool do not hold now."""
    s = snapshot
    states = {name: getattr(s, name) for name in STATES}
    found = [f"{name}={count}" for name, count in states.items() if count < 0]
    if s.active + s.stuck > s.max_concurrent:
        found.append(f"active {s.active} + stuck {s.stuck} > max_concurrent {s.max_concurrent}")
    if s.total != sum(states.values()):
        found.append(f"total {s.total} is not the sum of {states}")
    return found


class Probe:
    """Checks a pool from inside its jobs and from a subscriber."""

    def __init__(self, runtime: SeededRuntime) -> None:
        self.runtime = runtime
        self.events = Events()
        self.pool: Pool | None = None
        self.faults: list[str] = []
        self.seen: set[str] = set()
        self.events.subscribe(self.hear)

    def hear(self, event: Event) -> None:
        self.seen.add(type(event).__name__)
        self.look(type(event).__name__)

    def look(self, where: str) -> None:
        if self.pool is None:
            return
        snapshot, stats, size = self.pool.snapshot(), self.pool.stats(), self.pool.size()
        found = lies(snapshot)
        if (stats.in_flight, stats.submitted) != (snapshot.active, snapshot.total):
            found.append(f"the stats are {stats}")
        if size != snapshot.active + stats.queue_depth:
            found.append(f"the size is {size}")
        # Collected for the end: an exception of a subscriber is only logged.
        self.faults += [f"{where}: {fault}" for fault in found]

    async def job(self, kind: str) -> str:
        self.look("job begins")
        gate = asyncio.Event()
        self.runtime.loop.call_later(self.runtime.random.uniform(0.05, 1), gate.set)
        match kind:
            case "fails":
                await gate.wait()
                raise LookupError
            case "snoozes" if self.runtime.random.random() < 0.5:
                raise Snooze(0.5)
            case "never stops":
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.Event().wait()
            case _:
                pass
        await gate.wait()
        self.look("job ends")
        return kind


KINDS = ["works", "works", "fails", "snoozes", "never stops"]


async def load(runtime: SeededRuntime, probe: Probe, pool: Pool, count: int) -> None:
    """Submit all kinds of jobs from many submitters, with failures."""
    tickets: list[Ticket[Any]] = []

    async def one(number: int) -> None:
        pick = runtime.random.choice
        view = pool.with_options(
            key=pick("AB"),
            session=pick([None, None, "s"]),
            priority=pick([0, 1]),
            delay=pick([None, None, None, 0.5]),
            expires=pick([None, None, None, 1.5]),
            timeout=2,
            retry=pick([None, Retry(attempts=2, first=0.3)]),
            idempotency_key=pick([None, None, f"k{number % 7}"]),
        )
        try:
            tickets.append(await view.submit(probe.job, pick(KINDS)))
        except Refused:
            probe.look("refused")
        probe.look("submitted")

    submits = []
    for number in range(count):
        submits.append(asyncio.create_task(one(number)))
        if number % 4 == 0:
            await asyncio.sleep(runtime.random.uniform(0, 0.3))
        if number % 11 == 5:
            await tickets[runtime.random.randrange(len(tickets))].cancel()
            submits[runtime.random.randrange(len(submits))].cancel()
        if number % 13 == 7:
            await pool.resize(runtime.random.choice([1, 2, 4]))
    await asyncio.gather(*submits, return_exceptions=True)


@pytest.mark.parametrize("max_per_key", [None, 1])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@seeded
async def test_slots_are_never_exceeded_and_the_total_is_the_sum_of_all_states_at_any_instant(
    runtime: SeededRuntime, policy: Any, max_per_key: int | None
) -> None:
    probe = Probe(runtime)
    async with Pool(
        runtime=runtime,
        max_concurrent=2,
        backpressure=policy,
        max_per_key=max_per_key,
        queue=fair_round_robin(),
        events=probe.events,
        cancel_grace=0.5,
        drain_timeout=600,
    ) as pool:
        probe.pool = pool
        await load(runtime, probe, pool, 40)
    snapshot = pool.snapshot()
    assert lies(snapshot) == []
    assert probe.faults == []
    assert snapshot.active == snapshot.queued == snapshot.blocked == snapshot.scheduled == 0
    assert {"JobSubmitted", "JobStarted", "JobEnded"} <= probe.seen


@pytest.mark.parametrize(
    "moment", ["JobSubmitted", "JobStarted", "JobRetried", "JobEnded", "SlotStuck", "JobMarked"]
)
@seeded
async def test_the_counts_are_true_at_each_kind_of_event(
    runtime: SeededRuntime, moment: str
) -> None:
    faults: list[str] = []
    seen: list[str] = []
    heard = Events()
    pool = Pool(
        runtime=runtime,
        backpressure=ring_buffer(2),
        events=heard,
        retry=Retry(attempts=2, first=1),
        timeout=5,
    )

    def look(event: Event) -> None:
        if type(event).__name__ == moment:
            seen.append(moment)
            faults.extend(lies(pool.snapshot()))

    async def fail() -> None:
        raise LookupError

    async def never_stop() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(5)

    heard.subscribe(look)
    async with pool:
        tickets = [await pool.submit(fn) for fn in (fail, fail, never_stop, fail)]
        await wait(tickets)
    assert seen
    assert faults == []


@pytest.mark.parametrize("policy", [bounded(1, on_full="drop_oldest"), ring_buffer(1)], ids=str)
@seeded
async def test_the_counts_are_right_during_an_eviction(runtime: SeededRuntime, policy: Any) -> None:
    faults: list[str] = []
    heard = Events()
    pool = Pool(runtime=runtime, backpressure=policy, events=heard)

    def look(event: Event) -> None:
        if isinstance(event, events.JobSubmitted):
            faults.extend(lies(pool.snapshot()))

    async with pool, occupied(pool):
        heard.subscribe(look)
        pool.submit_nowait(Journal().note, "old")
        pool.submit_nowait(Journal().note, "new")
        heard.live = False
    assert faults == []


@seeded
async def test_the_counts_are_right_while_blocked_submitters_are_admitted(
    runtime: SeededRuntime,
) -> None:
    faults: list[str] = []
    heard = Events()
    pool = Pool(runtime=runtime, backpressure=bounded(3), events=heard)

    def look(event: Event) -> None:
        if isinstance(event, events.JobSubmitted | events.JobStarted | events.PoolResized):
            faults.extend(f"{type(event).__name__}: {lie}" for lie in lies(pool.snapshot()))

    async with pool, occupied(pool):
        for _ in range(3):
            await pool.submit(Journal().note, "filler")
        tasks = [await park(pool, pool, Journal().note, "x") for _ in range(5)]
        heard.subscribe(look)
        await pool.resize(4)
        await asyncio.gather(*tasks)
    assert faults == []


# The fields


@seeded
async def test_a_snapshot_has_the_identity_and_settings_of_the_pool(
    runtime: SeededRuntime,
) -> None:
    start = runtime.wall()
    async with Pool(
        "reviews",
        runtime=runtime,
        max_concurrent=3,
        queue=fair_round_robin("tenant_id"),
        backpressure=bounded(7, on_full="drop_newest"),
        timeout=60,
    ) as pool:
        await asyncio.sleep(5)
        snapshot = pool.snapshot()
    assert snapshot.id == pool.id
    assert snapshot.name == "reviews"
    assert snapshot.max_concurrent == snapshot.ceiling == 3
    assert snapshot.created_at == start
    assert snapshot.created_at.tzinfo is UTC
    assert snapshot.queue == "fair_round_robin(tenant_id)"
    assert snapshot.backpressure == "bounded(7, drop_newest)"
    assert (snapshot.scope, snapshot.scope_id, snapshot.durable) == ("session", None, False)
    config = snapshot.config
    assert (config.name, config.max_concurrent, config.timeout) == ("reviews", 3, 60)
    assert config.queue == fair_round_robin("tenant_id")
    assert config.backpressure == bounded(7, on_full="drop_newest")


@seeded
async def test_a_snapshot_counts_every_state(runtime: SeededRuntime) -> None:
    async def fail() -> None:
        raise LookupError

    async def never_stop() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        await stuck_until.wait()

    stuck_until = asyncio.Event()
    policy = bounded(4, on_full="drop_newest")
    async with Pool(runtime=runtime, max_concurrent=3, backpressure=policy) as pool:
        await pool.run(Journal().note, "completed")
        await wait(await pool.submit(fail))
        await wait(await pool.with_options(timeout=1).submit(never_stop))
        async with occupied(pool, 1):
            turn = asyncio.Event()
            first = await pool.with_options(session="s").submit(turn.wait)
            blocked = await pool.with_options(session="s").submit(Journal().note, "blocked")
            scheduled = await pool.with_options(delay=999).submit(Journal().note, "scheduled")
            expired = await pool.with_options(expires=1).submit(Journal().note, "expired")
            await wait(expired)
            cancelled = await pool.submit(Journal().note, "cancelled")
            await cancelled.cancel()
            await pool.submit(Journal().note, "queued")
            await pool.submit(Journal().note, "queued too")
            await pool.submit(Journal().note, "rejected")
            snapshot = pool.snapshot()
            turn.set()
            await wait([first, blocked])
        await scheduled.cancel()
        stuck_until.set()
    counts = {
        name: getattr(snapshot, name)
        for name in (
            "active", "stuck", "queued", "blocked", "scheduled", "completed", "failed",
            "cancelled", "rejected", "expired", "total",
        )
    }  # fmt: skip
    assert counts == {
        "active": 2,
        "stuck": 1,
        "queued": 2,
        "blocked": 1,
        "scheduled": 1,
        "completed": 1,
        "failed": 2,
        "cancelled": 1,
        "rejected": 1,
        "expired": 1,
        "total": 12,
    }
    assert lies(snapshot) == []


@seeded
async def test_a_snapshot_counts_blocked_submitters_beside_the_total(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        async with occupied(pool):
            await pool.submit(Journal().note, "filler")
            tasks = [await park(pool, pool, Journal().note, "x") for _ in range(3)]
            snapshot = pool.snapshot()
            assert (snapshot.blocked_submitters, snapshot.total) == (3, 2)
        await asyncio.gather(*tasks)
        assert pool.snapshot().blocked_submitters == 0


@seeded
async def test_a_snapshot_is_immutable(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        before = pool.snapshot()
        await pool.run(Journal().note, "x")
        assert before.completed == 0
        assert pool.snapshot().completed == 1
        with pytest.raises(AttributeError):
            before.completed = 5  # type: ignore[misc]
        with pytest.raises(AttributeError):
            before.config.max_concurrent = 5  # type: ignore[misc]


@seeded
async def test_a_snapshot_can_be_encoded(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, queue=fifo(), retry=Retry()) as pool:
        ticket = await pool.submit(Journal().note, "x")
        await ticket
        text = msgspec.json.decode(msgspec.json.encode(pool.snapshot()))
        assert text["created_at"] == "2030-01-01T00:00:00Z"
        assert text["jobs"][0]["id"] == ticket.id
        assert text["jobs"][0]["status"] == "completed"


@seeded
async def test_workers_are_shown_by_id_with_state_and_job(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        async with occupied(pool) as (busy,):
            workers = pool.snapshot().workers
            assert list(workers) == ["worker-000", "worker-001"]
            states = sorted((worker.state, worker.job) for worker in workers.values())
            assert states[0] == ("busy", busy.id)
            assert states[1] == ("idle", None)
        workers = pool.snapshot().workers
        assert sum(worker.completed for worker in workers.values()) == 1
        assert all(worker.state == "idle" for worker in workers.values())


@seeded
async def test_jobs_shows_the_running_then_the_waiting_then_the_latest_finished(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        for name in "ab":
            await pool.run(Journal().note, name)
        async with occupied(pool):
            await pool.submit(Journal().note, "c")
            jobs = pool.snapshot().jobs
        assert [job.status.value for job in jobs] == [
            "running", "queued", "completed", "completed",
        ]  # fmt: skip
        assert [job.result for job in jobs[2:]] == ["b", "a"]


@seeded
async def test_the_jobs_of_a_snapshot_are_bounded(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool, occupied(pool):
        for _ in range(300):
            pool.submit_nowait(Journal().note, "x")
        assert len(pool.snapshot().jobs) == 100


@pytest.mark.parametrize("history", [0, 1, 5])
@seeded
async def test_history_bounds_the_finished_jobs_that_are_kept(
    runtime: SeededRuntime, history: int
) -> None:
    async def fail() -> None:
        raise LookupError

    async with Pool(runtime=runtime, history=history) as pool:
        for number in range(20):
            await pool.run(Journal().note, str(number))
        jobs = pool.snapshot().jobs
        assert [job.result for job in jobs] == [str(n) for n in range(19, 19 - history, -1)]
        await wait([await pool.submit(fail) for _ in range(20)])
        assert len(pool.snapshot().jobs) == history
        assert len(pool.dead()) == history
        assert pool.snapshot().total == 40


@seeded
async def test_size_is_running_plus_waiting(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        assert pool.size() == 0
        async with occupied(pool, 2):
            pool.submit_nowait(Journal().note, "queued")
            pool.with_options(delay=1).submit_nowait(Journal().note, "scheduled")
            assert pool.size() == 4
        await until(lambda: pool.size() == 1)
        await asyncio.sleep(2)
        assert pool.size() == 0


@seeded
async def test_stats_count_waiting_work_in_the_depth_and_only_running_work_in_flight(
    runtime: SeededRuntime,
) -> None:
    async def fail() -> None:
        raise LookupError

    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        await pool.run(Journal().note, "x")
        await wait(await pool.submit(fail))
        async with occupied(pool, 2):
            for _ in range(3):
                pool.submit_nowait(Journal().note, "x")
            pool.with_options(delay=1).submit_nowait(Journal().note, "x")
            stats = pool.stats()
    assert (stats.queue_depth, stats.in_flight) == (4, 2)
    assert (stats.submitted, stats.completed, stats.failed) == (8, 1, 1)


@seeded
async def test_stats_are_emitted_every_ten_seconds_until_the_pool_is_drained(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    moments: list[float] = []
    start = runtime.monotonic()

    def note(event: Event) -> None:
        if isinstance(event, events.StatsTaken):
            moments.append(runtime.monotonic() - start)

    heard.events.subscribe(note)
    async with Pool("plotted", runtime=runtime, events=heard.events) as pool:
        async with occupied(pool):
            pool.submit_nowait(Journal().note, "x")
            await asyncio.sleep(35)
        await asyncio.sleep(10)
    await asyncio.sleep(60)
    assert moments == [pytest.approx(at) for at in (10, 20, 30, 40)]
    figures = heard.of(events.StatsTaken)
    assert {event.pool for event in figures} == {"plotted"}
    assert [(event.queue_depth, event.in_flight) for event in figures] == [(1, 1)] * 3 + [(0, 0)]
    assert [(event.submitted, event.completed) for event in figures] == [(2, 0)] * 3 + [(2, 2)]


@seeded
async def test_a_shrinking_pool_counts_its_busy_slots_until_they_are_gone(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, max_concurrent=4) as pool:
        async with occupied(pool, 4):
            await pool.resize(2)
            snapshot = pool.snapshot()
            assert (snapshot.max_concurrent, snapshot.resizing_to) == (4, 2)
            assert lies(snapshot) == []
        snapshot = pool.snapshot()
        assert (snapshot.max_concurrent, snapshot.resizing_to) == (2, None)
        async with occupied(pool, 2):
            ticket = pool.submit_nowait(Journal().note, "x")
            assert ticket.status is Status.QUEUED


@seeded
async def test_a_drained_pool_still_shows_the_outcomes_of_its_jobs(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        await pool.run(Journal().note, "x")
    snapshot = pool.snapshot()
    assert (snapshot.completed, snapshot.draining) == (1, True)
    assert pool.stats().completed == 1


@seeded
async def test_durations_follow_the_monotonic_clock_when_the_wall_clock_jumps(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        await asyncio.sleep(3)
        runtime.wall_offset = -7200

    async with Pool(runtime=runtime) as pool:
        async with occupied(pool):
            ticket = await pool.submit(job)
            await asyncio.sleep(2)
            runtime.wall_offset = 3600
        done = await wait(ticket)
    assert done.waited == pytest.approx(2)
    assert done.ran == pytest.approx(3)
