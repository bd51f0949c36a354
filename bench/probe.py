"""One measurement in a process of its own: reads a Case as JSON, prints a Sample as JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import asdict

from cases import DRAIN, PENDING, Case, Sample
from contestants import CONTESTANTS, JOBS
from drain import drain
from pending import weigh

WARM_UP = 500
MICRO = 1e6


def runner(loop: str) -> asyncio.Runner:
    """A runner over the named event loop."""
    if loop == "asyncio":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def throughput(case: Case) -> Sample:
    """CPU and wall µs per job from the first submit to the last result, opening and closing too."""
    contestant, job = CONTESTANTS[case.contestant], JOBS[case.measure]
    await contestant(WARM_UP, job)
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await contestant(case.size, job)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Sample(cpu * MICRO / case.size, wall * MICRO / case.size)


async def take(case: Case) -> Sample:
    """The measurement of a case."""
    if case.measure == PENDING:
        return Sample(await weigh(case.contestant, case.size))
    if case.measure == DRAIN:
        timing = await drain(case.contestant, case.size, case.rounds)
        return Sample(timing.cpu * MICRO, timing.wall * MICRO)
    return await throughput(case)


def answer(case: Case) -> Sample:
    """The sample, or the name of a missing library; any other error ends the process."""
    try:
        with runner(case.loop) as running:
            return running.run(take(case))
    except ModuleNotFoundError as error:
        return Sample(problem=f"{error.name} not installed")


if __name__ == "__main__":
    print(json.dumps(asdict(answer(Case(**json.loads(sys.argv[1]))))))
