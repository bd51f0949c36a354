"""Benchmark of the farm: what it costs while idle, per job, and after a crash. See README.md."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from goals import Goal, figure
from lag import RESULTS, arguments, facts, fresh, publish, sampled, show_progress, table
from stream import POSTGRES, SQLITE, place

SLOTS = 200
WORKERS = 2
SECONDS, QUICK_SECONDS = 20.0, 1.0
NO_OPS, QUICK_NO_OPS = 5_000, 200
RUN_SECONDS = 1.0  # duration of each job that runs when its worker is killed
LIMIT = 60.0
SUPERVISOR_GOAL, WORKER_GOAL = Goal(1, "% of a core"), Goal(1, "% of a core")
MEMORY_GOAL, CRASH_GOAL, UP_GOAL = Goal(60, "MB"), Goal(5, "s"), Goal(15, "s")


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds until all workers are up; when idle, % of a core and MB; µs per no-op job, of all
    processes; seconds until all jobs of a killed worker are done.
    """

    up: float = 0.0
    supervisor: float = 0.0
    worker: float = 0.0
    memory: float = 0.0
    job: float = 0.0
    crash: float = 0.0
    problem: str = ""


def cpu_of(pid: int) -> float:
    """The seconds of processor time that a process has used."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_of(pid: int) -> float:
    """The memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def a_farm(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A farm that ends with the block."""
    words = ["work", "farm_jobs:app", "--min", str(WORKERS), "--max", str(WORKERS)]
    process = subprocess.Popen(
        [sys.executable, "-m", "poolhand", *words, "--concurrency", str(SLOTS)],
        cwd=Path(__file__).parent,
        env={**os.environ, "FARM_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(LIMIT)


async def ready_workers(operator: Any) -> list[Any]:
    """Wait until all workers are ready, and return them."""
    async with asyncio.timeout(LIMIT):
        while True:
            farms = await operator.farms()
            ready = [one for farm in farms for one in farm.workers if one.state == "ready"]
            if len(ready) == WORKERS:
                return ready
            await asyncio.sleep(0.02)


async def take(url: str, seconds: float, no_ops: int) -> Sample:
    """One sample."""
    os.environ["FARM_URL"] = url
    from farm_jobs import app, nothing, pass_time

    async with app:
        operator = app.operator()
        began = time.monotonic()
        with a_farm(url) as farm:
            workers = [one.pid for one in await ready_workers(operator)]
            up = time.monotonic() - began
            everybody = [farm.pid, *workers]
            await asyncio.sleep(1.0)
            idle = await spent(everybody, asyncio.sleep(seconds))
            memory = max(map(memory_of, workers))
            tickets = await nothing.submit_many([()] * no_ops)
            busy = await spent(everybody, gather(tickets))
            crash = await killed(operator, workers[0], pass_time)
    supervisor, *each = (value * 100 / seconds for value in idle)
    return Sample(up, supervisor, max(each), memory, sum(busy) * 1e6 / no_ops, crash)


async def spent(pids: list[int], work: Any) -> list[float]:
    """Measure the CPU of each process inside a block."""
    before = [cpu_of(pid) for pid in pids]
    await work
    return [cpu_of(pid) - was for pid, was in zip(pids, before, strict=True)]


async def gather(tickets: list[Any]) -> None:
    for ticket in tickets:
        await ticket.result()


async def killed(operator: Any, pid: int, task: Any) -> float:
    """Kill a worker with all its slots busy; return the seconds until all its jobs are done."""
    tickets = await task.submit_many([(RUN_SECONDS,)] * (SLOTS * WORKERS))
    async with asyncio.timeout(LIMIT):
        while True:
            running = sum(pool.running for pool in await operator.pools())
            if running == SLOTS * WORKERS:
                break
            await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    at = time.monotonic()
    await gather(tickets)
    return time.monotonic() - at


def probe(store: str, seconds: float, no_ops: int) -> Sample:
    from private_server import ServerMissing

    try:
        with place(store) as url:
            return asyncio.run(take(url, seconds, no_ops))
    except ServerMissing as missing:
        return Sample(problem=f"not installed: {missing.what}")


HEADER = ("store", "measure", "median", "goal")


def rows(store: str, samples: list[Sample]) -> list[list[str]]:
    """The rows of a store: medians of the repeats."""
    problem = next((one.problem for one in samples if one.problem), "")
    if problem:
        return [[store, problem, "", ""]]

    def line(measure: str, field: str, unit: str, goal: Goal | None) -> list[str]:
        value = median(getattr(one, field) for one in samples)
        return [
            store,
            measure,
            f"{figure(value)} {unit}",
            "" if goal is None else goal.judge(value),
        ]

    return [
        line(f"{WORKERS} workers up", "up", "s", UP_GOAL),
        line("idle supervisor", "supervisor", "% of a core", SUPERVISOR_GOAL),
        line("idle worker, the busier of two", "worker", "% of a core", WORKER_GOAL),
        line("idle worker", "memory", "MB", MEMORY_GOAL),
        line("CPU per no-op job, all three processes", "job", "µs", None),
        line(f"worker killed with {SLOTS} jobs of 1 s: all done", "crash", "s later", CRASH_GOAL),
    ]


def main() -> int:
    """Run, print, write. A missed goal is reported, with exit code 0; a crash has exit code 1."""
    given = arguments(__doc__)
    if given.probe:
        store, seconds, no_ops = given.probe
        print(json.dumps(asdict(probe(store, float(seconds), int(no_ops)))))
        return 0
    amounts = (QUICK_SECONDS, QUICK_NO_OPS) if given.quick else (SECONDS, NO_OPS)
    samples: dict[str, list[Sample]] = {SQLITE: [], POSTGRES: []}

    def take_fresh(store: str) -> Sample:
        show_progress(len(samples[store]) + 1, given.repeats, store)
        return Sample(**fresh(__file__, store, *map(str, amounts)))

    for _ in range(given.repeats):
        taken = sampled(take_fresh, list(samples), given.quick)
        for store, sample in zip(samples, taken, strict=True):
            samples[store].append(sample)
    told = facts(
        farm=f"{WORKERS} workers with {SLOTS} slots each, an app of two tasks",
        repeats=f"{given.repeats}; medians",
    )
    lines = [line for store, taken in samples.items() for line in rows(store, taken)]
    publish(f"# The farm\n\n{told}\n\n{table(HEADER, lines)}\n", given, RESULTS / "farm.md")
    problems = [one.problem for several in samples.values() for one in several]
    return int(any(one and "not installed" not in one for one in problems))


if __name__ == "__main__":
    sys.exit(main())
