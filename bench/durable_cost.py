"""The cost of one stored job: put, taken, done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from durable_cases import (
    AtLeast,
    Case,
    Figures,
    Sample,
    Scale,
    middle,
    problem,
    ratio,
    shown,
)
from durable_floor import batched, one_by_one
from durable_peers import huey, persist_queue

SECTION = "cost"
TITLE = "What a job costs: put, taken, done"
FLOOR = "floor: batches of 100"
STEPS = "sqlite3, one commit per step"
OURS = "poolhand: submit_many"
VERBS = "poolhand: the bare store"
SINGLY = "poolhand: 100 callers of submit"
AWAITED = "poolhand: each result awaited"
MEMORY = "poolhand: memory://"
MEMORY_VERBS = "poolhand: memory://, the bare store"
HUEY, PERSIST_QUEUE = "huey", "persist-queue"
PEERS = (HUEY, PERSIST_QUEUE)
WALL, CPU = ("put_wall", "take_wall"), ("put_cpu", "take_cpu")

FLOOR_GOALS = {
    WALL: AtLeast(0.3, "× the floor's speed, by time"),
    CPU: AtLeast(0.3, "× the floor's speed, by CPU"),
}
STEPS_GOAL = AtLeast(10, "× one commit per step, by time")

Contestant = Callable[[int, str], dict[str, float]]


def ours(way: str, at: str = "", **options: object) -> Contestant:
    """A contestant of poolhand, imported when it runs: a broken one costs only its own row."""

    def run(jobs: int, folder: str) -> dict[str, float]:
        import durable_ours

        measure = getattr(durable_ours, way)
        figures: dict[str, float] = asyncio.run(measure(jobs, at or folder, **options))
        return figures

    return run


app, store = partial(ours, "through_app"), partial(ours, "by_verbs")

# poolhand runs right after the contestant it is compared with, so that noise affects both. The
# second column says what happens to a taken job whose process dies before it is done.
CONTESTANTS: dict[str, tuple[Contestant, str]] = {
    FLOOR: (batched, "stays taken"),
    OURS: (app(), "runs again"),
    STEPS: (one_by_one, "stays taken"),
    SINGLY: (app(singly=True), "runs again"),
    AWAITED: (app(awaited=True), "runs again"),
    VERBS: (store(), "runs again"),
    MEMORY: (app(at="memory://"), "gone, as all else"),
    MEMORY_VERBS: (store(at="memory://"), "gone, as all else"),
    HUEY: (huey, "lost"),
    PERSIST_QUEUE: (persist_queue, "back at the next start"),
}
SLOW = (STEPS, *PEERS)

HEADER = (
    "contestant",
    "put",
    "take + done",
    "wall",
    "× floor",
    "put",
    "take + done",
    "CPU",
    "× floor",
    "a crash between take and done",
    "goal",
)


def cases(scale: Scale) -> list[Case]:
    """Each contestant; fewer jobs for those that commit for every step."""
    return [
        Case(SECTION, name, scale.steps if name in SLOW else scale.jobs) for name in CONTESTANTS
    ]


def take(case: Case, folder: str) -> dict[str, float]:
    return CONTESTANTS[case.contestant][0](case.jobs, folder)


def rows(figures: Figures) -> list[list[str]]:
    """One line per contestant: µs per job."""
    by_name = {case.contestant: samples for case, samples in figures.items()}
    return [_row(name, by_name) for name in by_name]


def _row(name: str, by_name: dict[str, list[Sample]]) -> list[str]:
    samples, floor = by_name[name], by_name.get(FLOOR, [])
    if found := problem(samples):
        return [name, found, *[""] * (len(HEADER) - 2)]
    cells = [name]
    for put_and_take in (WALL, CPU):
        cells += [shown(middle(samples, one), "µs") for one in put_and_take]
        cells += [shown(middle(samples, *put_and_take), "µs")]
        cells += [shown(ratio(samples, floor, *put_and_take))]
    return [*cells, CONTESTANTS[name][1], _goal(by_name) if name == OURS else ""]


def _goal(by_name: dict[str, list[Sample]]) -> str:
    mine = by_name[OURS]
    told = []
    for names, goal in FLOOR_GOALS.items():
        speed = ratio(by_name.get(FLOOR, []), mine, *names)
        told += [] if speed is None else [goal.judge(speed)]
    speed = ratio(by_name.get(STEPS, []), mine, *WALL)
    told += [] if speed is None else [STEPS_GOAL.judge(speed)]
    return "; ".join(told)
