"""Lifecycle: a job and an event give the next record of the job; and how long it is stored."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from poolhand.misuse import OptionsStruct
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.outcome import (
    NO_RETRY,
    Cancelled,
    Completed,
    Failed,
    Outcome,
    Retry,
    Snoozed,
    delay,
)
from poolhand.rules.validation import (
    AMOUNT,
    COUNT,
    OptionTable,
    Seconds,
    check_record,
    convert_seconds,
    instance_of,
)

CRASHES_IN_COMPANY = 2
MOST_CRASHES_UNPROVEN = 10
SHORTEST_SNOOZE = 0.1  # a snooze costs no attempt: a shorter one could keep a worker busy for ever
LONGEST_WAIT = 3.15e9  # a hundred years in seconds, so that now plus the wait is still a date


def place(job: Job, status: Status, blocked_on: str | None = None) -> Job:
    """Move a waiting job to another waiting status."""
    if job.status is status and job.blocked_on == blocked_on:
        return job
    return replace(job, status=status, blocked_on=blocked_on, waits_for=None)


def start(job: Job, at: datetime, waited: float) -> Job:
    """Begin an attempt."""
    return replace(
        job,
        status=Status.RUNNING,
        started_at=at,
        waited=waited,
        attempts=job.attempts + 1,
        marks=(),
        run_at=None,
        blocked_on=None,
        waits_for=None,
    )


def complete(job: Job, value: Any, at: datetime, ran: float) -> Job:
    """End a job successfully."""
    return replace(job, status=Status.COMPLETED, finished_at=at, ran=ran, result=value, error=None)


def settle(
    job: Job, outcome: Outcome, policy: Retry | None, at: datetime, ran: float, roll: float
) -> Job:
    """End an attempt: the job is final, or scheduled to run again at `run_at`.

    `roll` is a random number in [0, 1) that spreads retries.
    """
    match outcome:
        case Completed(value=value):
            return complete(job, value, at, ran)
        case Cancelled():
            return replace(job, status=Status.CANCELLED, finished_at=at, ran=ran)
        case Snoozed(until=until):
            return replace(
                job,
                status=Status.SCHEDULED,
                run_at=max(_moment(until, at), _moment(SHORTEST_SNOOZE, at)),
                attempts=job.attempts - 1,
                ran=ran,
            )
        case Failed():
            return _failed(job, outcome, policy, at, ran, roll)


def hand_back(job: Job) -> Job:
    """Queue a job again that was stopped cleanly; the attempt does not count."""
    return replace(job, status=Status.QUEUED, attempts=job.attempts - 1, blocked_on=None)


def set_aside(job: Job, cause: str) -> Job:
    """Park a job that was not started under its cause, without a time; the attempt is free."""
    return replace(
        job, status=Status.SCHEDULED, attempts=job.attempts - 1, run_at=None, waits_for=cause
    )


def is_set_aside(job: Job) -> bool:
    """Return whether a job is parked under a cause and has no time to run."""
    return job.status is Status.SCHEDULED and job.waits_for is not None and job.run_at is None


def cut_short(job: Job, rerun: bool, at: datetime) -> Job:
    """End an attempt that its worker stopped: queue the job again, or fail it without `rerun`."""
    if rerun:
        return hand_back(job)
    return replace(job, status=Status.FAILED, finished_at=at, blocked_on=None)


def runs_alone(job: Job, policy: Retry | None) -> bool:
    """Return whether a job has crashed often enough to run in a process of its own.

    A job with a single attempt gets no second one beside other jobs: after a crash it runs once
    more, alone.
    """
    once = (policy or NO_RETRY).attempts == 1
    return job.crashes >= (1 if once else CRASHES_IN_COMPANY)


def crash(job: Job, policy: Retry | None, rerun: bool, at: datetime, proven: bool) -> Job:
    """End an attempt whose process died: queue the job again, or fail it.

    A crash costs an attempt, but a crash beside other jobs is never a job's last: another job may
    have caused it. `proven`: the process ran only this job, and nothing else died with it. A job
    that runs alone and keeps losing its process, proven or not, fails eventually.
    """
    alone = runs_alone(job, policy)
    most = (policy or NO_RETRY).attempts
    job = replace(job, crashes=job.crashes + 1, blocked_on=None)
    used_up = job.attempts >= most if proven else job.crashes >= most + MOST_CRASHES_UNPROVEN
    if not rerun or (alone and used_up):
        return replace(job, status=Status.FAILED, finished_at=at)
    return replace(job, status=Status.QUEUED)


def with_fault(job: Job, fault: Fault) -> Job:
    """Add the text of the error that the last attempt raised."""
    return replace(job, error=fault)


def reject(job: Job, reason: str, policy: str, at: datetime) -> Job:
    """Reject a new or waiting job."""
    return replace(
        job,
        status=Status.REJECTED,
        finished_at=at,
        blocked_on=None,
        rejection_reason=reason,
        rejection_policy=policy,
    )


def cancel(job: Job, at: datetime) -> Job:
    """Cancel a waiting job."""
    return replace(job, status=Status.CANCELLED, finished_at=at, blocked_on=None)


def expire(job: Job, at: datetime) -> Job:
    """Expire a waiting job whose deadline has passed."""
    return replace(job, status=Status.EXPIRED, finished_at=at, blocked_on=None)


def mark(job: Job, name: str) -> Job:
    """Add a mark to a running job, once."""
    return job if name in job.marks else replace(job, marks=(*job.marks, name))


def _failed(
    job: Job, failed: Failed, policy: Retry | None, at: datetime, ran: float, roll: float
) -> Job:
    if failed.mark is not None:
        job = mark(job, failed.mark)
    retry = _policy(policy, failed)
    if job.attempts >= retry.attempts or _is_permanent(failed, retry):
        return replace(job, status=Status.FAILED, finished_at=at, ran=ran)
    seconds = delay(retry, job.attempts, roll, failed.retry_after)
    return replace(job, status=Status.SCHEDULED, run_at=_moment(seconds, at), ran=ran)


def _policy(policy: Retry | None, failed: Failed) -> Retry:
    """Return the retry policy in force; a job that asks for a retry gets the default policy."""
    if policy is not None:
        return policy
    return Retry() if failed.on_purpose else NO_RETRY


def _is_permanent(failed: Failed, retry: Retry) -> bool:
    cause = failed.error if failed.error.__cause__ is None else failed.error.__cause__
    return failed.permanent or retry.gives_up_on(failed.error) or retry.gives_up_on(cause)


def _moment(until: datetime | float, at: datetime) -> datetime:
    if isinstance(until, datetime):
        return max(at, until)
    return at + timedelta(seconds=min(max(0.0, until), LONGEST_WAIT))


DAY = 86_400.0


class Keep(OptionsStruct, frozen=True, kw_only=True):
    """How long a store keeps finished work, in seconds, and how many at most (None: any number).

    Results are finished jobs other than dead letters; dead letters have bounds of their own.
    """

    results: float = 7 * DAY
    dead: float = 90 * DAY
    audit: float = 90 * DAY
    max_results: int | None = None
    max_dead: int | None = 100_000
    max_audit: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            results: Seconds = 7 * DAY,
            dead: Seconds = 90 * DAY,
            audit: Seconds = 90 * DAY,
            max_results: int | None = None,
            max_dead: int | None = 100_000,
            max_audit: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_seconds(self, "results", "dead", "audit")


KEEP = Keep()

ALLOWED: OptionTable = {
    "results": AMOUNT,
    "dead": AMOUNT,
    "audit": AMOUNT,
    "max_results": COUNT.or_none(),
    "max_dead": COUNT.or_none(),
    "max_audit": COUNT.or_none(),
}


def check_keep(keep: Keep) -> None:
    """Raise UsageError listing every fault unless `keep` is a valid Keep."""
    instance_of(Keep, "Keep(results=…, dead=…)").require("keep", keep)
    check_record(keep, ALLOWED)
