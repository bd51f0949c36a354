"""What a worker reports of jobs: once for each cause for which jobs are set aside."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from poolhand.contract import Change
from poolhand.farm.announcing import MOST_CAUSES, Announcing
from poolhand.farm.hand import Done
from poolhand.observe.events import Event, Events
from poolhand.pool.clock import Clock
from poolhand.rules.causes import task_cause
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime


def waiting(task: str) -> Done:
    job = Job(
        id="job-1",
        pool="p",
        pool_id="pool-1",
        status=Status.SCHEDULED,
        submitted_at=datetime(2030, 1, 1, tzinfo=UTC),
        waits_for=task_cause(task),
    )
    return Done(Change(job, 1), begun=False)


async def test_the_causes_that_were_reported_are_bounded() -> None:
    told: list[Event] = []
    loop = asyncio.get_running_loop()
    announcing = Announcing(loop, Events(), {}, told.append, lambda _: [], Clock(Runtime()))
    for _ in range(2):
        for number in range(MOST_CAUSES):
            announcing.written(waiting(f"task_{number}"))
    assert len(told) == MOST_CAUSES
    announcing.written(waiting("another"))
    assert len(announcing._causes) == 1
    announcing.written(waiting("another"))
    assert len(told) == MOST_CAUSES + 1
    announcing.failures.close()
