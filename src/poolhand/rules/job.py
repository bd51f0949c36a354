"""Jobs: the record of one job, its states, and its id."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from poolhand.rules.plain import PlainView


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


MOST_IN_A_MILLISECOND = 0xFFFFF


class Ids:
    """Generates ids of 28 characters: 11 for the millisecond, 12 of salt, 5 for a counter.

    The salt distinguishes sources. Milliseconds come from a clock that never goes back, shifted
    once to calendar time by `offset` seconds, so one source never repeats an id and its ids sort
    in creation order. An id is `head` plus the number that `next` returns; `full_id` joins them
    only when the id is needed.
    """

    __slots__ = ("_count", "_millisecond", "_offset", "_salt", "_until", "head")

    def __init__(self, salt: str, offset: float) -> None:
        self.head = ""
        self._salt = salt
        self._offset = offset
        self._millisecond = -1
        self._until = float("-inf")
        self._count = 0

    @property
    def last(self) -> tuple[str, int]:
        """The head and the number of the last id; later ids are greater."""
        return self.head, self._count

    def next(self, now: float) -> int:
        """Return the next number under `head`; `now` is a reading of that clock."""
        self._count = count = self._count + 1
        if now >= self._until or count > MOST_IN_A_MILLISECOND:
            return self._move_on(now)
        return count

    def _move_on(self, now: float) -> int:
        """Start a new millisecond; one whose counter is full uses the next millisecond early."""
        self._millisecond = max(int((now + self._offset) * 1000), self._millisecond + 1)
        self._until = (self._millisecond + 1) / 1000 - self._offset
        self.head = f"{self._millisecond:011x}{self._salt}"
        self._count = 1
        return 1


def full_id(head: str, number: int) -> str:
    """Return the id made of a head and a number."""
    return f"{head}{number:05x}"
