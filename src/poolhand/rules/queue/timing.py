"""Timing: when a stored job may run, by the store's clock and by calendar time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from poolhand.rules import lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.entry import Window

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seconds(moment: datetime) -> float:
    """Return a calendar time as seconds since 1970."""
    return (moment - EPOCH).total_seconds()


def arrival(
    job: Job, delay: float | None, expires: float | None, now: float, at: datetime
) -> tuple[Job, Window | None, bool]:
    """Return a job as it is submitted, when it may start, and whether calendar time decides that.

    A delay keeps its length even if the wall clock is changed; `run_at` follows the wall clock.
    """
    by_wall = delay is None and job.run_at is not None
    run_at, opens_at, closes_at = job.run_at, None, None
    if delay is not None:
        opens_at, run_at = now + delay, at + timedelta(seconds=delay)
    elif run_at is not None:
        opens_at = now + (seconds(run_at) - seconds(at))
    expires_at = None
    if expires is not None:
        closes_at, expires_at = now + expires, at + timedelta(seconds=expires)
    job = replace(job, submitted_at=at, run_at=run_at, expires_at=expires_at)
    window = None if opens_at is closes_at is None else Window(opens_at, closes_at)
    return job, window, by_wall


def comeback(job: Job, wait: float | None, at: datetime) -> tuple[Job, float, bool]:
    """Return a job that waits again, for how many seconds, and whether calendar time decides that.

    Without a `wait` the job waits until `run_at`.
    """
    by_wall = wait is None and job.status is Status.SCHEDULED
    pause = wait or 0.0
    if by_wall and job.run_at is not None:
        pause = seconds(job.run_at) - seconds(at)
    return lifecycle.place(job, Status.SCHEDULED if pause > 0 else Status.QUEUED), pause, by_wall
