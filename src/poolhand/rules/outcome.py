"""Outcomes: what the end of one attempt means."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Any

from msgspec import Struct

from poolhand.errors import (
    Directive,
    GiveUp,
    IdempotencyConflict,
    JobFailed,
    JobTimedOut,
    RetryLater,
    SessionErased,
    SessionForbidden,
    Snooze,
    ToolOutcomeUnknown,
    UsageError,
)
from poolhand.rules.job import HARD_TIMEOUT, SOFT_TIMEOUT, Fault, Status
from poolhand.rules.validation import SECONDS_ALLOWED, is_seconds, to_seconds

# The error of a job that ended as cancelled although no one cancelled it.
SELF_CANCELLED = Fault(
    "asyncio.CancelledError",
    "its code raised CancelledError (an inner task that was cancelled?); catch it, or raise "
    "another error to have it retried",
)


def is_self_cancelled(status: Status, error: Fault | None) -> bool:
    """Tell whether a job ended as cancelled although no one cancelled it."""
    is_own = error is not None and error.type == SELF_CANCELLED.type
    return is_own and status is Status.CANCELLED


class StopRequest(IntEnum):
    """What the slot has asked a running job to do; the higher overrules the lower."""

    NOTHING = 0
    SOFT_STOP = 1
    CANCEL = 2
    HARD_STOP = 3


class Completed(Struct, frozen=True):
    """The job returned."""

    value: Any


class Failed(Struct, frozen=True):
    """The job raised or ran out of time; `error` is what its caller gets."""

    error: BaseException
    permanent: bool = False
    on_purpose: bool = False
    retry_after: float | None = None
    mark: str | None = None


class Cancelled(Struct, frozen=True):
    """The job was cancelled, or cancelled itself."""


class Snoozed(Struct, frozen=True):
    """The job wants to run again at a moment, or in so many seconds."""

    until: datetime | float


Outcome = Completed | Failed | Cancelled | Snoozed


def judge_cancelled(asked: StopRequest, job_id: str) -> Outcome:
    """Say what it means that an attempt ended by cancellation after having been asked that."""
    if asked is StopRequest.SOFT_STOP:
        return timed_out(job_id, SOFT_TIMEOUT)
    if asked is StopRequest.HARD_STOP:
        return timed_out(job_id, HARD_TIMEOUT)
    return Cancelled()


def judge_error(error: BaseException, asked: StopRequest, job_id: str) -> Outcome:
    """Say what it means that an attempt ended with this error after having been asked that."""
    if asked is StopRequest.HARD_STOP:
        return timed_out(job_id, HARD_TIMEOUT)
    if asked is StopRequest.CANCEL and isinstance(error, RetryLater | Snooze):
        # Who was told to stop does not come back by its own wish.
        return Cancelled()
    match error:
        case Snooze(until=until):
            until = to_seconds(until)
            if is_seconds(until) or (isinstance(until, datetime) and until.tzinfo is not None):
                return Snoozed(until)
            return _unreadable(
                error, f"{SECONDS_ALLOWED}, from now, or a datetime with a time zone"
            )
        case RetryLater(retry_after=after):
            after = to_seconds(after)
            if is_seconds(after):
                return Failed(error, on_purpose=True, retry_after=after)
            return _unreadable(error, SECONDS_ALLOWED)
        case (
            GiveUp()
            | SessionErased()
            | SessionForbidden()
            | ToolOutcomeUnknown()
            | IdempotencyConflict()
        ):
            # What comes behind the first, another attempt would meet again.
            return Failed(error, permanent=True)
        case SystemExit() | KeyboardInterrupt() | GeneratorExit():
            return Failed(_wrapped(error, job_id), permanent=True)
        case StopIteration() | StopAsyncIteration():
            return Failed(_wrapped(error, job_id))
        case RuntimeError(__cause__=StopIteration() as cause):
            # What Python makes of a StopIteration that leaves a coroutine.
            return Failed(_wrapped(cause, job_id))
        case _:
            return Failed(error, retry_after=_retry_after(error))


def timed_out(job_id: str, mark: str) -> Failed:
    """Return the outcome of a job that ran past its soft or hard timeout."""
    name = mark.replace("_", " ")
    return Failed(
        JobTimedOut(
            f"job {job_id} ran past its {name}; give it more time or make it do less",
            job_id=job_id,
        ),
        mark=mark,
    )


def unreadable(job_id: str) -> Failed:
    """Return the outcome of a job whose error breaks whoever looks at it."""
    text = f"job {job_id} raised an error that cannot be read"
    return Failed(JobFailed(text, job_id=job_id), permanent=True)


def _unreadable(error: Directive, allowed: str) -> Failed:
    fault = UsageError(f"a job raised {error!r}, which nobody can obey; give it {allowed}")
    fault.__cause__ = error
    return Failed(fault, permanent=True)


def _wrapped(error: BaseException, job_id: str) -> JobFailed:
    # These would end the caller's loop or be swallowed by it if they were raised there as they are.
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__ + (f": {text}" if text else "")
    failed = JobFailed(f"job {job_id} raised {name}", job_id=job_id)
    failed.__cause__ = error
    return failed


def _retry_after(error: BaseException) -> float | None:
    """Return the wait that an error asks for, as many clients' errors do."""
    try:
        wish: Any = to_seconds(getattr(error, "retry_after", None))
    except Exception:
        return None
    return float(wish) if is_seconds(wish) else None
