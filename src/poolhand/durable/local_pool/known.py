"""The state of a durable pool that a process has without asking the store."""

from __future__ import annotations

from asyncio import _get_running_loop
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec import Struct

from poolhand.contract import PoolRow
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.drain import DrainReport
from poolhand.pool.engine.health import (
    PoolHealth,
    WorkerHealth,
    busy_among,
    each_worker,
    stale_among,
)
from poolhand.pool.engine.snapshot import PoolSnapshot, PoolStats, ceiling
from poolhand.pool.engine.vitals import Examined
from poolhand.rules.job import WAITING, Job, Status
from poolhand.rules.queue.backpressure import capacity
from poolhand.rules.queue.pool_spec import undeclared

OVER = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED, Status.EXPIRED)


Named = tuple[str, datetime, bool]  # the id of a pool, when it was created, whether it drains
# Running jobs, stuck slots and workers of this process.
Here = tuple[list[Job], int, dict[str, WorkerHealth]]


class StoreCounts(Struct, frozen=True):
    """The state of the pool in the store at `as_of`: its row, and how many jobs of each status.

    One query counts them all: a job that changes its status meanwhile is counted once.
    """

    row: PoolRow
    counts: Mapping[Status, int]
    as_of: datetime

    def count(self, status: Status) -> int:
        return self.counts.get(status, 0)

    @property
    def running(self) -> int:
        return self.count(Status.RUNNING)

    @property
    def waiting(self) -> int:
        return sum(map(self.count, WAITING))

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class PoolCounts:
    """The last known state of the pool in the store, and the counts of this process.

    `heard` counts the ends of jobs that it ran or had submitted.
    """

    def __init__(self, name: str, made_at: datetime) -> None:
        self.look = StoreCounts(PoolRow(undeclared(name)), {}, made_at)
        self.submitted = 0
        self.heard: Counter[Status] = Counter()
        self.dead: dict[str, Job] = {}

    def slots(self, config: PoolConfig) -> int:
        """Return the cap in force, which another process or an operator may have set."""
        slots = self.look.row.slots
        return config.max_concurrent if slots is None else slots

    @property
    def size(self) -> int:
        look = self.look
        return look.running + look.waiting

    def hear(self, job: Job, history: int) -> Iterator[str]:
        """Note that a job is over; yield the ids of jobs that are not needed any more."""
        self.heard[job.status] += 1
        if job.status is not Status.FAILED:
            yield job.id
            return
        self.dead[job.id] = job
        while len(self.dead) > history:
            gone = next(iter(self.dead))
            del self.dead[gone]
            yield gone

    def report(self, stuck: int, seconds: float) -> DrainReport:
        """Return the counts of this process."""
        completed, failed, cancelled, rejected, expired = (self.heard[one] for one in OVER)
        ends = (completed, failed, cancelled, rejected, expired)
        return DrainReport(self.submitted, *ends, stuck, seconds)

    def stats(self) -> PoolStats:
        look = self.look
        completed, failed = look.count(Status.COMPLETED), look.count(Status.FAILED)
        return PoolStats(look.waiting, look.total, completed, failed, look.running, look.as_of)

    def health(self, here: Examined, now: float, state: str, config: PoolConfig) -> PoolHealth:
        """Return the health of the pool, given its slots in this process and its state."""
        look = self.look
        leaving = [slot.id for slot in here.slots] if state != "idle" else ()
        size = 0 if state == "stopped" else len(here.slots)
        return PoolHealth(
            pool_size=size,
            queue_size=look.waiting,
            queue_capacity=capacity(config.backpressure),
            utilization=busy_among(here) / size if size else 0.0,
            total_completed=look.count(Status.COMPLETED),
            total_failed=look.count(Status.FAILED),
            stale_workers=stale_among(here, now),
            workers=each_worker(here, leaving, "stopped" if state == "stopped" else "idle", now),
            as_of=look.as_of,
        )

    def snapshot(self, config: PoolConfig, named: Named, here: Here) -> PoolSnapshot:
        """Return a snapshot of the pool."""
        look = self.look
        id, created_at, draining = named
        running, stuck, workers = here
        return PoolSnapshot(
            id=id,
            name=config.name,
            created_at=created_at,
            max_concurrent=self.slots(config),
            resizing_to=None,
            ceiling=ceiling(self.slots(config), _get_running_loop()),
            active=look.running,
            stuck=stuck,
            queued=look.count(Status.QUEUED),
            blocked=look.count(Status.BLOCKED),
            scheduled=look.count(Status.SCHEDULED),
            completed=look.count(Status.COMPLETED),
            failed=look.count(Status.FAILED),
            cancelled=look.count(Status.CANCELLED),
            rejected=look.count(Status.REJECTED),
            expired=look.count(Status.EXPIRED),
            total=look.total,
            blocked_submitters=look.row.parked,
            paused=look.row.paused,
            draining=draining,
            queue=str(config.queue),
            backpressure=str(config.backpressure),
            scope=config.scope.kind,
            scope_id=config.scope.id,
            durable=True,
            workers=workers,
            jobs=tuple(running),
            config=config,
            as_of=look.as_of,
        )
