"""Audit records: what happened to pools, jobs and farms, for those who must be able to prove it.

A record is written with the change it tells of. Fields stand in this order in its JSON, moments are
UTC, so that the same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter

from msgspec import Struct, json

from poolhand.rules.job import Job, Status
from poolhand.rules.values.plain import PlainView

STREAM = "lifecycle.pool.audit"

SUBMIT = "pool_submit"
DEQUEUE = "pool_dequeue"
DROP = "pool_drop"
OUTCOME = "pool_outcome"
RETRY = "pool_retry"
CANCEL = "pool_cancel"
CREATE = "pool_create"
RESIZE = "pool_resize"
PAUSE = "pool_pause"
RESUME = "pool_resume"
DRAIN = "pool_drain"
RERUN = "pool_rerun"
ERASE = "pool_erase"
WAKE = "pool_wake"
DROP_DEAD = "dead_drop"
FARM_DRAIN = "farm_drain"
FARM_RESTART = "farm_restart"
FARM_BOUNDS = "farm_bounds"
SCHEDULE_PAUSE = "schedule_pause"
SCHEDULE_RESUME = "schedule_resume"
SCHEDULE_TRIGGER = "schedule_trigger"


class Submitted(Struct, frozen=True, gc=False):
    """A job was accepted."""

    schema: str
    pool_id: str
    pool: str
    task_id: str
    submitted_at: datetime
    priority: int
    key: str
    idempotency_key: str | None
    submitted_by: str


class Dequeued(Struct, frozen=True, gc=False):
    """An attempt at a job began: it left the queue for a slot."""

    schema: str
    pool_id: str
    pool: str
    task_id: str
    submitted_at: datetime
    priority: int
    key: str
    idempotency_key: str | None
    submitted_by: str
    dequeued_at: datetime
    queued_for_ms: int
    slot_index: int
    attempt: int


class Dropped(Struct, frozen=True, gc=False):
    """A policy turned a job away, a new one or one that waited."""

    schema: str
    pool_id: str
    pool: str
    task_id: str
    submitted_at: datetime
    priority: int
    key: str
    idempotency_key: str | None
    submitted_by: str
    replacement_task_id: str | None
    reason: str | None
    policy: str | None
    queue_depth: int
    max_depth: int | None
    occurred_at: datetime


class Ended(Struct, frozen=True, gc=False):
    """A job is over, or (as a retry) goes back to wait for its next attempt."""

    schema: str
    pool_id: str
    pool: str
    task_id: str
    status: Status
    attempt: int
    error: str | None
    occurred_at: datetime


class Acted(Struct, frozen=True, gc=False):
    """Somebody did something to a pool or a job; `by` says who, `detail` what exactly.

    Of a farm there is no pool; the detail begins with its id, or that of its worker. Of a schedule
    the detail is its id.
    """

    schema: str
    pool_id: str
    pool: str
    task_id: str | None
    by: str
    detail: str
    occurred_at: datetime


Audit = Submitted | Dequeued | Dropped | Ended | Acted


class AuditLine(PlainView, frozen=True, gc=False):
    """A record as it is read, with its number; numbers have no gaps."""

    number: int
    at: datetime
    kind: str
    record: Audit

    @property
    def body(self) -> bytes:
        """The record as stores write it."""
        return json.encode(self.record)


def submitted(job: Job) -> Submitted:
    return Submitted(_schema(SUBMIT), *_identity(job))


def dequeued(job: Job, slot: int) -> Dequeued:
    """Tell of a job that has just been started (`lifecycle.start`)."""
    assert job.started_at is not None
    waited = round((job.waited or 0.0) * 1000)
    return Dequeued(_schema(DEQUEUE), *_identity(job), job.started_at, waited, slot, job.attempts)


def dropped(job: Job, replacement: str | None, depth: int, most: int | None) -> Dropped:
    """Tell of a job that has just been rejected (`lifecycle.reject`)."""
    assert job.finished_at is not None
    why = (job.rejection_reason, job.rejection_policy)
    return Dropped(_schema(DROP), *_identity(job), replacement, *why, depth, most, job.finished_at)


def ended(job: Job) -> Ended:
    """Tell of a job that is over."""
    assert job.finished_at is not None
    return _ended(OUTCOME, job, job.finished_at)


def retried(job: Job, at: datetime) -> Ended:
    """Tell of a job that has lost its slot and waits again."""
    return _ended(RETRY, job, at)


def acted(kind: str, pool: tuple[str, str], by: str, detail: str, at: datetime) -> Acted:
    """Tell what somebody did to a pool, given by its id and name."""
    return Acted(_schema(kind), *pool, None, by, detail, at)


def acted_on(kind: str, job: Job, by: str, detail: str, at: datetime) -> Acted:
    """Tell what somebody did to a job."""
    return Acted(_schema(kind), job.pool_id, job.pool, job.id, by, detail, at)


def kind_of(record: Audit) -> str:
    """Return the kind of a record."""
    return record.schema.split(".")[1]


def _ended(kind: str, job: Job, at: datetime) -> Ended:
    error = None if job.error is None else job.error.type
    return Ended(_schema(kind), job.pool_id, job.pool, job.id, job.status, job.attempts, error, at)


def _schema(kind: str) -> str:
    return f"poolhand.{kind}.v1"


_Identity = tuple[str, str, str, datetime, int, str, str | None, str]
_identity: Callable[[Job], _Identity] = attrgetter(
    "pool_id",
    "pool",
    "id",
    "submitted_at",
    "priority",
    "key",
    "idempotency_key",
    "submitted_by",
)
