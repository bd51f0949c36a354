"""Outcomes: how one attempt ended, and what its error means."""

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
from poolhand.rules.validation import SECONDS, is_seconds, to_seconds

# The error of a job that ended as cancelled although no one cancelled it.
SELF_CANCELLED = Fault(
    "asyncio.CancelledError",
    "its code raised CancelledError (an inner task that was cancelled?); catch it, or raise "
    "another error to have it retried",
)


def is_self_cancelled(status: Status, error: Fault | None) -> bool:
    """Return whether a job ended as cancelled although no one cancelled it."""
    is_own = error is not None and error.type == SELF_CANCELLED.type
    return is_own and status is Status.CANCELLED


class StopRequest(IntEnum):
    """What the slot has asked a running job to do; a higher value overrides a lower one."""

    NOTHING = 0
    SOFT_STOP = 1
    CANCEL = 2
    HARD_STOP = 3


class Completed(Struct, frozen=True):
    """The job returned."""

    value: Any


class Failed(Struct, frozen=True):
    """The job raised or ran out of time; `error` is raised in its caller."""

    error: BaseException
    permanent: bool = False
    on_purpose: bool = False
    retry_after: float | None = None
    mark: str | None = None


class Cancelled(Struct, frozen=True):
    """The job was cancelled, or cancelled itself."""


class Snoozed(Struct, frozen=True):
    """The job asks to run again at a time, or in a number of seconds."""

    until: datetime | float


Outcome = Completed | Failed | Cancelled | Snoozed


def judge_cancelled(asked: StopRequest, job_id: str) -> Outcome:
    """Return the outcome of an attempt that ended by cancellation, given what it was asked."""
    if asked is StopRequest.SOFT_STOP:
        return timed_out(job_id, SOFT_TIMEOUT)
    if asked is StopRequest.HARD_STOP:
        return timed_out(job_id, HARD_TIMEOUT)
    return Cancelled()


def judge_error(error: BaseException, asked: StopRequest, job_id: str) -> Outcome:
    """Return the outcome of an attempt that raised this error, given what it was asked."""
    if asked is StopRequest.HARD_STOP:
        return timed_out(job_id, HARD_TIMEOUT)
    if asked is StopRequest.CANCEL and isinstance(error, RetryLater | Snooze):
        # A cancelled job cannot schedule itself again.
        return Cancelled()
    match error:
        case Snooze(until=until):
            until = to_seconds(until)
            if is_seconds(until) or (isinstance(until, datetime) and until.tzinfo is not None):
                return Snoozed(until)
            return _unreadable(error, f"{SECONDS.text}, from now, or a datetime with a time zone")
        case RetryLater(retry_after=after):
            after = to_seconds(after)
            if is_seconds(after):
                return Failed(error, on_purpose=True, retry_after=after)
            return _unreadable(error, SECONDS.text)
        case (
            GiveUp()
            | SessionErased()
            | SessionForbidden()
            | ToolOutcomeUnknown()
            | IdempotencyConflict()
        ):
            # For all of these another attempt would end in the same way.
            return Failed(error, permanent=True)
        case SystemExit() | KeyboardInterrupt() | GeneratorExit():
            return Failed(_wrapped(error, job_id), permanent=True)
        case StopIteration() | StopAsyncIteration():
            return Failed(_wrapped(error, job_id))
        case RuntimeError(__cause__=StopIteration() as cause):
            # Python turns a StopIteration that leaves a coroutine into this RuntimeError.
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
    """Return the outcome of a job whose error itself raises when it is inspected."""
    text = f"job {job_id} raised an error that cannot be read"
    return Failed(JobFailed(text, job_id=job_id), permanent=True)


def _unreadable(error: Directive, allowed: str) -> Failed:
    fault = UsageError(f"a job raised {error!r}, with an invalid value; expected {allowed}")
    fault.__cause__ = error
    return Failed(fault, permanent=True)


def _wrapped(error: BaseException, job_id: str) -> JobFailed:
    # Raised as they are, these errors would end the caller's event loop or be swallowed by it.
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__ + (f": {text}" if text else "")
    failed = JobFailed(f"job {job_id} raised {name}", job_id=job_id)
    failed.__cause__ = error
    return failed


def _retry_after(error: BaseException) -> float | None:
    """Return the `retry_after` seconds of an error; the errors of many clients have one."""
    try:
        asked: Any = to_seconds(getattr(error, "retry_after", None))
    except Exception:
        return None
    return float(asked) if is_seconds(asked) else None
