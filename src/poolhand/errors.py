"""Every error poolhand raises, in one tree.

PoolhandError
├── UsageError            you called it wrong; the message says what is allowed
│   └── SessionForbidden  the session belongs to another user
├── Refused               not now; `retry_after` says when to try again, where known
│   ├── PoolFull          the queue is full (also an asyncio.QueueFull)
│   ├── NoFreeSlot        no slot is free and the pool keeps no queue (also a QueueFull)
│   ├── Draining          the pool is stopping (also a RuntimeError)
│   └── SessionBusy       the session has a turn already, and on_busy="reject" said no
├── JobError              what became of a job
│   ├── JobFailed         it ended with something that cannot be raised again as it is
│   ├── JobTimedOut       it ran past its soft or hard timeout
│   ├── JobCancelled      it was cancelled
│   ├── JobRejected       a drop policy or a drain turned it away
│   ├── JobExpired        it waited longer than `expires`
│   ├── JobLost           the process that ran it died
│   ├── ResultNotKept     it completed elsewhere, and its value is not in the store
│   └── Deadlock          it waits for a job of its own pool that can never start
├── StoreError            what a store could not do; nothing was changed
│   ├── Unavailable       it does not answer, or is busy for too long; try again
│   ├── Conflict          somebody else was first
│   │   └── SessionErased  its session was erased while a turn ran
│   ├── Unsupported       this kind of store cannot do that
│   ├── SchemaTooNew      written by a newer poolhand
│   ├── Corrupt           its file is damaged; the message says what can be saved
│   └── ReadOnly          the disk is full or broken; it takes nothing new until that is mended
├── WireError             a value and its bytes that do not go together
│   ├── TooLarge          more bytes or more levels than the limits allow
│   ├── Undecodable       bytes that hold no value of the wanted type
│   ├── BadSignature      unsigned, altered, expired, or signed with an unknown key
│   └── UnknownVersion    written by a newer poolhand
├── ToolError             what became of a call of a tool
│   ├── ToolBusy          the same call is under way elsewhere
│   ├── ToolOutcomeUnknown  it was begun, and nobody knows whether it was done
│   └── IdempotencyConflict  its key was used with other arguments
└── Directive             what a job raises on purpose
    ├── RetryLater        run me again after that many seconds
    ├── Snooze            run me again at that time; this attempt does not count
    └── GiveUp            do not retry me
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, ClassVar


class PoolhandError(Exception):
    """The root of everything poolhand raises; `code` is stable, the message is for people."""

    code: ClassVar[str] = "PH-000"

    @property
    def message(self) -> str:
        """The text without the code."""
        return super().__str__()

    def __str__(self) -> str:
        # The one place where a code is written: texts that quote another error use its `message`.
        text = self.message
        return f"{text} [{self.code}]" if text else f"[{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        # The usual way would call the constructor with the message alone.
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
    """A session belongs to another user, or to none: it is neither used nor read."""

    code = "PH-USE-002"


class Refused(PoolhandError):
    """Work that was not accepted; nothing is left behind."""

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
    """The pool is draining or stopped and takes no new work."""

    code = "PH-POL-003"


class SessionBusy(Refused):
    """A session has a turn already."""

    code = "PH-POL-004"


class JobError(PoolhandError):
    """The fate of one job, named by `job_id`."""

    code = "PH-JOB-000"

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobError):
    """A job failed and its own exception cannot be raised here; see `__cause__`."""

    code = "PH-JOB-001"


class JobTimedOut(JobError):
    """A job ran past its timeout. Not a TimeoutError, which a job may raise for itself."""

    code = "PH-JOB-002"


class JobCancelled(JobError):
    """A job was cancelled before it finished."""

    code = "PH-JOB-003"


class JobRejected(JobError):
    """A waiting or new job was turned away by the pool's policy or by a drain."""

    code = "PH-JOB-004"

    def __init__(
        self, message: str, *, job_id: str = "", reason: str = "", policy: str = ""
    ) -> None:
        super().__init__(message, job_id=job_id)
        self.reason = reason
        self.policy = policy


class JobExpired(JobError):
    """A job was still waiting when its time ran out."""

    code = "PH-JOB-005"


class Deadlock(JobError):
    """A job waits for a job of its own pool which can never start."""

    code = "PH-JOB-006"


class JobLost(JobError):
    """The process that ran a job died before the job was over."""

    code = "PH-JOB-007"


class ResultNotKept(JobError):
    """A closure completed, and its value was no JSON that a store could keep for others."""

    code = "PH-JOB-008"


class StoreError(PoolhandError):
    """A store could not do what it was asked; it is as it was before."""

    code = "PH-STO-000"


class Unavailable(StoreError):
    """A store does not answer now; trying again later may help."""

    code = "PH-STO-001"


class Conflict(StoreError):
    """What was to be changed had been changed by somebody else before."""

    code = "PH-STO-002"


class SessionErased(Conflict):
    """The session of a turn was erased while the turn ran: its state is not written any more."""

    code = "PH-STO-007"


class Unsupported(StoreError):
    """This kind of store does not have that; the message names one that does."""

    code = "PH-STO-003"


class SchemaTooNew(StoreError):
    """A store was migrated by a newer poolhand, which alone can use it."""

    code = "PH-STO-004"


class Corrupt(StoreError):
    """A store is damaged, or is no store of ours; it was left as it is."""

    code = "PH-STO-005"


class ReadOnly(StoreError):
    """A store cannot be written to: the disk is full, broken, or not ours to write on."""

    code = "PH-STO-006"


class WireError(PoolhandError):
    """A payload that cannot travel, or that arrived as it must not be read."""

    code = "PH-WIR-000"


class TooLarge(WireError):
    """A payload goes beyond `limit`; `size` says by how much, where that is known."""

    code = "PH-WIR-001"

    def __init__(self, message: str, *, limit: int, size: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.size = size


class Undecodable(WireError):
    """Bytes are damaged, of another kind, or not of the wanted type."""

    code = "PH-WIR-002"


class BadSignature(WireError):
    """Bytes are not signed by a key that is known here, or not any more.

    `missing_key` is the id of that key, where it is the one thing missing.
    """

    code = "PH-WIR-003"

    def __init__(self, message: str, *, missing_key: str | None = None) -> None:
        super().__init__(message)
        self.missing_key = missing_key


class UnknownVersion(WireError):
    """Bytes have a format that only a newer poolhand can read."""

    code = "PH-WIR-004"


class ToolError(PoolhandError):
    """A call of a tool that was not made, or ended badly; `key` is that of its receipt."""

    code = "PH-TOL-000"

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ToolBusy(ToolError):
    """The same call is being made by another job."""

    code = "PH-TOL-001"


class ToolOutcomeUnknown(ToolError):
    """A call that must not be repeated was begun and never reported: somebody has to decide."""

    code = "PH-TOL-002"


class IdempotencyConflict(ToolError):
    """The key of a call stands for one with other arguments."""

    code = "PH-TOL-003"


class Directive(PoolhandError):
    """Raised by a job to say what shall happen to it."""

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

    That is a moment, or seconds from now or a timedelta.
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
