"""A job: one run of a callable, retries included, and everything known about it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from poolhand.rules.values.plain import PlainView


class Status(StrEnum):
    """The state of a job. The first three wait, the last five are final."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"

    # The hash of Enum is written in Python and is too slow here: statuses are hashed very often.
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
SESSION_ERASED = "session_erased"  # the session was erased during its turn; no state was written


class Fault(PlainView, frozen=True):
    """The error that a job raised, as text that can be stored and shown."""

    type: str
    message: str
    traceback: str = ""


class Job(PlainView, frozen=True, kw_only=True):
    """The immutable record of one job; every change makes a new one.

    `name` is the name of the callable. `waited`, `ran` and `marks` describe the latest attempt.
    Times are UTC, encoded as ISO-8601, and meant for people. Durations are seconds of the monotonic
    clock. `blocked_on` is what a blocked job waits for: "session" or "key"; `waits_for` is the
    cause of a scheduled job that waits for something other than a time: "task:…". `crashes` counts
    how often the process that ran the job died. `continues` is the id of the dead job whose run
    this job continues.
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
        """The id that all attempts share, including those of the job that this one continues."""
        return self.continues or self.id
