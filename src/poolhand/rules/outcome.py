"""Outcomes: how one attempt ended, what its error means, and whether the job is retried."""

from __future__ import annotations

import builtins
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import astuple, force_setattr

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
    TooLarge,
    ToolOutcomeUnknown,
    UsageError,
)
from poolhand.misuse import OptionsStruct
from poolhand.rules.job import HARD_TIMEOUT, SOFT_TIMEOUT, Fault, Status
from poolhand.rules.validation import (
    COUNT,
    SECONDS,
    OptionRule,
    OptionTable,
    Seconds,
    check_record,
    convert_seconds,
    is_number,
    is_seconds,
    nearest,
    raise_faults,
    shown,
    to_seconds,
)


def _is_error(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, type) and issubclass(value, BaseException)


def _are_errors(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_error, value))


IS_PERMANENT = "_poolhand_is_permanent"  # on an error: another attempt would end in the same way
RAISED_AS = "_poolhand_raised_as"  # on an error: its class names in the process that raised it

ALLOWED: OptionTable = {
    "attempts": COUNT,
    "first": SECONDS,
    "factor": OptionRule(
        lambda value: is_number(value) and value >= 1, "a number of at least 1 and at most 10**18"
    ),
    "cap": SECONDS,
    "jitter": OptionRule(
        lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1"
    ),
    "give_up_on": OptionRule(_are_errors, "a tuple of exception classes, or of their full names"),
}


class Retry(OptionsStruct, frozen=True):
    """Exponential backoff: `first × factor^n` seconds up to `cap`, shortened by up to `jitter`.

    `attempts` counts the first run too. Errors listed in `give_up_on` are permanent: no retry.
    List an exception class or its full name ("package.module.Class").
    """

    attempts: int = 4
    first: float = 5.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.5
    give_up_on: tuple[type[BaseException] | str, ...] = ()

    def gives_up_on(self, error: BaseException) -> bool:
        """Return whether an error is listed in `give_up_on`."""
        if not self.give_up_on:
            return False
        names = _raised_as(error)
        return any(
            name_of_error(kind) == one if isinstance(one, str) else issubclass(kind, one)
            for kind in type(error).__mro__
            for one in self.give_up_on
            if issubclass(kind, BaseException)
        ) or any(
            (one if isinstance(one, str) else name_of_error(one)) in names
            for one in self.give_up_on
        )

    if TYPE_CHECKING:

        def __init__(
            self,
            attempts: int = 4,
            first: Seconds = 5.0,
            factor: float = 2.0,
            cap: Seconds = 600.0,
            jitter: float = 0.5,
            give_up_on: tuple[type[BaseException] | str, ...] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_seconds(self, "first", "cap")
        check_record(self, ALLOWED)
        raise_faults("Retry", _misspelt(self.give_up_on))


NEAR = 0.85  # least similarity at which a misspelt name is recognised


def _misspelt(errors: tuple[type[BaseException] | str, ...]) -> list[str]:
    """Return the errors about names that are nearly those of built-in exceptions.

    The classes of full names may not be loaded yet, so these cannot be checked.
    """
    names = [one for one in errors if isinstance(one, str) and "." not in one]
    if not names:
        return []
    known = [
        name for name, kind in vars(builtins).items() if isinstance(kind, type) and _is_error(kind)
    ]
    return [
        f"give_up_on={shown(name)} is not an exception; did you mean {near!r}?"
        for name in names
        if name not in known and (near := nearest(name, known, NEAR)) is not None
    ]


def name_of_error(kind: type[BaseException]) -> str:
    """Return the full name of an exception class, "ValueError" for a built-in one."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _raised_as(error: BaseException) -> tuple[str, ...]:
    """Return the class names of an error that another process raised, else an empty tuple."""
    try:
        found = getattr(error, RAISED_AS, ())
    except Exception:
        return ()
    return found if isinstance(found, tuple) else ()


class RetryRecord(Struct, frozen=True, array_like=True):
    """A Retry that can be stored: exception classes are replaced by their names."""

    attempts: int
    first: float
    factor: float
    cap: float
    jitter: float
    give_up_on: tuple[str, ...] = ()

    def retry(self) -> Retry:
        *numbers, names = astuple(self)
        made = Retry(*numbers)
        if names:
            # Not checked again: a version that accepted a misspelt name may have stored it.
            force_setattr(made, "give_up_on", names)
        return made


def recorded(retry: Retry) -> RetryRecord:
    """Return a policy in the form that can be stored."""
    names = (one if isinstance(one, str) else name_of_error(one) for one in retry.give_up_on)
    return RetryRecord(
        retry.attempts, retry.first, retry.factor, retry.cap, retry.jitter, tuple(names)
    )


NO_RETRY = Retry(attempts=1)


def delay(policy: Retry, attempts: int, roll: float, retry_after: float | None = None) -> float:
    """Return the seconds to wait after `attempts` failures; `roll` is a random number in [0, 1).

    A `retry_after` is never shortened; jitter is only added to it.
    """
    if retry_after is not None:
        return retry_after * (1.0 + 0.1 * policy.jitter * roll)
    try:
        grown = policy.first * float(policy.factor) ** (attempts - 1)
    except OverflowError:
        grown = policy.cap if policy.first else 0.0
    return min(policy.cap, grown) * (1.0 - policy.jitter * roll)


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
        case UsageError() | TooLarge() if hasattr(error, IS_PERMANENT):
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
