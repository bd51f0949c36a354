"""How soon a job starts on an idle worker, and the cost of an idle worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from durable_cases import MILLI, SLOTS, Case, Figures, Sample, Scale, middle, problem, shown
from goals import Goal

START_SECTION, START_TITLE = "start", "From submit to start, on an idle worker"
IDLE_SECTION, IDLE_TITLE = "idle", "A worker with nothing to do"
FILE_FLOOR, SERVER_FLOOR = "floor: two commits of sqlite3", "floor: two commits of asyncpg"
HERE, APART, MEMORY = (
    "poolhand: worker in the same process",
    "poolhand: worker in another process",
    "poolhand: memory://",
)
IN_FILES, ON_A_SERVER = (FILE_FLOOR, HERE, APART, MEMORY), (SERVER_FLOOR, HERE, APART)
START_HEADER = ("contestant", "p50", "p99")
IDLE_HEADER = ("contestant", "CPU share", "calls of the store", "busiest loop", "goal")
START_GOAL = Goal(5, "ms, p50")
CPU_GOAL, LOOP_GOAL = Goal(1, "% of a core"), Goal(1, "turns a second")
REST = 0.01  # between two submits, so that the worker is idle again
WARM_UP = 10
# Calls of one loop that follow each other at once count as one turn.
ONE_TURN = 0.1


def start_cases(scale: Scale, contestants: Sequence[str]) -> list[Case]:
    return [Case(START_SECTION, name, scale.starts) for name in contestants]


def take_start(case: Case, where: str) -> dict[str, float]:
    if case.contestant == FILE_FLOOR:
        import durable_floor

        took = durable_floor.starts(case.jobs, where)
    elif case.contestant == SERVER_FLOOR:
        import postgres_floor

        took = asyncio.run(postgres_floor.starts(case.jobs, where))
    else:
        took = asyncio.run(_starts(case, where))
    took.sort()
    return {"p50": took[len(took) // 2], "p99": took[int(0.99 * len(took))]}


async def _starts(case: Case, where: str) -> list[float]:
    from durable_ours import url_of
    from durable_worker import make, workers

    url = url_of("memory://" if case.contestant == MEMORY else where)
    app, tell_when, _ = make(url)
    took = []
    async with app:
        here = app.worker(slots=SLOTS) if case.contestant != APART else workers(url, 1)
        async with here:
            for number in range(WARM_UP + case.jobs):
                await asyncio.sleep(REST)
                began = time.perf_counter()
                started = await (await tell_when.submit(number))
                took.append((started - began) * MILLI)
    return took[WARM_UP:]


def start_rows(figures: Figures) -> list[list[str]]:
    """Milliseconds from the call of submit to the first line of the job."""
    return [
        [case.contestant, found, ""]
        if (found := problem(samples))
        else [
            case.contestant,
            *(shown(middle(samples, name), "ms") for name in ("p50", "p99")),
        ]
        for case, samples in figures.items()
    ]


def judged_start_rows(figures: Figures) -> list[list[str]]:
    """The same with a goal for poolhand."""
    return [
        [*row, "" if case.contestant == SERVER_FLOOR or problem(samples) else _start_goal(samples)]
        for row, (case, samples) in zip(start_rows(figures), figures.items(), strict=True)
    ]


def _start_goal(samples: list[Sample]) -> str:
    return START_GOAL.judge(middle(samples, "p50"))


def idle_cases(scale: Scale) -> list[Case]:
    """`jobs` holds the seconds to watch, in thousandths."""
    return [Case(IDLE_SECTION, "poolhand", round(scale.idle * MILLI))]


def take_idle(case: Case, where: str) -> dict[str, float]:
    return asyncio.run(_idle(case.jobs / MILLI, where))


async def _idle(seconds: float, where: str) -> dict[str, float]:
    from durable_ours import Bench, url_of

    bench = Bench(url_of(where))
    async with bench.app:
        await bench.put_many(SLOTS)
        await bench.drain(SLOTS)
        async with bench.app.worker(slots=SLOTS):
            await asyncio.sleep(1.0)
            asked = Asked((await bench.app.core.connection()).store)
            cpu, wall = time.process_time(), time.perf_counter()
            await asyncio.sleep(seconds)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            return {
                "share": 100 * cpu / wall,
                "calls": asked.calls / wall,
                "turns": asked.turns_a_second(),
            }


class Asked:
    """Counts the calls of a store, by loop of the store thread."""

    def __init__(self, store: Any) -> None:
        from poolhand.contract import Store

        self.calls = 0
        self._turns: dict[str, list[float]] = {}
        for name, verb in vars(Store).items():
            if asyncio.iscoroutinefunction(verb):
                setattr(store, name, self._counted(getattr(store, name)))

    def _counted(
        self, verb: Callable[..., Coroutine[Any, Any, Any]]
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def counted(*args: Any, **options: Any) -> Any:
            task, now = asyncio.current_task(), time.perf_counter()
            loop = "" if task is None else task.get_name()
            turns = self._turns.setdefault(loop, [])
            self.calls += 1
            if not turns or now - turns[-1] > ONE_TURN:
                turns.append(now)
            return await verb(*args, **options)

        return counted

    def turns_a_second(self) -> float:
        """Calls a second of the busiest loop."""
        rates = [
            (len(turns) - 1) / (turns[-1] - turns[0])
            for turns in self._turns.values()
            if len(turns) > 1
        ]
        return max(rates, default=0.0)


def idle_rows(figures: Figures) -> list[list[str]]:
    """Shares of one core, and calls a second."""
    rows = []
    for case, samples in figures.items():
        if found := problem(samples):
            rows.append([case.contestant, found, "", "", ""])
            continue
        share, calls, turns = (middle(samples, name) for name in ("share", "calls", "turns"))
        goal = f"{CPU_GOAL.judge(share)}; {LOOP_GOAL.judge(turns)}"
        cells = [f"{share:.2f} %", f"{calls:.1f} a second", f"{turns:.2f} a second"]
        rows.append([case.contestant, *cells, goal])
    return rows
