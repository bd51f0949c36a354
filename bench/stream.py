"""Benchmark of streams: the cost of many events for their loop and their store. See README.md."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from goals import Goal, figure
from lag import RESULTS, arguments, facts, fresh, lateness, publish, show_progress, table

JOBS = 50
RATE = 1000  # chunks a second, of all jobs together
CHUNK = "a few words of an answer "
SECONDS, QUICK_SECONDS = 10.0, 1.0
SETTLE = 0.5
P99_GOAL, MAX_GOAL = Goal(50, "ms, p99"), Goal(50, "ms, max")
SQLITE, POSTGRES = "SQLite", "PostgreSQL"
ALONE, READ = "nobody reads", "each job has a reader"
CASES = [(store, who) for store in (SQLITE, POSTGRES) for who in (ALONE, READ)]


@dataclass(frozen=True, slots=True)
class Sample:
    """Lateness of the loop in ms, chunks a second, chunks per write, µs of CPU per chunk."""

    p99: float = 0.0
    most: float = 0.0
    rate: float = 0.0
    to_a_write: float = 0.0
    cpu: float = 0.0
    problem: str = ""


@contextmanager
def place(store: str) -> Iterator[str]:
    """A store for one sample."""
    if store == SQLITE:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/jobs.db"
        return
    from private_server import PostgresServer

    with PostgresServer() as server:
        yield server.url


async def take(url: str, read: bool, seconds: float) -> Sample:
    """One sample: all jobs stream for so long, each at its share of the rate."""
    from poolhand import App, emit

    app = App(url)
    over = asyncio.Event()
    told = writes = 0

    @app.task(name="stream")
    async def stream() -> None:
        nonlocal told
        while not over.is_set():
            await emit(CHUNK)
            told += 1
            await asyncio.sleep(JOBS / RATE)

    async def follow(ticket: Any) -> int:
        return len([event async for event in ticket.events()])

    async with app, app.worker(slots=JOBS):
        connection = await app.core.connection()
        append = connection.store.append

        async def counted(lines: Any) -> Any:
            nonlocal writes
            writes += 1
            return await append(lines)

        connection.store.append = counted  # type: ignore[method-assign]
        tickets = [await stream.submit() for _ in range(JOBS)]
        readers = [asyncio.create_task(follow(one)) for one in tickets] if read else []
        await asyncio.sleep(SETTLE)
        told = writes = 0
        began = time.process_time()
        late = sorted(await lateness(seconds))
        figures = (told / seconds, told / max(1, writes), (time.process_time() - began) / told)
        over.set()
        await asyncio.gather(*tickets, *readers)
    rate, to_a_write, cpu = figures
    p99 = late[int(0.99 * len(late))] * 1e3
    return Sample(p99, late[-1] * 1e3, rate, to_a_write, cpu * 1e6)


def probe(store: str, who: str, seconds: float) -> Sample:
    from private_server import ServerMissing

    try:
        with place(store) as url:
            return asyncio.run(take(url, who == READ, seconds))
    except ServerMissing as missing:
        return Sample(problem=f"not installed: {missing.what}")


def row(name: tuple[str, str], samples: list[Sample]) -> list[str]:
    """One row: medians of the repeats, and the maximum of all."""
    problem = next((one.problem for one in samples if one.problem), "")
    if problem:
        return [*name, problem, *[""] * (len(HEADER) - 3)]
    p99, most = median(one.p99 for one in samples), max(one.most for one in samples)
    return [
        *name,
        f"{median(one.rate for one in samples):,.0f}",
        figure(median(one.to_a_write for one in samples)),
        f"{figure(median(one.cpu for one in samples))} µs",
        *(f"{figure(value)} ms" for value in (p99, most)),
        f"{P99_GOAL.judge(p99)}; {MAX_GOAL.judge(most)}",
    ]


HEADER = (
    "store",
    "readers",
    "chunks a second",
    "chunks to a write",
    "CPU per chunk",
    "late: p99",
    "max",
    "goal",
)


def main() -> int:
    """Run, print, write. A missed goal is reported, with exit code 0; a crash has exit code 1."""
    given = arguments(__doc__)
    seconds = QUICK_SECONDS if given.quick else SECONDS
    if given.probe:
        store, who, asked = given.probe
        print(json.dumps(asdict(probe(store, who, float(asked)))))
        return 0
    samples: dict[tuple[str, str], list[Sample]] = {name: [] for name in CASES}
    for repeat in range(given.repeats):
        for number, name in enumerate(CASES, start=repeat * len(CASES) + 1):
            show_progress(number, given.repeats * len(CASES), ": ".join(name))
            samples[name].append(Sample(**fresh(__file__, *name, str(seconds))))
    told = facts(
        load=f"{JOBS} jobs in one process, {RATE:,} chunks a second of {len(CHUNK)} characters",
        repeats=f"{given.repeats}; medians, max is the largest",
    )
    rows = [row(name, taken) for name, taken in samples.items()]
    publish(f"# Streams\n\n{told}\n\n{table(HEADER, rows)}\n", given, RESULTS / "stream.md")
    taken = [one for several in samples.values() for one in several]
    return int(any(one.problem and "not installed" not in one.problem for one in taken))


if __name__ == "__main__":
    sys.exit(main())
