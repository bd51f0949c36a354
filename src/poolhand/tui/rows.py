"""Rows: what stands in the tables of the live view, made from records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from poolhand.farm.roster import FarmRecord, FarmState, RunningJob, WorkerRecord, WorkerState
from poolhand.operate.farms import LoneWorker
from poolhand.operate.showing import safe
from poolhand.operate.views import JobView, PoolView
from poolhand.rules.job import Status
from poolhand.tui.words import NOTHING, lasting, size

SILENT = 3.0  # seconds without a sign of life after which a worker is called silent
LEAST_OF_LAST = 16
ID_END = 3
GAP = 2  # what a table leaves between two columns


class Column(Struct, frozen=True):
    """A column: no wider than `most`; of those that can be spared, the highest number goes first.

    It gives way down to `least`. Of an id that is too long the middle is left out: the beginning
    says when it was made, the end counts. The last column is never spared.
    """

    name: str
    most: int = 12
    least: int = 4
    spare: int = 0
    is_id: bool = False


class Row(Struct, frozen=True):
    """A row under a key that no other row of its table has; `style` is that of its state."""

    key: str
    cells: tuple[str, ...]
    style: str = ""


class Running(Struct, frozen=True):
    """Where a job runs."""

    worker: str
    job: RunningJob


WORKERS = (
    Column("worker", 40, 10, is_id=True),
    Column("state", 34, 8),
    Column("pid", 8, spare=2),
    Column("active", 9),
    Column("ok", 9),
    Column("failed", 8),
    Column("up", 11),
    Column("memory", 9, spare=1),
    Column("heard", 12),
)
JOBS = (
    Column("state", 18, 12),
    Column("id", 28, 15, is_id=True),
    Column("task", 30),
    Column("pool", 16),
    Column("worker", 20, spare=1),
    Column("took", 11),
    Column("tries", 5, spare=2),
    Column("note", 400),
)
POOLS = (
    Column("pool", 30),
    Column("state", 8),
    Column("slots", 8),
    Column("running", 9),
    Column("queued", 9),
    Column("blocked", 9),
    Column("scheduled", 9, spare=1),
    Column("parked", 9, spare=2),
    Column("strategy", 40),
)
TROUBLES = (
    Column("at", 8),
    Column("farm", 20, spare=1),
    Column("worker", 20, spare=2),
    Column("trouble", 400),
)
STYLES = {
    Status.RUNNING: "green",
    Status.COMPLETED: "dim",
    Status.FAILED: "red",
    Status.REJECTED: "red",
    Status.EXPIRED: "yellow",
    Status.CANCELLED: "yellow",
}


def worker_rows(
    farms: Sequence[FarmRecord], alone: Sequence[LoneWorker], now: datetime
) -> list[Row]:
    """Return a row for each farm, below it one for each of its workers, then those of no farm."""
    rows = []
    for farm in farms:
        rows.append(_farm_row(farm, now))
        rows += [_worker_row(worker, now) for worker in farm.workers]
    return rows + [_lone_row(worker) for worker in alone]


def _farm_row(farm: FarmRecord, now: datetime) -> Row:
    active = sum(worker.active for worker in farm.workers)
    cells = (
        safe(farm.id),
        f"{farm.state}, {farm.minimum} to {farm.maximum}",
        str(farm.pid),
        f"{active}/{farm.capacity}",
        f"{farm.completed:,}",
        f"{farm.failed:,}",
        lasting((now - farm.started_at).total_seconds()),
        size(sum(worker.memory for worker in farm.workers)),
        NOTHING,
    )
    return Row(farm.id, cells, "yellow" if farm.state is FarmState.STOPPING else "bold")


def _worker_row(worker: WorkerRecord, now: datetime) -> Row:
    state, style = state_of(worker)
    cells = (
        f"  {safe(worker.id)}",
        state,
        str(worker.pid),
        f"{worker.active}/{worker.slots}",
        f"{worker.completed:,}",
        f"{worker.failed:,}",
        lasting((now - worker.started_at).total_seconds()),
        size(worker.memory),
        f"{lasting(worker.heard)} ago",
    )
    return Row(worker.id, cells, style)


def _lone_row(worker: LoneWorker) -> Row:
    state = f"of no farm, on {safe(worker.host.partition('/')[0])}"
    unknown = (NOTHING,) * 5
    return Row(worker.id, (safe(worker.id), state, str(worker.pid), str(worker.holds), *unknown))


def state_of(worker: WorkerRecord) -> tuple[str, str]:
    """Return how a worker is, in words, and the style that goes with them."""
    marks = [
        *(["SILENT"] if worker.heard >= SILENT else []),
        *([f"BLOCKED {lasting(worker.blocked)}"] if worker.blocked > 0 else []),
        *([f"{worker.stuck} stuck"] if worker.stuck else []),
    ]
    # What is wrong stands first: a narrow column may cut the rest.
    words = ", ".join([*marks, str(worker.state)])
    if marks or worker.state is WorkerState.HUNG:
        return words, "red"
    return words, "green" if worker.state is WorkerState.READY else "yellow"


def running_in(farms: Iterable[FarmRecord]) -> dict[str, Running]:
    """Return where jobs run, by their ids."""
    return {
        job.id: Running(worker.id, job)
        for farm in farms
        for worker in farm.workers
        for job in worker.jobs
    }


def job_rows(jobs: Iterable[JobView], where: Mapping[str, Running], now: datetime) -> list[Row]:
    """Return a row for each job."""
    return [_job_row(job, where.get(job.id), now) for job in jobs]


def _job_row(job: JobView, found: Running | None, now: datetime) -> Row:
    # The record of a farm may be older than that of the job.
    runs = found if job.status is Status.RUNNING else None
    note = job.note
    if runs is not None and runs.job.mark:
        note = runs.job.mark.replace("_", " ")
    cells = (
        job_state(job),
        safe(job.id),
        safe(job.name) or NOTHING,
        safe(job.pool),
        NOTHING if runs is None else safe(runs.worker),
        lasting(took(job, now)),
        str(job.attempts),
        safe(note),
    )
    return Row(job.id, cells, STYLES.get(job.status, ""))


def job_state(job: JobView) -> str:
    """Return where a job is, in words."""
    if job.parked:
        return "parked"
    if job.dead:
        return f"{job.status}, dead"
    if job.cancel_wished and job.status is Status.RUNNING:
        return "running, stopping"
    return str(job.status)


def took(job: JobView, now: datetime) -> float | None:
    """Return how long the latest attempt at a job took, or has taken so far."""
    if job.status is Status.RUNNING and job.started_at is not None:
        return (now - job.started_at).total_seconds()
    return job.ran


def pool_rows(pools: Iterable[PoolView]) -> list[Row]:
    """Return a row for each pool."""
    return [_pool_row(pool) for pool in pools]


def _pool_row(pool: PoolView) -> Row:
    counts = (pool.running, pool.queued, pool.blocked, pool.scheduled, pool.parked)
    cells = (
        safe(pool.name),
        "PAUSED" if pool.paused else "open",
        "no cap" if pool.slots is None else str(pool.slots),
        *map(str, counts),
        safe(pool.strategy),
    )
    return Row(pool.name, cells, "yellow" if pool.paused else "green")


def trouble_rows(farms: Iterable[FarmRecord]) -> list[Row]:
    """Return a row for each trouble of all farms, the newest first."""
    found = [(trouble, farm) for farm in farms for trouble in farm.troubles]
    found.sort(key=lambda one: one[0].at, reverse=True)
    return [
        Row(
            f"{number}\n{trouble.job or ''}",
            (
                trouble.at.strftime("%H:%M:%S"),
                safe(farm.id),
                safe(trouble.worker or NOTHING),
                safe(trouble.text) + (f" (job {safe(trouble.job)})" if trouble.job else ""),
            ),
        )
        for number, (trouble, farm) in enumerate(found)
    ]


def widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    """Return how wide each column would be by what is in it."""
    return [
        min(column.most, max([len(column.name), *(len(row.cells[place]) for row in rows)]))
        for place, column in enumerate(columns)
    ]


def fitting(columns: Sequence[Column], wanted: Sequence[int], width: int) -> dict[int, int]:
    """Return the places of the columns that are shown in that width, and how wide each is.

    What can be spared goes first, then the widest ones give way; the last one takes what is left.
    """
    wide = dict(enumerate(wanted))
    last = len(columns) - 1
    least = min(wide[last], LEAST_OF_LAST)
    for place in sorted(wide, key=lambda p: -columns[p].spare):
        if columns[place].spare == 0 or _room(wide, last, width) >= least:
            break
        del wide[place]
    while _room(wide, last, width) < least:
        may_give = [place for place in wide if place != last and wide[place] > columns[place].least]
        if not may_give:
            break
        wide[max(may_give, key=lambda p: wide[p])] -= 1
    return wide | {last: max(columns[last].least, min(wide[last], _room(wide, last, width)))}


def _room(wide: Mapping[int, int], last: int, width: int) -> int:
    """Return how much of a width is left to the last column."""
    return width - GAP - sum(room + GAP for place, room in wide.items() if place != last)


def cell(text: str, width: int, is_id: bool) -> str:
    """Return the text of a cell as it fits into its column."""
    if len(text) <= width:
        return text
    end = text[-ID_END:] if is_id else ""
    return f"{text[: width - 1 - len(end)]}…{end}"
