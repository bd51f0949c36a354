"""Reports jobs whose outcome is written: to events, the log, a listener and `on_dead`."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping

from poolhand.durable.worker.hand import SettledClaim
from poolhand.durable.worker.on_dead import OnDeadCallbacks
from poolhand.durable.worker.set_aside import SetAsideReports, TaskLookup
from poolhand.observe import events
from poolhand.observe.failures import FailureLog
from poolhand.pool.config import PoolConfig
from poolhand.pool.slots.clock import PoolClock
from poolhand.rules.causes import home_of
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import is_self_cancelled


class Announcer:
    """Reports each job once, when it is written; calls `heard` with those that are over.

    `completed` and `failed` count attempts by the outcome that was written.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        all_events: events.Events,
        configs: Mapping[str, PoolConfig],
        tell: Callable[[events.Event], None],
        lookup: TaskLookup,
        clock: PoolClock,
    ) -> None:
        self.heard: Callable[[Job], None] | None = None
        self.completed = self.failed = 0
        self.failures = FailureLog(loop, clock.now, all_events)
        self._clock = clock
        self.callbacks = OnDeadCallbacks(loop, all_events)
        self._configs = configs
        self._tell = tell
        self.aside = SetAsideReports(loop, self.failures, all_events, lookup)

    def written(self, one: SettledClaim) -> None:
        """Report a written outcome."""
        job = one.change.job
        self.completed += job.status is Status.COMPLETED
        self.failed += one.failed or job.status is Status.FAILED
        if job.status.waiting:
            self._waits_again(job, one)
            return
        if job.status is Status.FAILED:
            self.failures.died(job)
        elif is_self_cancelled(job.status, job.error):
            self.failures.self_cancelled(job)
        self._tell(events.JobEnded(job.pool, job))
        if self.heard is not None:
            self.heard(job)
        config = self._configs.get(job.pool)
        if job.status is Status.FAILED and config is not None and config.on_dead is not None:
            self.callbacks.tell(config.on_dead, job)

    def lost(self, job: Job) -> None:
        """Report that this worker has lost the claim of a job."""
        self.failures.lease_lost(job)
        self._tell(events.LeaseLost(job.pool, job))

    def _waits_again(self, job: Job, one: SettledClaim) -> None:
        cause = job.waits_for
        if one.failed:
            at = job.run_at
            self.failures.retried(
                job, None if at is None else (at - self._clock.wall()).total_seconds()
            )
        if one.begun:
            self._tell(events.JobRetried(job.pool, job))
        elif cause is not None and home_of(cause) is None:
            # A parked closure is not reported: its home process runs it.
            self.aside.report(job, cause)
