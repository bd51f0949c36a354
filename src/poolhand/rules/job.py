"""A job: one running of one callable, and everything that is known about it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from poolhand.rules.values.plain import PlainView


class Status(StrEnum):
    """Where a job is. The first three wait, the last five are final."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"

    # That of an Enum is written in Python, and asked for all the time.
    __hash__ = str.__hash__

    @property
    def waiting(self) -> bool:
        return self in WAITING

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


WAITING = frozenset({Status.SCHEDULED, Status.BLOCKED, Status.QUEUED})
TERMINAL = frozenset(
    {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.REJECTED}
)

SOFT_TIMEOUT = "soft_timeout"
HARD_TIMEOUT = "hard_timeout"
SESSION_ERASED = "session_erased"  # while its turn ran, whose state was not written


class Fault(PlainView, frozen=True):
    """What a job raised, as text that can be kept and shown."""

    type: str
    message: str
    traceback: str = ""


class Job(PlainView, frozen=True, kw_only=True):
    """The record of one job; every change makes a new one.

    `name` is that of the callable. `waited`, `ran` and `marks` are about the latest attempt.
    Moments are UTC and ISO-8601 when encoded; they are for people. Durations are seconds of the
    monotonic clock. `blocked_on` says what a blocked job waits for: "session" or "key"; `waits_for`
    is the cause of a scheduled one that waits for something else than a time: "task:…". `crashes`
    counts how often the process that ran it died under it. `continues` is the dead job whose run
    it goes on with.
    """

    id: str
    pool: str
    pool_id: str
    status: Status
    submitted_at: datetime
    name: str = ""
    submitted_by: str = "user"
    key: str = ""
    priority: int = 0
    session: str | None = None
    tenant: str | None = None
    user: str | None = None
    idempotency_key: str | None = None
    blocked_on: str | None = None
    waits_for: str | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    waited: float | None = None
    ran: float | None = None
    attempts: int = 0
    crashes: int = 0
    result: Any = None
    error: Fault | None = None
    rejection_reason: str | None = None
    rejection_policy: str | None = None
    continues: str | None = None
    marks: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """What the attempts at it, and at those it goes on for, have in common."""
        return self.continues or self.id
