"""The tables of workers, jobs, pools and troubles: their columns, and rows made from records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from poolhand.farm.records import (
    WRITE_EVERY,
    FarmRecord,
    RunningJob,
    WorkerRecord,
    WorkerState,
)
from poolhand.operate.farms import LoneWorker
from poolhand.operate.format import (
    FARM_STYLES,
    NOTHING,
    STYLES,
    Column,
    TableRow,
    age,
    lasting,
    short_duration,
    size,
)
from poolhand.operate.views import JobView, PoolView
from poolhand.rules.job import Status
from poolhand.rules.plain import safe

SILENT = 3.0  # seconds without a message until a worker is shown as silent
LATE = WRITE_EVERY + 1.0  # an older record is overdue


class RunningRow(Struct, frozen=True):
    """A running job and its worker."""

    worker: str
    job: RunningJob


WORKERS = (
    Column("worker", 40, 10, is_id=True, short=18),
    Column("state", 40, 8),
    Column("pid", 8, spare=4, right=True),
    Column("running", 9, 7, right=True),
    Column("attempts", 9, 8, right=True),
    Column("failed", 9, 6, right=True),
    Column("memory", 9, spare=3, right=True),
    Column("age", 7, 5, spare=1, right=True),
    Column("last signal", 12),
)
JOBS = (
    Column("state", 18, 12),
    Column("id", 28, 12, is_id=True, short=15),
    Column("task", 30, 8, path=True, short=14),
    Column("pool", 16, spare=3),
    Column("worker", 20, spare=5),
    Column("age", 7, 5, spare=1, right=True),
    Column("took", 7, 5, spare=2, right=True),
    Column("tries", 5, spare=4, right=True),
    Column("note", 400),
)
POOLS = (
    Column("pool", 30),
    Column("state", 8),
    Column("running", 9, right=True),
    Column("slots", 8, right=True),
    Column("waiting", 9, right=True),
    Column("blocked", 9, spare=3, right=True),
    Column("scheduled", 9, spare=1, right=True),
    Column("submitters", 10, spare=2, right=True),
    Column("order of jobs", 40),
)
TROUBLES = (
    Column("at", 9),
    Column("age", 7, 5, right=True),
    Column("farm", 20, spare=1),
    Column("worker", 20, spare=2),
    Column("trouble", 400),
)


def worker_rows(
    farms: Sequence[FarmRecord], alone: Sequence[LoneWorker], now: datetime
) -> list[TableRow]:
    """Return a row per farm, each followed by its workers, then workers without a farm."""
    rows = []
    for farm in farms:
        rows.append(_farm_row(farm, len(farms) > 1, now))
        rows += [_worker_row(farm, worker, now) for worker in farm.workers]
    return rows + [_lone_row(worker) for worker in alone]


def _farm_row(farm: FarmRecord, is_one_of_many: bool, now: datetime) -> TableRow:
    active = sum(worker.active for worker in farm.workers)
    # The head shows the bounds of a single farm.
    bounds = f", {farm.minimum} to {farm.maximum}" if is_one_of_many else ""
    state = no_sign(farm) if farm.is_silent else f"{farm.state}{bounds}"
    counts = f"{active}/{slots_of(farm)}", *_attempts(farm)
    memory = size(sum(worker.memory for worker in farm.workers))
    cells = (safe(farm.id), state, str(farm.pid), *counts, memory, age(farm.started_at, now))
    style = "red" if farm.is_silent else FARM_STYLES[farm.state]
    return TableRow(farm.id, (*cells, NOTHING), style)


def _attempts(of: FarmRecord | WorkerRecord) -> tuple[str, str]:
    return f"{of.completed + of.failed:,}", f"{of.failed:,}"


def no_sign(farm: FarmRecord) -> str:
    """Return the state text of a farm whose supervisor is silent."""
    return f"NO SIGN for {short_duration(farm.age)}"


def slots_of(farm: FarmRecord) -> int:
    """Return the number of slots in which jobs run or can run.

    A leaving worker counts only with its running jobs: its free slots are not used again.
    """
    leaving = [worker for worker in farm.workers if worker.leaving_at is not None]
    return farm.capacity + sum(worker.active for worker in leaving)


def _worker_row(farm: FarmRecord, worker: WorkerRecord, now: datetime) -> TableRow:
    state, style = ("unknown", "red") if farm.is_silent else state_of(worker, now, farm.age)
    counts = f"{worker.active}/{worker.slots}", *_attempts(worker)
    heard = f"{short_duration(signal_age(farm, worker))} ago"
    ages = size(worker.memory), age(worker.started_at, now), heard
    cells = (f"  {safe(worker.id)}", state, str(worker.pid), *counts, *ages)
    return TableRow(worker.id, cells, style)


def signal_age(farm: FarmRecord, worker: WorkerRecord) -> float:
    """Return the seconds since a worker's last message.

    A record that is not overdue counts as current, or every row would be redrawn each second.
    """
    return worker.heard if farm.age > LATE else worker.heard - farm.age


def _lone_row(worker: LoneWorker) -> TableRow:
    state = f"of no farm, on {safe(worker.host.partition('/')[0])}"
    unknown = (NOTHING,) * 5
    return TableRow(
        worker.id, (safe(worker.id), state, str(worker.pid), str(worker.holds), *unknown)
    )


def state_of(worker: WorkerRecord, now: datetime, age_of_record: float = 0.0) -> tuple[str, str]:
    """Return the state of a worker as text, and its style."""
    marks = [
        # Subtract the age of the record, which says nothing about the worker.
        *(["SILENT"] if worker.heard - age_of_record >= SILENT else []),
        *([f"BLOCKED {lasting(worker.blocked)}"] if worker.blocked > 0 else []),
        *([f"{worker.stuck} stuck"] if worker.stuck else []),
    ]
    # Problems come first: a narrow column may cut the rest.
    state = str(worker.state)
    if worker.leaving_at is not None:
        state += f" for {age(worker.leaving_at, now)}"
    words = ", ".join([*marks, state])
    if marks or worker.state is WorkerState.HUNG:
        return words, "red"
    return words, "green" if worker.state is WorkerState.READY else "yellow"


def running_in(farms: Iterable[FarmRecord]) -> dict[str, RunningRow]:
    """Return the running jobs with their workers, by job id."""
    return {
        job.id: RunningRow(worker.id, job)
        for farm in farms
        for worker in farm.workers
        for job in worker.jobs
    }


def job_rows(
    jobs: Iterable[JobView],
    where: Mapping[str, RunningRow],
    pools: Iterable[PoolView],
    now: datetime,
) -> list[TableRow]:
    """Return a row for each job."""
    known = {pool.name: pool for pool in pools}
    return [_job_row(job, where.get(job.id), known.get(job.pool), now) for job in jobs]


def _job_row(
    job: JobView, found: RunningRow | None, pool: PoolView | None, now: datetime
) -> TableRow:
    # The farm's record may be older than the job's.
    runs = found if job.status is Status.RUNNING else None
    worker = NOTHING if runs is None else safe(runs.worker)
    of = (safe(job.id), safe(job.name) or NOTHING, safe(job.pool), worker)
    times = age(job.submitted_at, now), short_duration(took(job, now)), str(job.attempts)
    cells = (job_state(job), *of, *times, safe(_note(job, runs, pool)))
    return TableRow(job.id, cells, STYLES.get(job.status, ""))


def _note(job: JobView, runs: RunningRow | None, pool: PoolView | None) -> str:
    """Return why a job waits, its error, or the mark of its run."""
    if runs is not None and runs.job.mark and job.reason != "process_gone":
        return runs.job.mark.replace("_", " ")
    if job.reason == "queued" and pool is not None:
        if pool.slots is None or pool.running < pool.slots:
            return "waits for a worker"
        return "the pool's slot is busy" if pool.slots == 1 else f"all {pool.slots} pool slots busy"
    if job.reason == "scheduled" and job.attempts and job.error is not None:
        return f"{job.note}; it raised {job.error.type}: {job.error.message}"
    return job.note


def job_state(job: JobView) -> str:
    """Return the state of a job as text."""
    if job.submitter_blocked:
        return "submitter blocked"
    if job.dead:
        return f"{job.status}, dead"
    if job.cancel_requested and job.status is Status.RUNNING:
        return "running, stopping"
    return str(job.status)


def took(job: JobView, now: datetime) -> float | None:
    """Return the duration of a job's latest attempt, so far if it runs."""
    if job.status is Status.RUNNING and job.started_at is not None:
        return (now - job.started_at).total_seconds()
    return job.ran


def pool_rows(pools: Iterable[PoolView]) -> list[TableRow]:
    """Return a row for each pool."""
    return [_pool_row(pool) for pool in pools]


def _pool_row(pool: PoolView) -> TableRow:
    cells = (
        safe(pool.name),
        "PAUSED" if pool.paused else "open",
        f"{pool.running:,}",
        "no cap" if pool.slots is None else f"{pool.slots:,}",
        *(
            f"{count:,}"
            for count in (pool.queued, pool.blocked, pool.scheduled, pool.blocked_submitters)
        ),
        safe(pool.strategy),
    )
    return TableRow(pool.name, cells, "yellow" if pool.paused else "green")


def trouble_rows(farms: Iterable[FarmRecord], now: datetime) -> list[TableRow]:
    """Return a row for each trouble of all farms, the newest first."""
    found = [(trouble, farm) for farm in farms for trouble in farm.troubles]
    found.sort(key=lambda one: one[0].at, reverse=True)
    return [
        TableRow(
            f"{number}\n{trouble.job or ''}",
            (
                trouble.at.strftime("%H:%M:%SZ"),
                age(trouble.at, now),
                safe(farm.id),
                safe(trouble.worker or NOTHING),
                safe(trouble.text) + (f" (job {safe(trouble.job)})" if trouble.job else ""),
            ),
            "red",
        )
        for number, (trouble, farm) in enumerate(found)
    ]
