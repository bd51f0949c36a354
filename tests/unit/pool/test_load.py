"""Ten thousand jobs of every kind through two slots."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from poolhand import Pool, Refused, Retry, Ticket, bounded, fair_round_robin, ring_buffer, wait
from poolhand.errors import JobCancelled, JobRejected, JobTimedOut
from poolhand.observe.events import Events, JobEnded, JobStarted, JobSubmitted
from poolhand.rules.queue.backpressure import Policy
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Event, PoolSnapshot

JOBS = 10_000
CAP = 2


def check(seen: PoolSnapshot) -> None:
    """Check the two sums that hold at any instant."""
    assert seen.active + seen.stuck <= seen.max_concurrent
    waiting = seen.queued + seen.blocked + seen.scheduled
    over = seen.completed + seen.failed + seen.cancelled + seen.rejected + seen.expired
    assert seen.total == seen.active + waiting + over


class Load:
    """Jobs of many kinds that count how many of them run."""

    def __init__(self, pool: Pool, patience: float = 0.2) -> None:
        self.pool = pool
        self.patience = patience
        self.running = 0
        self.most = 0

    def enter(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def leave(self) -> None:
        self.running -= 1

    async def quick(self) -> str:
        self.enter()
        self.leave()
        return "quick"

    async def turns(self) -> str:
        self.enter()
        try:
            await asyncio.sleep(0)
        finally:
            self.leave()
        return "turns"

    async def fails(self) -> None:
        self.enter()
        self.leave()
        raise LookupError

    async def slow(self) -> None:
        self.enter()
        try:
            await asyncio.Event().wait()
        finally:
            self.leave()

    def plain(self) -> str:
        self.enter()
        self.leave()
        return "plain"

    async def call(self, runtime: SeededRuntime, number: int) -> str:
        """Submit one job, wait for it, and return how it ended."""
        kind = number % 10
        view = self.pool.with_options(key=str(number % 7), priority=number % 3)
        try:
            if kind < 4:
                return await view.run(self.quick if kind % 2 else self.turns)
            if kind < 6:
                return await view.run(self.plain)
            if kind == 6:
                await view.run(self.fails)
            if kind == 7:
                await view.with_options(timeout=0.01).run(self.slow)
            ticket: Ticket[Any] = await view.submit(self.slow)
            await asyncio.sleep(runtime.random.random() * self.patience)
            await ticket.cancel()
            await ticket
        except (JobCancelled, JobTimedOut, JobRejected, LookupError, Refused) as error:
            return type(error).__name__
        return "impossible"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_two_slots_never_run_more_than_two_of_ten_thousand_jobs(seed: int) -> None:
    async def main(runtime: SeededRuntime) -> None:
        pool = Pool(max_concurrent=CAP, runtime=runtime, history=10)
        async with pool:
            load = Load(pool, patience=10)
            callers = [asyncio.create_task(load.call(runtime, number)) for number in range(JOBS)]
            while not all(caller.done() for caller in callers):
                await asyncio.sleep(0.1)
                check(pool.snapshot())
            ends = [caller.result() for caller in callers]
            assert load.most == CAP
            assert load.running == 0
            thousand = JOBS // 10
            assert ends.count("quick") == ends.count("turns") == ends.count("plain") == 2 * thousand
            assert ends.count("LookupError") == ends.count("JobTimedOut") == thousand
            assert ends.count("JobCancelled") == 2 * thousand
            seen = pool.snapshot()
            assert (seen.total, seen.completed, seen.failed) == (JOBS, 6 * thousand, 2 * thousand)
            assert (seen.cancelled, seen.active, seen.stuck) == (2 * thousand, 0, 0)

    run_seeded(main, seed, max_steps=5_000_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [bounded(5), bounded(5, "drop_oldest"), bounded(5, "drop_newest"), ring_buffer(5)],
    ids=str,
)  # fmt: skip
def test_the_counts_add_up_at_every_instant(policy: Policy) -> None:
    async def main(runtime: SeededRuntime) -> None:
        pool = Pool(
            max_concurrent=CAP,
            backpressure=policy,
            queue=fair_round_robin(),
            max_per_key=1,
            retry=Retry(attempts=2, first=0.01),
            runtime=runtime,
        )
        async with pool:
            load = Load(pool)
            callers = [asyncio.create_task(load.call(runtime, number)) for number in range(300)]
            while not all(caller.done() for caller in callers):
                check(pool.snapshot())
                await asyncio.sleep(runtime.random.random() * 0.02)
            assert load.most <= CAP
            check(pool.snapshot())
            assert pool.size() == 0

    for seed in range(3):
        run_seeded(main, seed)


@pytest.mark.parametrize(
    "policy", [bounded(5), bounded(5, "drop_oldest"), bounded(5, "drop_newest"), ring_buffer(5)],
    ids=str,
)  # fmt: skip
def test_the_sums_hold_inside_every_event(policy: Policy) -> None:
    async def main(runtime: SeededRuntime) -> None:
        events = Events()
        faults: list[str] = []

        def look(event: Event) -> None:
            try:
                check(pool.snapshot())
            except AssertionError:
                faults.append(type(event).__name__)

        pool = Pool(
            max_concurrent=CAP,
            backpressure=policy,
            retry=Retry(attempts=2, first=0.01),
            runtime=runtime,
            events=events,
        )
        async with pool:
            events.subscribe(look)
            load = Load(pool)
            await asyncio.gather(*(load.call(runtime, number) for number in range(200)))
            assert load.most <= CAP
        assert sorted(set(faults)) == []

    run_seeded(main, 0)


@pytest.mark.slow
def test_every_job_is_submitted_started_and_ended_once_and_in_this_order() -> None:
    async def main(runtime: SeededRuntime) -> None:
        events = Events()
        story: dict[str, list[str]] = {}

        def note(event: Event) -> None:
            if isinstance(event, JobSubmitted | JobStarted | JobEnded):
                story.setdefault(event.job.id, []).append(type(event).__name__)

        events.subscribe(note)
        pool = Pool(max_concurrent=CAP, backpressure=bounded(5), runtime=runtime, events=events)
        async with pool:
            load = Load(pool)
            callers = [asyncio.create_task(load.call(runtime, number)) for number in range(500)]
            while not all(caller.done() for caller in callers):
                await pool.resize(runtime.random.randint(1, 5))
                await asyncio.sleep(0.05)
        assert len(story) == 500
        assert {tuple(one) for one in story.values()} <= {
            ("JobSubmitted", "JobStarted", "JobEnded"),
            ("JobSubmitted", "JobEnded"),
        }

    for seed in range(3):
        run_seeded(main, seed)


async def test_real_threads_keep_to_the_cap_as_well() -> None:
    lock = threading.Lock()
    running = most = 0

    def plain() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    async with Pool(max_concurrent=CAP) as pool:
        jobs = await wait([await pool.submit(plain) for _ in range(1_000)])
        assert len(jobs) == 1_000
        check(pool.snapshot())
        assert pool.stats().completed == 1_000
    assert most <= CAP
