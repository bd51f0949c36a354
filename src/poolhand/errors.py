"""Every error poolhand raises, in one tree.

PoolhandError
├── UsageError            a call that cannot work; the message says what is allowed
│   └── SessionForbidden  the session belongs to another user
├── Refused               not accepted now; `retry_after` says when to try again, where known
│   ├── PoolFull          the queue is full (also an asyncio.QueueFull)
│   ├── NoFreeSlot        no slot is free and the pool has no queue (also a QueueFull)
│   ├── Draining          the pool is stopping (also a RuntimeError)
│   └── SessionBusy       the session already has a turn, and on_busy is "reject"
├── JobError              the job did not return a result
│   ├── JobFailed         it ended with an error that cannot be raised again as it is
│   ├── JobTimedOut       it ran past its soft or hard timeout
│   ├── JobCancelled      it was cancelled
│   ├── JobRejected       a drop policy or a drain rejected it
│   ├── JobExpired        it waited longer than `expires`
│   ├── JobLost           the process that ran it died
│   ├── ResultNotKept     it completed elsewhere, and its result is not in the store
│   └── Deadlock          it awaits a job of its own pool that can never start
├── StoreError            the store could not do it; nothing was changed
│   ├── Unavailable       it does not answer, or is busy for too long; try again
│   ├── Conflict          it was already changed by another process
│   │   └── SessionErased  its session was erased while a turn ran
│   ├── Unsupported       this kind of store cannot do that
│   ├── SchemaTooNew      written by a newer poolhand
│   ├── Corrupt           its file is damaged; the message says what can be saved
│   │   └── FileReplaced  its file was replaced while processes had it open
│   └── ReadOnly          the disk is full or broken; the store accepts no writes until it is fixed
├── WireError             a value that cannot be encoded, or bytes that cannot be decoded
│   ├── TooLarge          more bytes or more levels than the limits allow
│   ├── Undecodable       the bytes hold no value of the requested type
│   ├── BadSignature      unsigned, altered, expired, or signed with an unknown key
│   └── UnknownVersion    written by a newer poolhand
├── ToolError             a tool call was not made, or failed
│   ├── ToolBusy          the same call is running elsewhere
│   ├── ToolOutcomeUnknown  it was started, and whether it happened is unknown
│   └── IdempotencyConflict  its key, or that of a submit, stands for another call
└── Directive             raised by a job on purpose
    ├── RetryLater        retry the job after that many seconds
    ├── Snooze            run the job again at that time; this attempt does not count
    └── GiveUp            do not retry the job
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, ClassVar

__all__ = [
    "BadSignature",
    "Conflict",
    "Corrupt",
    "Deadlock",
    "Directive",
    "Draining",
    "FileReplaced",
    "GiveUp",
    "IdempotencyConflict",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobLost",
    "JobRejected",
    "JobTimedOut",
    "NoFreeSlot",
    "PoolFull",
    "PoolhandError",
    "ReadOnly",
    "Refused",
    "ResultNotKept",
    "RetryLater",
    "SchemaTooNew",
    "SessionBusy",
    "SessionErased",
    "SessionForbidden",
    "Snooze",
    "StoreError",
    "TooLarge",
    "ToolBusy",
    "ToolError",
    "ToolOutcomeUnknown",
    "Unavailable",
    "Undecodable",
    "UnknownVersion",
    "Unsupported",
    "UsageError",
    "WireError",
]


class PoolhandError(Exception):
    """The base class of all poolhand errors; `code` is stable, the message is for people."""

    code: ClassVar[str] = "PH-000"

    @property
    def message(self) -> str:
        """The text without the code."""
        return super().__str__()

    def __str__(self) -> str:
        # The only place that adds the code: texts that quote another error use its `message`.
        text = self.message
        return f"{text} [{self.code}]" if text else f"[{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the constructor with the message alone.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[PoolhandError], args: tuple[Any, ...], state: dict[str, Any]
) -> PoolhandError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(PoolhandError, ValueError):
    """A call that can never work as it is written."""

    code = "PH-USE-001"


class SessionForbidden(UsageError):
    """The session belongs to another user, or to none: it is neither used nor read."""

    code = "PH-USE-002"


class Refused(PoolhandError):
    """Work that was not accepted; nothing is stored."""

    code = "PH-POL-000"

    def __init__(
        self, message: str, *, retry_after: float | None = None, policy: str | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.policy = policy


class PoolFull(Refused, asyncio.QueueFull):
    """The pool holds as much as its backpressure policy allows."""

    code = "PH-POL-001"


class NoFreeSlot(Refused, asyncio.QueueFull):
    """A fail_fast pool has no free slot."""

    code = "PH-POL-002"


class Draining(Refused, RuntimeError):
    """The pool is draining or stopped and accepts no new work."""

    code = "PH-POL-003"


class SessionBusy(Refused):
    """The session already has a turn."""

    code = "PH-POL-004"


class JobError(PoolhandError):
    """The job `job_id` did not return a result."""

    code = "PH-JOB-000"

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobError):
    """A job failed and its own exception cannot be raised here; see `__cause__`."""

    code = "PH-JOB-001"


class JobTimedOut(JobError):
    """A job ran past its timeout. Not a TimeoutError, which a job may raise itself."""

    code = "PH-JOB-002"


class JobCancelled(JobError):
    """A job was cancelled before it finished."""

    code = "PH-JOB-003"


class JobRejected(JobError):
    """A waiting or new job was rejected by the pool's policy or by a drain."""

    code = "PH-JOB-004"

    def __init__(
        self, message: str, *, job_id: str = "", reason: str = "", policy: str = ""
    ) -> None:
        super().__init__(message, job_id=job_id)
        self.reason = reason
        self.policy = policy


class JobExpired(JobError):
    """A job was still waiting when it expired."""

    code = "PH-JOB-005"


class Deadlock(JobError):
    """A job awaits a job of its own pool that can never start."""

    code = "PH-JOB-006"


class JobLost(JobError):
    """The process that ran a job died before the job was final."""

    code = "PH-JOB-007"


class ResultNotKept(JobError):
    """A closure completed, but its result was not JSON, so the store could not keep it."""

    code = "PH-JOB-008"


class StoreError(PoolhandError):
    """A store operation failed; nothing was changed."""

    code = "PH-STO-000"


class Unavailable(StoreError):
    """A store does not answer now; trying again later may help."""

    code = "PH-STO-001"


class Conflict(StoreError):
    """The record had already been changed by another process."""

    code = "PH-STO-002"


class SessionErased(Conflict):
    """The session of a turn was erased while the turn ran: its state is no longer written."""

    code = "PH-STO-007"


class Unsupported(StoreError):
    """This kind of store cannot do that; the message names one that can."""

    code = "PH-STO-003"


class SchemaTooNew(StoreError):
    """A store was migrated by a newer poolhand, and only that can use it."""

    code = "PH-STO-004"


class Corrupt(StoreError):
    """A store is damaged, or is not a poolhand store; it was not changed."""

    code = "PH-STO-005"


class FileReplaced(Corrupt):
    """The file of a store was replaced while processes had it open."""

    code = "PH-STO-008"


class ReadOnly(StoreError):
    """A store cannot be written to: the disk is full, broken, or write-protected."""

    code = "PH-STO-006"


class WireError(PoolhandError):
    """A value that cannot be encoded, or a payload that cannot or must not be decoded."""

    code = "PH-WIR-000"


class TooLarge(WireError):
    """A payload exceeds `limit`; `size` is its size, where known."""

    code = "PH-WIR-001"

    def __init__(self, message: str, *, limit: int, size: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.size = size


class Undecodable(WireError):
    """Bytes are damaged, of another format, or not of the requested type."""

    code = "PH-WIR-002"


class BadSignature(WireError):
    """Bytes are not signed by a known key, or their signature has expired.

    `missing_key` is the id of the key, where only that key is missing.
    """

    code = "PH-WIR-003"

    def __init__(self, message: str, *, missing_key: str | None = None) -> None:
        super().__init__(message)
        self.missing_key = missing_key


class UnknownVersion(WireError):
    """Bytes have a format that only a newer poolhand can read."""

    code = "PH-WIR-004"


class ToolError(PoolhandError):
    """A tool call that was not made, or failed; `key` is the key of its receipt."""

    code = "PH-TOL-000"

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ToolBusy(ToolError):
    """Another job is making the same call."""

    code = "PH-TOL-001"


class ToolOutcomeUnknown(ToolError):
    """A call that must not be repeated was started and never reported: an operator must decide."""

    code = "PH-TOL-002"


class IdempotencyConflict(ToolError):
    """The key of a tool call or of a submit stands for another call; `job_id`: that of its job."""

    code = "PH-TOL-003"

    def __init__(self, message: str, *, key: str = "", job_id: str = "") -> None:
        super().__init__(message, key=key)
        self.job_id = job_id


class Directive(PoolhandError):
    """Raised by a job to decide what happens to it next."""

    code = "PH-DIR-000"


class RetryLater(Directive):
    """Run this job again after `after` (seconds or a timedelta); the attempt counts."""

    code = "PH-DIR-001"

    def __init__(self, after: float | timedelta, reason: str = "") -> None:
        unit = "" if isinstance(after, timedelta) else " s"
        super().__init__(reason or f"the job asked to be retried after {after}{unit}")
        self.retry_after = after


class Snooze(Directive):
    """Run this job again at `until`; the attempt does not count.

    `until` is a datetime, or seconds or a timedelta from now.
    """

    code = "PH-DIR-002"

    def __init__(self, until: datetime | float | timedelta, reason: str = "") -> None:
        super().__init__(reason or f"the job sleeps until {until}")
        self.until = until


class GiveUp(Directive):
    """Fail this job now; no further attempt would help."""

    code = "PH-DIR-003"

    def __init__(self, reason: str = "the job gave up") -> None:
        super().__init__(reason)
