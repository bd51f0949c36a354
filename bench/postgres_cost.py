"""The cost of one job in PostgreSQL: submitting many, and a worker that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Protocol

from durable_cases import (
    MICRO,
    AtLeast,
    Case,
    Figures,
    Sample,
    Scale,
    Span,
    middle,
    problem,
    ratio,
    shown,
)
from goals import Goal

SUBMIT_SECTION, SUBMIT_TITLE = "submit", "What it costs to submit many"
COST_SECTION, COST_TITLE = "cost", "What a job costs its worker: taken, run, done"
WARM_UP = 500
ON_UVLOOP = ", uvloop"

INSERT, COPY, AT_ONCE = "floor: one INSERT", "COPY", "poolhand: submit_many"
BY_HUNDREDS, SINGLY = "poolhand: submit_many by hundreds", "poolhand: 100 callers of submit"
FLOOR, OURS, OURS_ON_UVLOOP = "floor: batches of 100", "poolhand", f"poolhand{ON_UVLOOP}"
AWAITED, BARE = "poolhand: each result awaited", "poolhand: the bare store"
PGQUEUER, UNBOUNDED, PROCRASTINATE = "pgqueuer", "pgqueuer, without a bound", "procrastinate"
PGQUEUER_ON_UVLOOP, UNBOUNDED_ON_UVLOOP = f"{PGQUEUER}{ON_UVLOOP}", f"{UNBOUNDED}{ON_UVLOOP}"
PEERS = (PGQUEUER, UNBOUNDED, PGQUEUER_ON_UVLOOP, UNBOUNDED_ON_UVLOOP, PROCRASTINATE)


class Queue(Protocol):
    """One contestant in a database of its own."""

    async def put(self, count: int) -> None: ...

    async def drain(self, count: int) -> Span:
        """Run the jobs; time from the start of the first job until every outcome is written."""
        ...

    async def done(self) -> int:
        """The number of finished jobs."""
        ...


Contestant = Callable[[str], AbstractAsyncContextManager[Queue]]


def late(module: str, name: str, **options: object) -> Contestant:
    """A contestant that is imported when it runs: a missing one costs only its own row."""

    def opened(url: str) -> AbstractAsyncContextManager[Queue]:
        queue: AbstractAsyncContextManager[Queue] = getattr(import_module(module), name)(
            url, **options
        )
        return queue

    return opened


SUBMITTERS: dict[str, Contestant] = {
    INSERT: late("postgres_floor", "floor"),
    AT_ONCE: late("postgres_ours", "ours"),
    COPY: late("postgres_floor", "copying"),
    BY_HUNDREDS: late("postgres_ours", "ours", put="put_many"),
    SINGLY: late("postgres_ours", "ours", put="put_singly"),
    PGQUEUER: late("postgres_peers", "pgqueuer"),
    PROCRASTINATE: late("postgres_peers", "procrastinate"),
}
# poolhand runs beside the contestants it is compared with, so that noise affects both. The second
# column says what happens to a taken job whose process dies before it is done.
WORKERS: dict[str, tuple[Contestant, str]] = {
    FLOOR: (late("postgres_floor", "floor"), "stays taken"),
    PROCRASTINATE: (late("postgres_peers", "procrastinate"), "stays taken, and can be found"),
    PGQUEUER: (late("postgres_peers", "pgqueuer"), "runs again"),
    OURS: (late("postgres_ours", "ours"), "runs again"),
    UNBOUNDED: (late("postgres_peers", "pgqueuer", bounded=False), "runs again"),
    PGQUEUER_ON_UVLOOP: (late("postgres_peers", "pgqueuer"), "runs again"),
    OURS_ON_UVLOOP: (late("postgres_ours", "ours"), "runs again"),
    UNBOUNDED_ON_UVLOOP: (late("postgres_peers", "pgqueuer", bounded=False), "runs again"),
    AWAITED: (late("postgres_ours", "ours", awaited=True), "runs again"),
    BARE: (late("postgres_ours", "bare_store"), "runs again"),
}

PUT, TAKE = ("put_wall", "put_cpu"), ("take_wall", "take_cpu")
SUBMIT_GOAL = Goal(4, "× the floor, by time")
CPU_GOAL = Goal(1, "× the CPU of pgqueuer at its best")
RATE_GOAL = AtLeast(1, "× the rate of pgqueuer at its best")
PROCRASTINATE_GOAL = AtLeast(10, "× the rate of procrastinate")
RIVALS = {
    OURS: (PGQUEUER, UNBOUNDED),
    OURS_ON_UVLOOP: (PGQUEUER_ON_UVLOOP, UNBOUNDED_ON_UVLOOP),
}

SUBMIT_HEADER = ("contestant", "wall", "× floor", "CPU", "× floor", "goal")
COST_HEADER = (
    "contestant",
    "jobs a second",
    "wall",
    "× floor",
    "CPU of the worker",
    "× floor",
    "CPU of the server",
    "a crash between take and done",
    "goal",
)


def submit_cases(scale: Scale) -> list[Case]:
    return [Case(SUBMIT_SECTION, name, scale.jobs) for name in SUBMITTERS]


def cost_cases(scale: Scale) -> list[Case]:
    """Each contestant; fewer jobs for the one that writes each job by itself."""
    return [
        Case(COST_SECTION, name, scale.slow if name == PROCRASTINATE else scale.jobs)
        for name in WORKERS
    ]


def take_submit(case: Case, url: str) -> dict[str, float]:
    return asyncio.run(_submit(SUBMITTERS[case.contestant], case.jobs, url))


async def _submit(contestant: Contestant, jobs: int, url: str) -> dict[str, float]:
    span = Span()
    async with contestant(url) as queue:
        await queue.put(WARM_UP)
        with span.timed():
            await queue.put(jobs)
    return span.per(jobs, "put")


def take_cost(case: Case, url: str) -> dict[str, float]:
    if case.contestant.endswith(ON_UVLOOP):
        import uvloop

        # By policy: poolhand has a loop on another thread as well.
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    contestant, _ = WORKERS[case.contestant]
    return asyncio.run(_cost(contestant, case.jobs, url))


async def _cost(contestant: Contestant, jobs: int, url: str) -> dict[str, float]:
    from postgres_server import server_cpu

    warm_up = min(WARM_UP, jobs)
    async with contestant(url) as queue:
        await queue.put(warm_up)
        await queue.drain(warm_up)
        await queue.put(jobs)
        async with server_cpu(url) as served:
            span = await queue.drain(jobs)
        assert await queue.done() == warm_up + jobs
    return {**span.per(jobs, "take"), **served.per(jobs)}


def submit_rows(figures: Figures) -> list[list[str]]:
    """µs per job."""
    by_name = {case.contestant: samples for case, samples in figures.items()}
    return [_submit_row(name, by_name) for name in by_name]


def _submit_row(name: str, by_name: dict[str, list[Sample]]) -> list[str]:
    samples = by_name[name]
    if found := problem(samples):
        return [name, found, *[""] * (len(SUBMIT_HEADER) - 2)]
    by_time, by_cpu = (ratio(samples, by_name.get(INSERT, []), kind) for kind in PUT)
    wall, cpu = (shown(middle(samples, kind), "µs") for kind in PUT)
    goal = "" if name != AT_ONCE or by_time is None else SUBMIT_GOAL.judge(by_time)
    return [name, wall, shown(by_time), cpu, shown(by_cpu), goal]


def cost_rows(figures: Figures) -> list[list[str]]:
    """µs per job, which are milliseconds for 1,000 jobs."""
    by_name = {case.contestant: samples for case, samples in figures.items()}
    return [_cost_row(name, by_name) for name in by_name]


def _cost_row(name: str, by_name: dict[str, list[Sample]]) -> list[str]:
    samples, floor = by_name[name], by_name.get(FLOOR, [])
    if found := problem(samples):
        return [name, found, *[""] * (len(COST_HEADER) - 2)]
    cells = [name, f"{MICRO / middle(samples, 'take_wall'):,.0f}"]
    for kind in TAKE:
        cells += [shown(middle(samples, kind), "µs"), shown(ratio(samples, floor, kind))]
    seen = all("server_cpu" in one.figures for one in samples)
    cells += [shown(middle(samples, "server_cpu"), "µs") if seen else "not seen"]
    return [*cells, WORKERS[name][1], "; ".join(_goals(name, by_name))]


def _goals(name: str, by_name: dict[str, list[Sample]]) -> Iterator[str]:
    """Compare with the peers on the same loop, within one repeat."""
    mine = by_name[name]
    rival = _best([by_name.get(one, []) for one in RIVALS.get(name, ())])
    if (cpu := ratio(mine, rival, "take_cpu")) is not None:
        yield CPU_GOAL.judge(cpu)
    if (speed := ratio(rival, mine, "take_wall")) is not None:
        yield RATE_GOAL.judge(speed)
    if name == OURS:
        speed = ratio(by_name.get(PROCRASTINATE, []), mine, "take_wall")
        yield from [] if speed is None else [PROCRASTINATE_GOAL.judge(speed)]


def _best(ways: list[list[Sample]]) -> list[Sample]:
    """The least time and the least CPU of several contestants in each repeat."""
    sound = [samples for samples in ways if samples and not problem(samples)]
    repeats = zip(*sound, strict=False)
    return [
        Sample({kind: min(one.figures[kind] for one in few) for kind in TAKE}) for few in repeats
    ]
