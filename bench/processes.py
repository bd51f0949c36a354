"""Benchmark of process jobs: what one costs, and what the death of a child does. See README.md."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import count
from multiprocessing import get_context
from statistics import median
from typing import Any

from goals import figure
from lag import RESULTS, arguments, facts, fresh, publish, sampled, show_progress, table
from machine import installed
from measure import FAILED

MICRO, MILLI = 1e6, 1e3
MEGABYTE = 1_000_000
TOGETHER = 4
PATIENCE = 10.0
NAP, FATAL_AFTER = 0.3, 0.1

Call = Callable[..., Awaitable[Any]]
Contestant = Callable[[int], AbstractAsyncContextManager[Call]]


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: so many jobs, so many at a time, `size` bytes in and out."""

    measure: str
    contestant: str
    jobs: int = 1
    at_once: int = 1
    size: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Wall time and CPU of the parent per job, in seconds; or the outcome of the jobs, as text."""

    wall: float = 0.0
    cpu: float = 0.0
    told: str = ""
    problem: str = ""


def echo(value: bytes = b"") -> bytes:
    """Returns its argument."""
    return value


def nap(seconds: float) -> None:
    """Sleeps."""
    time.sleep(seconds)


def die() -> None:
    """Ends as a process does when the machine runs out of memory."""
    time.sleep(FATAL_AFTER)
    os.kill(os.getpid(), signal.SIGKILL)


@asynccontextmanager
async def ours(workers: int) -> AsyncIterator[Call]:
    """A pool of process slots, with a deadline for each job."""
    from poolhand import Pool

    async with Pool("bench", max_concurrent=workers, run_in="process", timeout=60) as pool:
        yield pool.run


@asynccontextmanager
async def executor(workers: int, start: str = "spawn") -> AsyncIterator[Call]:
    """concurrent.futures, through the event loop."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(workers, get_context(start)) as processes:
        yield partial(loop.run_in_executor, processes)


@asynccontextmanager
async def multiprocessing_pool(workers: int) -> AsyncIterator[Call]:
    """multiprocessing.Pool; its results arrive on a thread of its own."""
    loop = asyncio.get_running_loop()

    def call(fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        answer = loop.create_future()

        def hear(value: Any) -> None:
            loop.call_soon_threadsafe(answer.set_result, value)

        pool.apply_async(fn, args, callback=hear)
        return answer

    with get_context("spawn").Pool(workers) as pool:
        yield call


@asynccontextmanager
async def anyio_to_process(workers: int) -> AsyncIterator[Call]:
    """anyio.to_process, with a limiter as large as the pool."""
    from anyio import CapacityLimiter, to_process

    yield partial(to_process.run_sync, limiter=CapacityLimiter(workers))


OURS = "poolhand"
FLOOR = "floor: ProcessPoolExecutor"
FORKED = "ProcessPoolExecutor, forked"
CONTESTANTS: dict[str, Contestant] = {
    FLOOR: executor,
    OURS: ours,
    "multiprocessing.Pool": multiprocessing_pool,
    "anyio.to_process": anyio_to_process,
    FORKED: partial(executor, start="fork"),
}
LIBRARIES = {OURS: "poolhand", "anyio.to_process": "anyio.to_process"}
COLD = "cold start of the first job"
KILLED = f"{2 * TOGETHER} jobs, one child killed"


def cases(quick: bool) -> list[Case]:
    """All cases; poolhand right after the floor, so that noise affects both."""
    small, large = (40, 8) if quick else (2_000, 200)
    names = [name for name in CONTESTANTS if name != FORKED]
    return [
        *(
            Case(f"{what}, {how}", name, jobs, at_once, size)
            for what, jobs, size in (("no-op", small, 0), ("1 MB in and out", large, MEGABYTE))
            for how, at_once in (("one after the other", 1), (f"{TOGETHER} at a time", TOGETHER))
            for name in names
        ),
        *(Case(COLD, name) for name in CONTESTANTS),
        *(Case(KILLED, name, 2 * TOGETHER, TOGETHER) for name in names),
    ]


async def warm_up(call: Call, workers: int) -> None:
    """Start and use every process once."""
    await asyncio.gather(*(call(nap, NAP) for _ in range(workers)))
    for _ in range(5):
        await asyncio.gather(*(call(echo, b"") for _ in range(workers)))


async def warm(case: Case) -> Sample:
    """Seconds per job with started processes."""
    payload = bytes(case.size)

    async def ask(call: Call) -> None:
        for _ in range(case.jobs // case.at_once):
            await call(echo, payload)

    async with CONTESTANTS[case.contestant](case.at_once) as call:
        await warm_up(call, case.at_once)
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(ask(call) for _ in range(case.at_once)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Sample(wall / case.jobs, cpu / case.jobs)


async def cold(case: Case) -> Sample:
    """Seconds from no process to the result of the first job."""
    import_module(LIBRARIES.get(case.contestant, "concurrent.futures"))
    cpu, wall = time.process_time(), time.perf_counter()
    async with CONTESTANTS[case.contestant](1) as call:
        await call(echo, b"")
        return Sample(time.perf_counter() - wall, time.process_time() - cpu)


async def killed(case: Case) -> Sample:
    """The outcome of running and waiting jobs when the child of one of them is killed."""
    ends: Counter[str] = Counter()

    async def ask(call: Call, fn: Callable[..., None], *args: Any) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                await call(fn, *args)
        except TimeoutError:
            return "never answered"
        except Exception as error:
            return type(error).__name__
        return "completed"

    async with CONTESTANTS[case.contestant](case.at_once) as call:
        await warm_up(call, case.at_once)
        others = [ask(call, nap, NAP) for _ in range(case.jobs - 1)]
        ends.update(await asyncio.gather(ask(call, die), *others))
        following = await ask(call, nap, 0)
    told = ", ".join(f"{ends[end]} {end}" for end in sorted(ends, key=lambda one: -ends[one]))
    return Sample(told=f"{told}; the next job: {following}")


def take(case: Case) -> Sample:
    """The sample, or the name of a missing library; any other error ends the process."""
    measures = {COLD: cold, KILLED: killed}
    try:
        return asyncio.run(measures.get(case.measure, warm)(case))
    except ModuleNotFoundError as error:
        return Sample(problem=f"{error.name} not installed")


Figures = dict[Case, list[Sample]]


def collect(listed: list[Case], repeats: int, quick: bool) -> Figures:
    """One sample of each case per repeat; a missing or counted case is not repeated."""
    figures: Figures = {case: [] for case in listed}
    numbers = count(1)

    def take_fresh(case: Case) -> Sample:
        what = f"{case.measure}: {case.contestant}"
        show_progress(next(numbers), repeats * len(listed), what)
        return Sample(**fresh(__file__, json.dumps(asdict(case))))

    for _ in range(repeats):
        left = [
            case for case in listed if not any(one.problem or one.told for one in figures[case])
        ]
        for case, sample in zip(left, sampled(take_fresh, left, quick), strict=True):
            figures[case].append(sample)
    return figures


def row(case: Case, figures: Figures) -> list[str]:
    """One row: medians, and the median of the ratios to the floor within each repeat."""
    samples = figures[case]
    problem = next((one.problem for one in samples if one.problem), "")
    if problem or samples[0].told:
        return [case.measure, case.contestant, problem, "", "", "", samples[0].told]
    floors = next(
        taken
        for other, taken in figures.items()
        if (other.measure, other.contestant) == (case.measure, FLOOR)
    )
    pairs = list(zip(samples, floors, strict=False))
    scale, unit = (MILLI, "ms") if case.measure == COLD else (MICRO, "µs")
    usable = not any(one.problem for one in floors)
    return [
        case.measure,
        case.contestant,
        f"{figure(median(one.wall for one in samples) * scale)} {unit}",
        f"{median(one.wall / floor.wall for one, floor in pairs):.2f}" if usable else "",
        f"{figure(median(one.cpu for one in samples) * scale)} {unit}",
        f"{median(one.cpu / floor.cpu for one, floor in pairs):.2f}" if usable else "",
        "",
    ]


HEADER = ("measure", "contestant", "wall", "× floor", "CPU of the parent", "× floor", "jobs")


def main() -> int:
    """Run, print, write; the exit code is 1 when a contestant crashed."""
    given = arguments(__doc__)
    if given.probe:
        print(json.dumps(asdict(take(Case(**json.loads(given.probe[0]))))))
        return 0
    figures = collect(cases(given.quick), given.repeats, given.quick)
    rows = [row(case, figures) for case in figures]
    told = facts(
        peers=f"those of the standard library, anyio {installed('anyio')}",
        repeats=f"{given.repeats}; the median is shown (the killed child: once)",
    )
    text = f"# Process jobs\n\n{told}\n\n{table(HEADER, rows)}\n"
    publish(text, given, RESULTS / "processes.md")
    problems = (one.problem for samples in figures.values() for one in samples)
    return int(any(problem.startswith(FAILED) for problem in problems))


if __name__ == "__main__":
    sys.exit(main())
