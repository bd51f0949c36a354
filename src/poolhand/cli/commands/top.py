"""`poolhand top`: farms and jobs, live or printed once; and the summary after a live view."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated

import typer

from poolhand.cli import options, screen
from poolhand.cli.session import Exit, fail, operate
from poolhand.errors import PoolhandError
from poolhand.farm.records import FarmRecord
from poolhand.operate import summary, tables
from poolhand.operate.actions import Operator
from poolhand.operate.farms import WorkersView
from poolhand.operate.format import Column, TableRow, lasting, many
from poolhand.rules.job import Status
from poolhand.runtime import Runtime
from poolhand.tui import LiveView

WITHIN = 2.0  # seconds for reading the jobs left: an unavailable store must not delay the exit
UNKNOWN = "the jobs left could not be read from the store"
LEFT = {
    "queued": "still queued",
    "blocked": "blocked",
    "scheduled": "scheduled",
    "blocked_submitters": "waiting to be accepted",
    "running": "running",
}


async def after_farm(
    operator: Operator, farm: FarmRecord, pools: Collection[str] | None = None
) -> str:
    """Return the summary of a stopped farm, with the jobs left in these pools, or in all."""
    ran = (farm.written_at - farm.started_at).total_seconds()
    done = _done(farm.completed, farm.failed)
    return f"farm {farm.id} ran {lasting(ran)}: {done}; {await _left(operator, pools)}"


class ViewSummary:
    """Counts the work of farms while a view is open; a farm that ends meanwhile is left out."""

    def __init__(self, operator: Operator, now: float) -> None:
        self._operator = operator
        self._since = now
        self._before: dict[str, FarmRecord] = {}

    async def begin(self) -> None:
        """Record the counts of all farms."""
        self._before = {farm.id: farm for farm in await _farms(self._operator)}

    async def end(self, now: float) -> str:
        """Return the summary since `begin`, with the jobs left."""
        completed = failed = 0
        after = await _farms(self._operator)
        for farm in after:
            before = self._before.get(farm.id)
            completed += farm.completed - (0 if before is None else before.completed)
            failed += farm.failed - (0 if before is None else before.failed)
        gone = len(self._before.keys() - {farm.id for farm in after})
        ended = "" if not gone else f", {many(gone, 'farm')} ended"
        done = f"{_done(completed, failed)} in {many(len(after), 'farm')}{ended}"
        if not after and not gone:
            done = "no farm was running"
        return f"watched {lasting(now - self._since)}: {done}; {await _left(self._operator, None)}"


async def _farms(operator: Operator) -> Sequence[FarmRecord]:
    try:
        async with asyncio.timeout(WITHIN):
            return await operator.farms()
    except (PoolhandError, TimeoutError):
        return ()


async def _left(operator: Operator, pools: Collection[str] | None) -> str:
    try:
        async with asyncio.timeout(WITHIN):
            found = await operator.pools()
    except (PoolhandError, TimeoutError):
        return UNKNOWN
    ours = [pool for pool in found if pools is None or pool.name in pools]
    counts = {word: sum(getattr(pool, name) for pool in ours) for name, word in LEFT.items()}
    left = [f"{count:,} {word}" for word, count in counts.items() if count]
    return ", ".join(left) if left else "no jobs left"


def _done(completed: int, failed: int) -> str:
    return f"{many(completed, 'job')} completed, {many(failed, 'attempt')} failed"


NEWEST = 20


commands = options.Commands()


@commands.add(
    "top",
    "poolhand top postgresql://user@host/database",
    "watch -n 5 poolhand top sqlite:///agents.db --inline",
)
def top(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The store, as --store names it.")
    ] = None,
    *,
    inline: Annotated[
        bool, typer.Option("--inline", help="Print the state once, as text.")
    ] = False,
    by: options.By,
    source: options.Source,
) -> None:
    """Show farms, workers, jobs and pools, live.

    Press ? for the keys. The live view needs a terminal and Textual (the extra `tui`); --inline
    needs neither.
    """
    if url is not None and source.store is not None:
        raise fail("give the URL of the store once, as an argument or as --store", Exit.USAGE)
    source = options.Source(url or source.store, source.app)
    if inline:
        operate(source, _picture)
    else:
        operate(source, lambda operator: _watch(operator, by))


async def _watch(operator: Operator, by: str) -> None:
    """Show the live view; SIGTERM ends it and restores the terminal."""
    view = LiveView(operator, by=by)
    clock = Runtime().monotonic
    watched = ViewSummary(operator, clock())
    with suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, view.end)
    await watched.begin()
    await view.run()
    screen.to_stderr(screen.safe(await watched.end(clock())))


async def _picture(operator: Operator) -> None:
    """Write the state of the farms and the newest jobs."""
    workers = await operator.workers()
    page = await operator.jobs(limit=NEWEST)
    counts, pools = await operator.count(), await operator.pools()
    now = Runtime().wall()
    _show_workers(workers, counts, now)
    _show_jobs(tables.job_rows(page, tables.running_in(workers.farms), pools, now))


def _show_workers(workers: WorkersView, counts: Mapping[Status, int], now: datetime) -> None:
    farms = workers.farms
    if farms:
        for text in summary.picture(farms, counts, now):
            screen.line(text)
    else:
        screen.line(summary.NO_FARM)
    found = tables.worker_rows(farms, workers.alone, now)
    if found:
        screen.line("")
        columns = [column.name for column in tables.WORKERS]
        screen.table(columns, [row.cells for row in found], _spare(tables.WORKERS))


def _show_jobs(found: Sequence[TableRow]) -> None:
    screen.line("")
    if not found:
        screen.line("no jobs yet")
        return
    # Put the id first: the first column is never cut.
    order = (1, 0, *range(2, len(tables.JOBS)))
    columns = [tables.JOBS[place].name for place in order]
    screen.table(columns, [[row.cells[place] for place in order] for row in found], SPARE)


def _spare(columns: Sequence[Column]) -> list[str]:
    spared = sorted((one for one in columns if one.spare), key=lambda one: -one.spare)
    return [one.name for one in spared]


SPARE = ("tries", "worker", "took", "pool")
