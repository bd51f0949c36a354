"""What a child process sends to its parent: the value that a job returned, or the error it raised.

Many errors can be pickled but not unpickled, because their `__init__` takes other arguments than
they keep, and no error carries its cause along: the facts that the retry rules need are sent too.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from poolhand.errors import Directive, GiveUp, JobFailed, RetryLater, Snooze
from poolhand.pool.slots.fault import fault_of, remote
from poolhand.rules.job import Fault
from poolhand.rules.outcome import RAISED_AS, name_of_error
from poolhand.rules.validation import is_seconds, to_seconds

# True and the pickled value, or False, the pickled error (empty: cannot be sent) and its text.
Answer = tuple[bool, bytes, Fault | None]

SCRIPT_THERE, SCRIPT = "__mp_main__.", "__main__."  # the parent's script, as a child imports it


def unpack(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - both ends of the pipe are ours


class RaisedFault(Fault, frozen=True):
    """The text of an error, with the names of its classes and of those of its cause.

    `directive` is the name of its directive class, if it is one. `wait` is the delay that the
    directive requests, or the `retry_after` of a client error.
    """

    kinds: tuple[str, ...] = ()
    directive: str | None = None
    wait: datetime | float | None = None


def raised_fault(error: BaseException) -> RaisedFault:
    """Describe an error in the process that raised it; never raises."""
    fault = fault_of(error, skip=1)
    kinds: tuple[str, ...] = ()
    directive: str | None = None
    wait: datetime | float | None = None
    with suppress(Exception):
        # The error's own attributes may raise.
        kinds = tuple(dict.fromkeys([*_names(error), *_names(error.__cause__)]))
        directive = _directive(error)
        wait = _wait(error)
    return RaisedFault(_here(fault.type), fault.message, fault.traceback, kinds, directive, wait)


def rebuilt(fault: Fault, job_id: str) -> BaseException:
    """Return a replacement for an error that cannot be unpickled: a directive, or JobFailed."""
    wait = fault.wait if isinstance(fault, RaisedFault) else None
    directive = fault.directive if isinstance(fault, RaisedFault) else None
    if directive == "GiveUp":
        return GiveUp(fault.message)
    if directive == "Snooze" and wait is not None:
        return Snooze(wait, fault.message)
    if directive == "RetryLater" and isinstance(wait, float):
        return RetryLater(wait, fault.message)
    text = f"job {job_id} failed in its process: {fault.type}: {fault.message}"
    failed = JobFailed(text, job_id=job_id)
    if wait is not None:
        failed.retry_after = wait  # type: ignore[attr-defined]
    return failed


def name_kinds(error: BaseException, fault: Fault) -> None:
    """Attach to an error the class names it and its cause had in the process that raised it."""
    if isinstance(fault, RaisedFault):
        with suppress(Exception):
            setattr(error, RAISED_AS, fault.kinds)


def _names(error: BaseException | None) -> list[str]:
    kinds = () if error is None else type(error).__mro__
    return [_here(name_of_error(kind)) for kind in kinds if issubclass(kind, BaseException)]


def _here(name: str) -> str:
    """Return the name of a class in the parent process."""
    return SCRIPT + name.removeprefix(SCRIPT_THERE) if name.startswith(SCRIPT_THERE) else name


def _directive(error: BaseException) -> str | None:
    found = (kind for kind in (GiveUp, RetryLater, Snooze) if isinstance(error, kind))
    first: type[Directive] | None = next(found, None)
    return None if first is None else first.__name__


def _wait(error: Any) -> datetime | float | None:
    asked = error.until if isinstance(error, Snooze) else getattr(error, "retry_after", None)
    if isinstance(error, Snooze) and isinstance(asked, datetime) and asked.tzinfo is not None:
        return asked.astimezone(UTC)
    seconds = to_seconds(asked)
    return float(seconds) if is_seconds(seconds) else None


def contents_of(answer: Answer, job_id: str) -> tuple[Any, BaseException | None]:
    """Return the value a child sent, or the error its job raised.

    The error is returned, not raised: a stored error would keep the frames of this side alive,
    and with them the child.
    """
    succeeded, content, fault = answer
    value: Any = None
    try:
        value = unpack(content) if content else None
    except BaseException as error:
        if succeeded:
            return None, _unreadable(error, job_id)
    if succeeded:
        return value, None
    assert fault is not None
    if not isinstance(value, BaseException):
        # Many errors can be pickled but not unpickled.
        value = rebuilt(fault, job_id)
    name_kinds(value, fault)
    return None, remote(value, fault.traceback)


def unprepared(answer: Answer) -> JobFailed:
    """Return the error for a job whose child failed in its warm-up."""
    fault = answer[2]
    assert fault is not None
    text = f"the warm-up of the process for a job failed: {fault.type}: {fault.message}"
    failed = JobFailed(text, job_id="")
    remote(failed, fault.traceback)
    return failed


def _unreadable(error: BaseException, job_id: str) -> JobFailed:
    fault = fault_of(error)
    text = (
        f"job {job_id} returned a value that cannot be unpickled outside its process "
        f"({fault.type}: {fault.message}); return data"
    )
    return JobFailed(text, job_id=job_id)
