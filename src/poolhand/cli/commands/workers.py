"""`poolhand workers`: list workers; drain, restart and rescale their farms."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, TypeVar

import typer

from poolhand.cli import exits, options, screen
from poolhand.cli.session import fail, operate
from poolhand.farm.records import (
    ControlAnswer,
    FarmRecord,
    FinishedJob,
    RunningJob,
    Snapshot,
    WorkerRecord,
)
from poolhand.operate.actions import Operator
from poolhand.operate.arguments import LAST
from poolhand.operate.doctor.finding import many
from poolhand.operate.farms import LoneWorker, WorkersView, parts_of, silence_text
from poolhand.rules.scaling.worker_count import held_text

T = TypeVar("T")

commands = typer.Typer(no_args_is_help=True, help="See who runs jobs, and steer their farms.")

Farm = Annotated[str, typer.Argument(metavar="FARM", help="The id of a farm.")]
Either = Annotated[str, typer.Argument(metavar="ID", help="The id of a farm, or of a worker.")]
Row = tuple[object, ...]

COLUMNS = (
    "id", "farm", "host", "pid", "state", "active", "ok", "failed", "uptime", "memory", "signal",
)  # fmt: skip
SPARE = ("farm", "host", "uptime", "memory", "pid")
JOBS = ("job", "pool", "name", "status", "tries", "at", "ran", "worker", "note")
SPARE_OF_JOBS = ("tries", "pool", "at", "worker")
A_FARM = "box-1a2b3c"
MB = 1_000_000
UNKNOWN = "unknown"  # the state shown for workers of a silent supervisor


@commands.command("list", epilog=options.examples("poolhand workers list --json"))
def list_workers(
    json: options.Json = False, store: options.Store = None, app: options.App = None
) -> None:
    """List worker processes: what they do, and how they fare.

    One that is "alone" was started by an app, and no farm looks after it.
    """
    view = operate(store, app, lambda operator: operator.workers())
    if json:
        screen.as_json(view)
        return
    screen.table(COLUMNS, list(_rows(view)), SPARE)
    for farm in view.farms:
        screen.aside(f"farm {screen.safe(_standing(farm))}")
    if not view.farms and not view.alone:
        screen.aside("no workers are running; start some with `poolhand work module:app`")


@commands.command(
    epilog=options.examples(
        f"poolhand workers snapshot {A_FARM}", f"poolhand workers snapshot {A_FARM}.2 --limit 20"
    )
)
def snapshot(
    id: Either,
    after: Annotated[
        int,
        typer.Option("--after", min=0, max=LAST, metavar="N", help="Go on behind the page before."),
    ] = 0,
    limit: options.Limit = 100,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Show what a farm or a worker runs and has lately finished."""

    async def look(operator: Operator) -> tuple[ControlAnswer | None, FarmRecord | None]:
        return await operator.snapshot(id, after, limit), await operator.farm(id)

    answer, farm = operate(store, app, look)
    found = _known(id, answer)
    if json:
        screen.as_json(found)
    elif found.snapshot is not None:
        _show(found.snapshot, farm)
    _end(found, silent=json or found.snapshot is not None)


@commands.command(
    epilog=options.examples(
        f"poolhand workers drain {A_FARM}.2", f"poolhand workers drain {A_FARM} --yes"
    )
)
def drain(
    id: Either,
    by: options.By,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, the whole farm.")] = False,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """End a farm, or replace a worker, when its jobs are finished.

    To end a farm needs --yes; on a terminal you are asked.
    """
    if parts_of(id) != (id, None):
        _act(id, lambda operator: operator.drain_worker(id, by), json, store, app)
        return
    if not yes:
        _ask(id, store, app)
    _act(id, lambda operator: operator.drain_farm(id, by), json, store, app)


@commands.command(epilog=options.examples(f"poolhand workers restart {A_FARM}"))
def restart(
    farm: Farm,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Replace all workers of a farm, one after the other.

    Each finishes what it runs first; a new one has taken its place by then.
    """
    _act(farm, lambda operator: operator.restart_farm(farm, by), json, store, app)


@commands.command(
    epilog=options.examples(
        f"poolhand workers bounds {A_FARM} --min 2 --max 8",
        f"poolhand workers bounds {A_FARM} --max 4",
    )
)
def bounds(
    farm: Farm,
    minimum: Annotated[
        int | None, typer.Option("--min", metavar="N", help="Workers there always are.")
    ] = None,
    maximum: Annotated[
        int | None, typer.Option("--max", metavar="N", help="Workers there are at most.")
    ] = None,
    *,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Change how many workers a farm may have.

    The numbers hold until the farm ends; where it is started, others may be set.
    """
    if minimum is None and maximum is None:
        raise fail("give --min, --max or both", exits.USAGE)
    _act(farm, lambda operator: operator.set_bounds(farm, minimum, maximum, by), json, store, app)


def _act(
    id: str,
    act: Callable[[Operator], Awaitable[ControlAnswer | None]],
    json: bool,
    store: str | None,
    app: str | None,
) -> None:
    """Act on a farm, and write its answer."""
    answer = _known(id, operate(store, app, act))
    if json:
        screen.as_json(answer)
    _end(answer, silent=json)


def _known(id: str, found: T | None) -> T:
    if found is None:
        text = f"there is no farm of {id!r}; see `poolhand workers list`"
        raise fail(text, exits.NOT_FOUND)
    return found


def _end(answer: ControlAnswer, silent: bool) -> None:
    """Write a farm's answer; exit with the matching code."""
    if answer.done:
        if not silent:
            screen.line(screen.safe(answer.text))
        return
    if silent:
        raise typer.Exit(exits.REFUSED)
    raise fail(answer.text, exits.REFUSED)


def _ask(id: str, store: str | None, app: str | None) -> None:
    """Ask for confirmation to end a whole farm; without a terminal --yes is required."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise fail("this ends a whole farm; give --yes", exits.USAGE)
    farm = _known(id, operate(store, app, lambda operator: operator.farm(id)))
    screen.aside(f"farm {screen.safe(_standing(farm))}")
    if not typer.confirm("End it when what runs is finished?", err=True):
        raise fail("nothing was done", exits.REFUSED)


def _rows(view: WorkersView) -> Iterator[Row]:
    for farm in view.farms:
        for worker in farm.workers:
            yield _worker_row(farm, worker)
        if not farm.workers:
            uptime = _span((farm.written_at - farm.started_at).total_seconds())
            counts = (farm.completed, farm.failed, uptime, None, None)
            state = UNKNOWN if farm.is_silent else farm.state
            yield (None, farm.id, _host(farm.host), farm.pid, state, None, *counts)
    for lone in view.alone:
        yield _lone_row(lone)


def _worker_row(farm: FarmRecord, worker: WorkerRecord) -> Row:
    return (
        worker.id,
        farm.id,
        _host(farm.host),
        worker.pid,
        _state(farm, worker),
        f"{worker.active}/{worker.slots}",
        worker.completed,
        worker.failed,
        # Both times are of the farm's clock: this machine's may differ.
        _span((farm.written_at - worker.started_at).total_seconds()),
        f"{worker.memory / MB:,.0f} MB" if worker.memory else None,
        f"{worker.heard:.1f} s ago",
    )


def _state(farm: FarmRecord, worker: WorkerRecord) -> str:
    if farm.is_silent:
        return UNKNOWN
    if worker.leaving_at is None:
        return worker.state
    return f"{worker.state} {_span((farm.written_at - worker.leaving_at).total_seconds())}"


def _lone_row(lone: LoneWorker) -> Row:
    nothing = (None,) * 5
    return (lone.id, None, _host(lone.host), lone.pid, "alone", lone.holds, *nothing)


def _host(host: str) -> str:
    """Return the host name without the suffix that distinguishes containers."""
    return host.partition("/")[0]


def _span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}m"
    return f"{minutes}m {whole % 60}s" if minutes else f"{whole}s"


def _standing(farm: FarmRecord) -> str:
    """Return the state of a farm in one line."""
    if farm.is_silent:
        return f"{farm.id} ({farm.app}): {silence_text(farm)}"
    external = ", external" if farm.external else ""
    trouble = ""
    if farm.troubles:
        trouble = f"; last trouble: {max(farm.troubles, key=lambda one: one.at).text}"
    return (
        f"{farm.id} ({farm.app}): {farm.state}, {many(farm.wanted, 'worker')} wanted "
        f"({farm.minimum} to {farm.maximum}{external}); {many(farm.demand, 'job')} for "
        f"{many(farm.capacity, 'slot')}, {farm.queued} of them queued{_held(farm)}{trouble}"
    )


def _held(farm: FarmRecord) -> str:
    """Return why wanted workers are not started yet, if leaving ones take their places."""
    if not farm.held:
        return ""
    leaving = sum(worker.leaving_at is not None for worker in farm.workers)
    return f"; {held_text(farm.maximum, farm.surge, farm.held, leaving)}"


def _show(found: Snapshot, farm: FarmRecord | None) -> None:
    running = [_running(job) for job in found.running]
    screen.table(JOBS, [*running, *map(_finished, found.finished)], SPARE_OF_JOBS)
    if farm is not None:
        for trouble in farm.troubles:
            who = f"{trouble.worker}: " if trouble.worker else ""
            at = screen.shown(trouble.at)
            screen.aside(f"trouble at {at}: {screen.safe(f'{who}{trouble.text}')}")
    if found.after is not None:
        screen.aside(f"there are more: --after {found.after}")
    elif not found.running and not found.finished:
        screen.aside("no jobs yet")


def _running(job: RunningJob) -> Row:
    return (job.id, job.pool, job.name, "running", None, job.since, None, None, job.mark)


def _finished(job: FinishedJob) -> Row:
    error = None if job.error is None else f"{job.error.type}: {job.error.message}"
    ends = (job.status, job.attempts, job.at, job.ran, job.worker, error)
    return (job.id, job.pool, job.name, *ends)
