"""What a process knows of its durable pool without asking."""

from __future__ import annotations

from asyncio import _get_running_loop
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from poolhand.contract import PoolRow
from poolhand.pool.config import PoolConfig
from poolhand.pool.drain import DrainReport
from poolhand.pool.health import PoolHealth
from poolhand.pool.snapshot import PoolSnapshot, PoolStats, ceiling
from poolhand.rules.backpressure import capacity
from poolhand.rules.job import Job, Status
from poolhand.rules.spec import undeclared

OVER = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED, Status.EXPIRED)


class Known:
    """The latest row of the pool, how its jobs ended, and those of them that are dead.

    `counted` is what the store has counted, last when it was looked at, `heard` what this process
    has heard since it began.
    """

    def __init__(self, name: str, shared: bool) -> None:
        self.row = PoolRow(undeclared(name))
        self.submitted = 0
        self.counted: Counter[Status] = Counter()
        self.heard: Counter[Status] = Counter()
        self.dead: dict[str, Job] = {}
        self._shared = shared

    @property
    def waiting(self) -> int:
        return self.row.queued + self.row.blocked + self.row.scheduled

    def slots(self, config: PoolConfig) -> int:
        """Return the cap in force, which another process or an operator may have set."""
        return config.max_concurrent if self.row.slots is None else self.row.slots

    @property
    def ended(self) -> Counter[Status]:
        """How many jobs have ended how; of a shared pool as many as were when it was looked at."""
        return self.counted if self._shared else self.counted + self.heard

    def hear(self, job: Job, history: int) -> Iterator[str]:
        """Note that a job is over; yield the ids of those that are of no use any more."""
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
        """Return what this process did with the pool."""
        completed, failed, cancelled, rejected, expired = (self.heard[one] for one in OVER)
        ends = (completed, failed, cancelled, rejected, expired)
        return DrainReport(self.submitted, *ends, stuck, seconds)

    def stats(self, running: list[Job]) -> PoolStats:
        ended = self.ended
        completed, failed = ended[Status.COMPLETED], ended[Status.FAILED]
        return PoolStats(self.waiting, self.submitted, completed, failed, len(running))

    def health(self, running: list[Job], slots: int, config: PoolConfig) -> PoolHealth:
        return PoolHealth(
            pool_size=slots,
            queue_size=self.waiting,
            queue_capacity=capacity(config.backpressure),
            utilization=len(running) / slots if slots else 0.0,
            total_completed=self.ended[Status.COMPLETED],
            total_failed=self.ended[Status.FAILED],
            stale_workers=(),
            workers={},
        )

    def snapshot(
        self,
        running: list[Job],
        stuck: int,
        config: PoolConfig,
        named: tuple[str, datetime, bool],
    ) -> PoolSnapshot:
        """Photograph the pool, given its id, when it was made, and whether it is draining."""
        row, ended = self.row, self.ended
        id, created_at, draining = named
        return PoolSnapshot(
            id=id,
            name=config.name,
            created_at=created_at,
            max_concurrent=self.slots(config),
            resizing_to=None,
            ceiling=ceiling(self.slots(config), _get_running_loop()),
            active=len(running),
            stuck=stuck,
            queued=row.queued,
            blocked=row.blocked,
            scheduled=row.scheduled,
            completed=ended[Status.COMPLETED],
            failed=ended[Status.FAILED],
            cancelled=ended[Status.CANCELLED],
            rejected=ended[Status.REJECTED],
            expired=ended[Status.EXPIRED],
            total=sum(ended.values()) + len(running) + self.waiting,
            blocked_submitters=row.parked,
            paused=row.paused,
            draining=draining,
            queue=str(config.queue),
            backpressure=str(config.backpressure),
            scope=config.scope.kind,
            scope_id=config.scope.id,
            durable=True,
            workers={},
            jobs=tuple(running),
            config=config,
        )
