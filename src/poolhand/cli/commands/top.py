"""`poolhand top`: farms and jobs, live on the terminal or printed once as text."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated

import typer

from poolhand.cli import exits, options, screen
from poolhand.cli.closing import ViewSummary
from poolhand.cli.session import fail, operate
from poolhand.operate.actions import Operator
from poolhand.operate.farms import WorkersView
from poolhand.rules.job import Status
from poolhand.runtime import Runtime
from poolhand.tui import rows, summary
from poolhand.tui.view import LiveView

NEWEST = 20


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=options.examples(
            "poolhand top postgresql://user@host/database",
            "watch -n 5 poolhand top sqlite:///agents.db --inline",
        )
    )(top)


def top(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The store, as --store names it.")
    ] = None,
    *,
    inline: Annotated[
        bool, typer.Option("--inline", help="Write one picture as text, and end.")
    ] = False,
    by: options.By,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Show farms, workers, jobs and pools, live.

    Keys act on them; ? lists them. It needs a terminal and Textual (the extra `tui`); --inline
    needs neither.
    """
    if url is not None and store is not None:
        raise fail("give the URL of the store once, as an argument or as --store", exits.USAGE)
    if inline:
        operate(url or store, app, _picture)
    else:
        operate(url or store, app, lambda operator: _watch(operator, by))


async def _watch(operator: Operator, by: str) -> None:
    """Show the live view; SIGTERM ends it and restores the terminal."""
    view = LiveView(operator, by=by)
    clock = Runtime().monotonic
    watched = ViewSummary(operator, clock())
    with suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, view.end)
    await watched.begin()
    await view.run()
    screen.aside(screen.safe(await watched.end(clock())))


async def _picture(operator: Operator) -> None:
    """Write the state of the farms and the newest jobs."""
    workers = await operator.workers()
    page = await operator.jobs(limit=NEWEST)
    counts, pools = await operator.count(), await operator.pools()
    now = Runtime().wall()
    _show_workers(workers, counts, now)
    _show_jobs(rows.job_rows(page, rows.running_in(workers.farms), pools, now))


def _show_workers(workers: WorkersView, counts: Mapping[Status, int], now: datetime) -> None:
    farms = workers.farms
    if farms:
        for text in summary.picture(farms, counts, now):
            screen.line(text)
    else:
        screen.line(summary.NO_FARM)
    found = rows.worker_rows(farms, workers.alone, now)
    if found:
        screen.line("")
        columns = [column.name for column in rows.WORKERS]
        screen.table(columns, [row.cells for row in found], _spare(rows.WORKERS))


def _show_jobs(found: Sequence[rows.TableRow]) -> None:
    screen.line("")
    if not found:
        screen.line("no jobs yet")
        return
    # Put the id first: the first column is never cut.
    order = (1, 0, *range(2, len(rows.JOBS)))
    columns = [rows.JOBS[place].name for place in order]
    screen.table(columns, [[row.cells[place] for place in order] for row in found], SPARE)


def _spare(columns: Sequence[rows.Column]) -> list[str]:
    spared = sorted((one for one in columns if one.spare), key=lambda one: -one.spare)
    return [one.name for one in spared]


SPARE = ("tries", "worker", "took", "pool")
