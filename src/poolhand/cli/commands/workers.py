"""`poolhand workers`: list workers; drain, restart and rescale their farms."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, TypeVar

import typer

from poolhand.cli import options, screen
from poolhand.cli.session import Exit, fail, operate
from poolhand.farm.records import (
    ControlAnswer,
    FarmRecord,
    FinishedJob,
    RunningJob,
    Snapshot,
    WorkerRecord,
)
from poolhand.operate.actions import Operator
from poolhand.operate.farms import LoneWorker, WorkersView, parts_of, silence_text
from poolhand.operate.format import fault_text, many, moment, short_duration, size
from poolhand.operate.tables import signal_age
from poolhand.rules.scaling.worker_count import held_text

T = TypeVar("T")

commands = options.Commands(
    no_args_is_help=True, help="List workers; drain, restart and rescale their farms."
)

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
UNKNOWN = "unknown"  # the state shown for workers of a silent supervisor


@commands.add("list", "poolhand workers list --json")
def list_workers(source: options.Target) -> None:
    """List worker processes with their state and load.

    A worker with the state "alone" was started by an app and belongs to no farm.
    """
    view = operate(source, lambda operator: operator.workers())
    if source.wrote(view):
        return
    screen.table(COLUMNS, list(_rows(view)), SPARE)
    for farm in view.farms:
        screen.to_stderr(f"farm {screen.safe(_standing(farm))}")
    if not view.farms and not view.alone:
        screen.to_stderr("no workers are running; start some with `poolhand work module:app`")


@commands.add(
    "snapshot",
    f"poolhand workers snapshot {A_FARM}",
    f"poolhand workers snapshot {A_FARM}.2 --limit 20",
)
def snapshot(
    id: Either,
    after: Annotated[int, options.number("--after", "N", "Continue after the previous page.")] = 0,
    limit: options.Limit = 100,
    *,
    source: options.Target,
) -> None:
    """Show running and recently finished jobs of a farm or worker."""

    async def look(operator: Operator) -> tuple[ControlAnswer | None, FarmRecord | None]:
        return await operator.snapshot(id, after, limit), await operator.farm(id)

    answer, farm = operate(source, look)
    found = _known(id, answer)
    if not source.wrote(found) and found.snapshot is not None:
        _show(found.snapshot, farm)
    _end(found, silent=source.json or found.snapshot is not None)


@commands.add(
    "drain", f"poolhand workers drain {A_FARM}.2", f"poolhand workers drain {A_FARM} --yes"
)
def drain(
    id: Either,
    by: options.By,
    yes: options.Yes = False,
    *,
    source: options.Target,
) -> None:
    """Drain a farm or a worker: it ends when its jobs have ended.

    The farm replaces a drained worker. A whole farm needs a confirmation, or --yes.
    """
    if parts_of(id) != (id, None):
        _act(id, lambda operator: operator.drain_worker(id, by), source)
        return
    if not yes:
        _confirm(id, source)
    _act(id, lambda operator: operator.drain_farm(id, by), source)


@commands.add("restart", f"poolhand workers restart {A_FARM}")
def restart(farm: Farm, by: options.By, source: options.Target) -> None:
    """Replace all workers of a farm, one after the other.

    Each finishes its running jobs, while a new one has already replaced it.
    """
    _act(farm, lambda operator: operator.restart_farm(farm, by), source)


@commands.add(
    "bounds",
    f"poolhand workers bounds {A_FARM} --min 2 --max 8",
    f"poolhand workers bounds {A_FARM} --max 4",
)
def bounds(
    farm: Farm,
    minimum: options.Least = None,
    maximum: options.Most = None,
    *,
    by: options.By,
    source: options.Target,
) -> None:
    """Set the minimum and maximum number of workers of a farm.

    The numbers hold until the farm ends; a new start uses its own settings again.
    """
    if minimum is None and maximum is None:
        raise fail("give --min, --max or both", Exit.USAGE)
    _act(farm, lambda operator: operator.set_bounds(farm, minimum, maximum, by), source)


def _act(
    id: str,
    act: Callable[[Operator], Awaitable[ControlAnswer | None]],
    source: options.Target,
) -> None:
    """Act on a farm, and write its answer."""
    answer = _known(id, operate(source, act))
    _end(answer, silent=source.wrote(answer))


def _known(id: str, found: T | None) -> T:
    if found is None:
        text = f"there is no farm or worker {id!r}; see `poolhand workers list`"
        raise fail(text, Exit.NOT_FOUND)
    return found


def _end(answer: ControlAnswer, silent: bool) -> None:
    """Write a farm's answer; exit with the matching code."""
    if answer.done:
        if not silent:
            screen.line(screen.safe(answer.text))
        return
    if silent:
        raise typer.Exit(Exit.REFUSED)
    raise fail(answer.text, Exit.REFUSED)


def _confirm(id: str, source: options.Source) -> None:
    """Ask for confirmation to end a whole farm; without a terminal --yes is required."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise fail("this stops a whole farm; give --yes to do it", Exit.USAGE)
    farm = _known(id, operate(source, lambda operator: operator.farm(id)))
    screen.to_stderr(f"farm {screen.safe(_standing(farm))}")
    if not typer.confirm("Stop it after its running jobs have finished?", err=True):
        raise fail("nothing was done", Exit.REFUSED)


def _rows(view: WorkersView) -> Iterator[Row]:
    for farm in view.farms:
        for worker in farm.workers:
            yield _worker_row(farm, worker)
        if not farm.workers:
            uptime = short_duration((farm.written_at - farm.started_at).total_seconds())
            counts = (farm.completed, farm.failed, uptime, None, None)
            state = UNKNOWN if farm.is_silent else farm.state
            yield (None, farm.id, _host(farm.host), farm.pid, state, None, *counts)
    for lone in view.alone:
        yield _lone_row(lone)


def _worker_row(farm: FarmRecord, worker: WorkerRecord) -> Row:
    # Both times are of the farm's clock: this machine's may differ.
    up = short_duration((farm.written_at - worker.started_at).total_seconds())
    load = (f"{worker.active}/{worker.slots}", worker.completed, worker.failed, up)
    heard = f"{signal_age(farm, worker):.1f} s ago"
    which = (worker.id, farm.id, _host(farm.host), worker.pid, _state(farm, worker))
    return (*which, *load, size(worker.memory), heard)


def _state(farm: FarmRecord, worker: WorkerRecord) -> str:
    if farm.is_silent:
        return UNKNOWN
    if worker.leaving_at is None:
        return worker.state
    return f"{worker.state} {short_duration((farm.written_at - worker.leaving_at).total_seconds())}"


def _lone_row(lone: LoneWorker) -> Row:
    nothing = (None,) * 5
    return (lone.id, None, _host(lone.host), lone.pid, "alone", lone.holds, *nothing)


def _host(host: str) -> str:
    """Return the host name without the suffix that distinguishes containers."""
    return host.partition("/")[0]


def _standing(farm: FarmRecord) -> str:
    """Return the state of a farm in one line."""
    if farm.is_silent:
        return f"{farm.id} ({farm.app}): {silence_text(farm)}"
    external = ", external" if farm.external else ""
    trouble = ""
    if farm.troubles:
        newest = max(farm.troubles, key=lambda one: one.at)
        # Both times are of the farm's clock.
        ago = short_duration((farm.written_at - newest.at).total_seconds())
        trouble = f"; last trouble, {ago} ago: {newest.text}"
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
            worker = f"{trouble.worker}: " if trouble.worker else ""
            at = moment(trouble.at)
            screen.to_stderr(f"trouble at {at}: {screen.safe(f'{worker}{trouble.text}')}")
    screen.end_page(found.after, bool(found.running or found.finished), "no jobs yet")


def _running(job: RunningJob) -> Row:
    return (job.id, job.pool, job.name, "running", None, job.since, None, None, job.mark)


def _finished(job: FinishedJob) -> Row:
    ends = (job.status, job.attempts, job.at, job.ran, job.worker, fault_text(job.error))
    return (job.id, job.pool, job.name, *ends)
