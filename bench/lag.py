"""Benchmark of lag: how late the event loop is while a pool works. See README.md here."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from asyncio import TaskGroup
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from goals import Goal, figure
from machine import commit
from measure import FAILED, LONGEST, last_line

PERIOD = 0.005
CORES = len(os.sched_getaffinity(0))
NO_OPS, BLOCKERS = 100, 50
BLOCKED_FOR = 0.01
COMPUTES_FOR = 0.05
SETTLE = 0.5
SECONDS, QUICK_SECONDS = 10.0, 0.5
QUICK_AT_ONCE = 3
CPU, BLOCKING, NO_OP = "CPU", "blocking", "no-op"
P99_GOAL, MAX_GOAL = Goal(50, "ms, p99"), Goal(50, "ms, max")
RESULTS = Path(__file__).parent / "results"
T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Feed:
    """So many callers, each with one job after the other."""

    kind: str
    callers: int
    call: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Sample:
    """Lateness in ms over a period, and how many jobs a second were done in it."""

    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0
    done: dict[str, float] = field(default_factory=dict)
    problem: str = ""


Load = Callable[[int], AbstractAsyncContextManager[list[Feed]]]


async def no_op() -> None:
    """Finishes without touching the event loop."""


def block() -> None:
    """Waits, as a call over the network does."""
    time.sleep(BLOCKED_FOR)


def compute(rounds: int) -> int:
    """Keeps the interpreter busy."""
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total


def rounds_of(seconds: float) -> int:
    """The number of rounds of `compute` that take so much CPU here."""
    tried = 100_000

    def cost() -> float:
        began = time.process_time()
        compute(tried)
        return time.process_time() - began

    return round(tried * seconds / min(cost() for _ in range(5)))


@asynccontextmanager
async def idle(_: int) -> AsyncIterator[list[Feed]]:
    """Only the timer."""
    yield []


@asynccontextmanager
async def our_no_ops(_: int) -> AsyncIterator[list[Feed]]:
    """As many async jobs as the loop can run."""
    from poolhand import Pool

    async with Pool("bench", max_concurrent=NO_OPS) as pool:
        yield [Feed(NO_OP, NO_OPS, partial(pool.run, no_op))]


@asynccontextmanager
async def ours(
    rounds: int, computing: str | None = None, blocking: bool = False
) -> AsyncIterator[list[Feed]]:
    """One pool: CPU jobs in processes or threads, blocking jobs in threads, or both."""
    from poolhand import Pool

    callers = (CORES if computing else 0) + (BLOCKERS if blocking else 0)
    async with Pool("bench", max_concurrent=callers) as pool:
        view = pool.with_options(run_in=computing)
        feeds = [Feed(CPU, CORES, partial(view.run, compute, rounds))] if computing else []
        feeds += [Feed(BLOCKING, BLOCKERS, partial(pool.run, block))] if blocking else []
        yield feeds


@asynccontextmanager
async def to_thread(
    rounds: int, computing: bool = False, blocking: bool = False
) -> AsyncIterator[list[Feed]]:
    """`asyncio.to_thread`, with a thread for each caller."""
    executor = ThreadPoolExecutor(CORES + BLOCKERS)
    asyncio.get_running_loop().set_default_executor(executor)
    feeds = [Feed(CPU, CORES, partial(asyncio.to_thread, compute, rounds))] if computing else []
    feeds += [Feed(BLOCKING, BLOCKERS, partial(asyncio.to_thread, block))] if blocking else []
    yield feeds


@asynccontextmanager
async def executor(rounds: int, blocking: bool = False) -> AsyncIterator[list[Feed]]:
    """A ProcessPoolExecutor; blocking jobs run in threads beside it."""
    loop = asyncio.get_running_loop()
    async with to_thread(rounds, blocking=blocking) as feeds:
        with ProcessPoolExecutor(CORES, get_context("spawn")) as processes:
            call = partial(loop.run_in_executor, processes, compute, rounds)
            yield [Feed(CPU, CORES, call), *feeds]


OURS = "poolhand: process slots"
BOTH = "CPU and blocking jobs together"
COMPUTING = f"CPU jobs of {COMPUTES_FOR * 1e3:.0f} ms, {CORES} at a time"
WAITING = f"blocking jobs of {BLOCKED_FOR * 1e3:.0f} ms, {BLOCKERS} at a time"

# The load, and what runs it.
LOADS: dict[tuple[str, str], Load] = {
    ("nothing", "asyncio alone"): idle,
    (f"async no-ops, {NO_OPS} at a time", "poolhand"): our_no_ops,
    (WAITING, "poolhand: threads"): partial(ours, blocking=True),
    (WAITING, "asyncio.to_thread"): partial(to_thread, blocking=True),
    (COMPUTING, OURS): partial(ours, computing="process"),
    (COMPUTING, "ProcessPoolExecutor"): executor,
    (COMPUTING, "poolhand: threads"): partial(ours, computing="thread"),
    (COMPUTING, "asyncio.to_thread"): partial(to_thread, computing=True),
    (BOTH, OURS): partial(ours, computing="process", blocking=True),
    (BOTH, "ProcessPoolExecutor + to_thread"): partial(executor, blocking=True),
    (BOTH, "asyncio.to_thread"): partial(to_thread, computing=True, blocking=True),
}


async def lateness(seconds: float) -> list[float]:
    """The lateness in seconds of a timer that is due every PERIOD.

    Timers are due at fixed times: a loop that is blocked for 50 ms is late for ten of them, not for
    one.
    """
    loop = asyncio.get_running_loop()
    late: list[float] = []
    began, count = loop.time(), round(seconds / PERIOD)
    over = loop.create_future()

    def tick() -> None:
        now = loop.time()
        while len(late) < count and (due := began + (len(late) + 1) * PERIOD) <= now:
            late.append(now - due)
        if len(late) < count:
            loop.call_at(began + (len(late) + 1) * PERIOD, tick)
        else:
            over.set_result(None)

    tick()
    await over
    return late


async def take(load: Load, seconds: float) -> Sample:
    """One sample, which starts a while after every caller has had a result."""
    done: Counter[str] = Counter()
    stopping = False

    async def keep_calling(feed: Feed) -> None:
        while not stopping:
            await feed.call()
            done[feed.kind] += 1

    async with load(rounds_of(COMPUTES_FOR)) as feeds:
        callers = [feed for feed in feeds for _ in range(feed.callers)]
        await asyncio.gather(*(feed.call() for feed in callers))
        async with TaskGroup() as crowd:
            for feed in callers:
                crowd.create_task(keep_calling(feed))
            await asyncio.sleep(SETTLE)
            done.clear()
            late = sorted(await lateness(seconds))
            rates = {feed.kind: done[feed.kind] / seconds for feed in feeds}
            stopping = True
    p50, p99 = (late[int(share * len(late))] * 1e3 for share in (0.50, 0.99))
    return Sample(p50, p99, late[-1] * 1e3, rates)


def fresh(script: str, *words: str) -> dict[str, Any]:
    """The output of a fresh process of this script; a process that fails or hangs is a problem."""
    command = [sys.executable, script, "--probe", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return {"problem": f"{FAILED}: no answer within {LONGEST:.0f} s"}
    if done.returncode:
        sys.stderr.write(done.stderr)
        return {"problem": f"{FAILED}: {last_line(done.stderr)}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def sampled(take: Callable[[T], S], cases: Sequence[T], quick: bool) -> list[S]:
    """One sample of each, one by one; a quick run has shorter time limits."""
    with ThreadPoolExecutor(QUICK_AT_ONCE if quick else 1) as threads:
        return list(threads.map(take, cases))


def show_progress(number: int, total: int, what: str) -> None:
    """One line on a terminal, overwritten each time; one line per sample elsewhere."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"[{number}/{total}] {what}".ljust(79), end=end, file=sys.stderr, flush=True)


def facts(**more: str) -> str:
    """The environment of the measurement."""
    known = {
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "cores": f"{CORES} ({platform.machine()}, {platform.system()})",
        "load at the end": f"{os.getloadavg()[0]:.1f}",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit(),
        **more,
    }
    return "\n".join(f"- {name}: {fact}" for name, fact in known.items())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that also reads well as plain text."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in (header, *rows)]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def arguments(description: str | None) -> argparse.Namespace:
    """The command line of the small benchmarks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="little work, once: a smoke test")
    parser.add_argument("--repeats", type=int, help="samples per figure (default: 3)")
    parser.add_argument("--output", type=Path, help="file for the table")
    parser.add_argument("--probe", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    return given


def publish(text: str, given: argparse.Namespace, stored: Path) -> None:
    """Print; only a complete run replaces the stored results unless a file is named."""
    print(text, end="")
    if output := given.output or (None if given.quick else stored):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")


def row(name: tuple[str, str], samples: list[Sample]) -> list[str]:
    """One row: medians of the repeats, and the maximum of all."""
    problem = next((sample.problem for sample in samples if sample.problem), "")
    if problem:
        return [*name, problem, "", "", "", ""]
    p50, p99 = median(one.p50 for one in samples), median(one.p99 for one in samples)
    most = max(one.most for one in samples)
    kinds = samples[0].done
    done = {kind: median(one.done.get(kind, 0.0) for one in samples) for kind in kinds}
    goal = f"{P99_GOAL.judge(p99)}; {MAX_GOAL.judge(most)}" if name == (BOTH, OURS) else ""
    return [
        *name,
        *(f"{figure(value)} ms" for value in (p50, p99, most)),
        ", ".join(f"{rate:,.0f} {kind}" for kind, rate in done.items()),
        goal,
    ]


HEADER = ("while", "by", "late: p50", "p99", "max", "jobs a second", "goal")


def main() -> int:
    """Run, print, write. A missed goal is reported, with exit code 0; a crash has exit code 1."""
    given = arguments(__doc__)
    seconds = QUICK_SECONDS if given.quick else SECONDS
    if given.probe:
        what, by, asked = given.probe
        print(json.dumps(asdict(asyncio.run(take(LOADS[what, by], float(asked))))))
        return 0
    samples: dict[tuple[str, str], list[Sample]] = {name: [] for name in LOADS}
    numbers = count(1)

    def take_fresh(name: tuple[str, str]) -> Sample:
        show_progress(next(numbers), given.repeats * len(LOADS), ": ".join(name))
        return Sample(**fresh(__file__, *name, str(seconds)))

    for _ in range(given.repeats):
        for name, sample in zip(LOADS, sampled(take_fresh, list(LOADS), given.quick), strict=True):
            samples[name].append(sample)
    rows = [row(name, taken) for name, taken in samples.items()]
    told = facts(
        timer=f"due every {PERIOD * 1e3:.0f} ms for {seconds:g} s",
        repeats=f"{given.repeats}; p50 and p99 are medians, max is the largest",
    )
    text = f"# Lag of the event loop\n\n{told}\n\n{table(HEADER, rows)}\n"
    publish(text, given, RESULTS / "lag.md")
    return int(any(one.problem for taken in samples.values() for one in taken))


if __name__ == "__main__":
    sys.exit(main())
