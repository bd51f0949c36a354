"""Several worker processes on one store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from durable_cases import MICRO, POOL, Case, Figures, Scale, batches, middle, problem, ratio, shown

if TYPE_CHECKING:
    from poolhand.operate.actions import Operator

SECTION, TITLE = "workers", "Worker processes on one store"
HEADER = ("worker processes", "jobs a second", "× one", "CPU of the workers, per job")
LOOK_EVERY = 0.02


def cases(scale: Scale, crowds: Sequence[int]) -> list[Case]:
    return [Case(SECTION, "poolhand", scale.shared, amount) for amount in crowds]


def take(case: Case, where: str) -> dict[str, float]:
    return asyncio.run(_take(case, where))


async def _take(case: Case, where: str) -> dict[str, float]:
    """Fill a paused pool, start the workers, resume it; time it until the last job ran."""
    from durable_ours import url_of
    from durable_worker import make, workers

    url = url_of(where)
    app, tell_when, _ = make(url)
    async with app:
        for batch in batches(case.jobs):
            await tell_when.submit_many([(number,) for number in batch])
        operator = app.operator()
        await operator.pause(POOL, by="bench")
        async with workers(url, case.amount) as crowd:
            began = time.perf_counter()
            await operator.resume(POOL, by="bench")
            await _all_over(operator)
            told = [one.stop() for one in crowd]
    assert sum(one["jobs"] for one in told) == case.jobs
    seconds = max(one["last"] for one in told) - began
    return {
        "rate": case.jobs / seconds,
        "cpu": sum(one["cpu"] for one in told) * MICRO / case.jobs,
    }


async def _all_over(operator: Operator) -> None:
    while True:
        (pool,) = [one for one in await operator.pools() if one.name == POOL]
        if not pool.queued + pool.running:
            return
        await asyncio.sleep(LOOK_EVERY)


def rows(figures: Figures) -> list[list[str]]:
    """Jobs a second of all workers together."""
    one = next((samples for case, samples in figures.items() if case.amount == 1), [])
    return [
        [str(case.amount), found, "", ""]
        if (found := problem(samples))
        else [
            str(case.amount),
            f"{middle(samples, 'rate'):,.0f}",
            shown(ratio(samples, one, "rate")),
            shown(middle(samples, "cpu"), "µs"),
        ]
        for case, samples in figures.items()
    ]
