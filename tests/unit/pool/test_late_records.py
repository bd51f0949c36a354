"""Records are built late: every reader sees the same, whenever it reads."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import replace

from poolhand import GiveUp, Pool, Retry, RetryLater, Snooze, Ticket, wait
from poolhand.observe.events import Events
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Job, Status
from tests.unit.pool.support import seeded

KINDS = ("return", "fail", "later", "snooze", "give up", "slow", "thread", "stop")


async def on_loop(runtime: SeededRuntime, kind: str, tries: list[str]) -> str:
    tries.append(kind)
    await asyncio.sleep(0.1)
    match kind:
        case "fail":
            raise LookupError(kind)
        case "later" if len(tries) < 3:
            raise RetryLater(0.5)
        case "snooze" if len(tries) < 2:
            raise Snooze(0.5)
        case "give up":
            raise GiveUp
        case "slow":
            await asyncio.sleep(60)
        case "stop":
            raise asyncio.CancelledError
        case _:
            pass
    return kind


def in_thread(runtime: SeededRuntime, kind: str, tries: list[str]) -> str:
    return kind


async def play(runtime: SeededRuntime, seed: int, heard: bool) -> list[Job]:
    """Run the same mixed load; with `heard`, a subscriber receives every event at once."""
    rng = random.Random(seed)
    events = Events()
    if heard:
        events.subscribe(lambda event: None)
    retry = Retry(attempts=3, first=0.2)
    tickets: list[Ticket[Any]] = []
    async with Pool(
        "load", max_concurrent=2, timeout=1, retry=retry, runtime=runtime, events=events
    ) as pool:
        for number in range(20):
            kind = rng.choice(KINDS)
            options = pool.with_options(
                session=rng.choice([None, None, "s"]),
                idempotency_key=rng.choice([None, None, f"k{number % 4} {kind}"]),
                delay=rng.choice([None, None, 0.3]),
            )
            job: Any = in_thread if kind == "thread" else on_loop
            tickets.append(await options.submit(job, runtime, kind, []))
            if rng.random() < 0.2:
                await rng.choice(tickets).cancel()
            await asyncio.sleep(rng.choice([0, 0, 0.3]))
        return await wait(tickets)


def rounded(job: Job) -> Job:
    """Return the record with times in milliseconds: a later read may differ in the last digit."""
    times = ("submitted_at", "started_at", "finished_at")
    given = {name: getattr(job, name) for name in times}
    full = {name: at and round(at.timestamp(), 3) for name, at in given.items()}
    return replace(job, **full)


@pytest.mark.parametrize("seed", range(40))
def test_job_records_are_the_same_with_and_without_subscribers(seed: int) -> None:
    plain = run_seeded(lambda runtime: play(runtime, seed, heard=False), seed)
    told = run_seeded(lambda runtime: play(runtime, seed, heard=True), seed)
    assert [rounded(job) for job in plain] == [rounded(job) for job in told]
    assert {job.status for job in plain} <= {Status.COMPLETED, Status.FAILED, Status.CANCELLED}


@seeded
async def test_a_job_record_built_late_has_its_name_times_and_value(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        first = await pool.submit(asyncio.sleep, 2, "slept")
        ticket = await pool.submit(asyncio.sleep, 1, "awake")
        await ticket
        job = ticket.snapshot()
        shown = {one.id: one for one in pool.snapshot().jobs}
    assert job.name == "sleep"
    assert (job.waited, job.ran, job.attempts) == (2.0, 1.0, 1)
    assert job.started_at is not None
    assert job.finished_at is not None
    assert (job.started_at - job.submitted_at).total_seconds() == 2.0
    assert (job.finished_at - job.started_at).total_seconds() == 1.0
    assert shown == {first.id: first.snapshot(), ticket.id: job}
