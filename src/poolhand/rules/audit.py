"""Audit records: the durable history of what happened to pools, jobs, schedules and farms.

A record is written in the same transaction as the change it describes. The JSON fields keep the
order of the class and times are UTC, so the same run produces the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter

from msgspec import Struct, json

from poolhand.rules.job import Job, Status
from poolhand.rules.plain import PlainView

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
KINDS = (
    SUBMIT, DEQUEUE, DROP, OUTCOME, RETRY, CANCEL, CREATE, RESIZE, PAUSE, RESUME, DRAIN, RERUN,
    ERASE, WAKE, DROP_DEAD, FARM_DRAIN, FARM_RESTART, FARM_BOUNDS, SCHEDULE_PAUSE, SCHEDULE_RESUME,
    SCHEDULE_TRIGGER,
)  # fmt: skip


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


class Dequeued(Submitted, frozen=True, gc=False):
    """An attempt at a job began: it left the queue for a slot."""

    dequeued_at: datetime
    queued_for_ms: int
    slot_index: int
    attempt: int


class Dropped(Submitted, frozen=True, gc=False):
    """A policy rejected a new job or evicted a waiting one."""

    replacement_task_id: str | None
    reason: str | None
    policy: str | None
    queue_depth: int
    max_depth: int | None
    occurred_at: datetime


class Ended(Struct, frozen=True, gc=False):
    """A job reached its final status, or (as a retry) waits again for its next attempt."""

    schema: str
    pool_id: str
    pool: str
    task_id: str
    status: Status
    attempt: int
    error: str | None
    occurred_at: datetime


class Acted(Struct, frozen=True, gc=False):
    """A user or operator acted on a pool, job, farm or schedule.

    `by` names the actor, `detail` the action. A record of a farm has no pool; its detail begins
    with the id of the farm or of the worker. The detail of a schedule's record is the schedule's
    id.
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
    """An audit record as read from the store, with its sequence number; numbers have no gaps."""

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
    """Return the record of a job that was just started (`lifecycle.start`)."""
    assert job.started_at is not None
    waited = round((job.waited or 0.0) * 1000)
    return Dequeued(_schema(DEQUEUE), *_identity(job), job.started_at, waited, slot, job.attempts)


def dropped(job: Job, replacement: str | None, depth: int, most: int | None) -> Dropped:
    """Return the record of a job that was just rejected (`lifecycle.reject`)."""
    assert job.finished_at is not None
    why = (job.rejection_reason, job.rejection_policy)
    return Dropped(_schema(DROP), *_identity(job), replacement, *why, depth, most, job.finished_at)


def ended(job: Job) -> Ended:
    """Return the record of a job that reached its final status."""
    assert job.finished_at is not None
    return _ended(OUTCOME, job, job.finished_at)


def retried(job: Job, at: datetime) -> Ended:
    """Return the record of a job that gave up its slot and waits again."""
    return _ended(RETRY, job, at)


def acted(kind: str, pool: tuple[str, str], by: str, detail: str, at: datetime) -> Acted:
    """Return the record of an action on a pool; `pool` is the pool's id and name."""
    return Acted(_schema(kind), *pool, None, by, detail, at)


def acted_on(kind: str, job: Job, by: str, detail: str, at: datetime) -> Acted:
    """Return the record of an action on a job."""
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
    "pool_id", "pool", "id", "submitted_at", "priority", "key", "idempotency_key", "submitted_by"
)
