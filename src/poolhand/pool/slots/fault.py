"""Faults: errors as text that can be stored, and final states as errors to raise."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType

from poolhand.errors import JobCancelled, JobExpired, JobRejected, PoolhandError
from poolhand.pool.slots.traceback_text import group_text, traceback_text
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.outcome import Failed, Outcome

MOST_MESSAGE = 2_000
CALLER = str(Path(__file__).with_name("runner.py"))  # the file that calls the code of jobs


class RemoteTraceback(Exception):
    """The traceback of an error from another process, as text."""


def remote(error: BaseException, where: str) -> BaseException:
    """Attach to an error from another process the traceback it had there."""
    with suppress(Exception):
        if error.__cause__ is None and where:
            error.__cause__ = RemoteTraceback(f"in its process:\n{where}")
    return error


def fault_of(error: BaseException, skip: int = 0) -> Fault:
    """Describe an error; never raises, whatever the error's own methods do.

    `skip` omits the outermost frames of the traceback, which belong to poolhand.
    """
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        # Joined, because the text of an error may be an instance of a str subclass.
        message = "".join(iter(_text(error)))
    except BaseException:
        message = "<its text cannot be made>"
    return Fault(name, message[:MOST_MESSAGE], _traceback(error, skip))


def own_trace(error: BaseException) -> TracebackType | None:
    """Cut the traceback of an error down to the job's own code, and return it.

    The frames before belong to poolhand and reference the job.
    """
    with suppress(Exception):
        # The original of a wrapped error, such as SystemExit, passed through these frames too.
        if error.__cause__ is not None:
            _cut_trace(error.__cause__)
    return _cut_trace(error)


def _cut_trace(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == CALLER:
        trace = trace.tb_next
    BaseException.with_traceback(error, trace)
    return trace


def error_of(job: Job, outcome: Outcome | None) -> BaseException | None:
    """Return the error that the callers of a finished job get instead of a value."""
    match job.status:
        case Status.FAILED:
            assert isinstance(outcome, Failed)
            return outcome.error
        case Status.CANCELLED:
            return JobCancelled(f"job {job.id} was cancelled", job_id=job.id)
        case Status.EXPIRED:
            return JobExpired(f"job {job.id} was still waiting when it expired", job_id=job.id)
        case Status.REJECTED:
            reason, policy = job.rejection_reason or "", job.rejection_policy or ""
            text = f"job {job.id} was rejected ({reason}); submit it again when there is room"
            return JobRejected(text, job_id=job.id, reason=reason, policy=policy)
        case _:
            return None


def ending_of(job: Job) -> str | None:
    """Return that error as one line, or None if the job has a value."""
    if job.status is Status.COMPLETED:
        return None
    error = None if job.status is Status.FAILED else error_of(job, None)
    fault = job.error if error is None else fault_of(error)
    assert fault is not None
    name = fault.type.rpartition(".")[2]
    return f"{name}: {fault.message}" if fault.message else name


def _text(error: BaseException) -> str:
    # Without its code: the type says as much, and an outer error adds its own code.
    if isinstance(error, PoolhandError):
        return error.message
    return group_text(error) if isinstance(error, BaseExceptionGroup) else str(error)


def _traceback(error: BaseException, skip: int) -> str:
    try:
        if type(error.__cause__) is RemoteTraceback:
            return str(error.__cause__)
        return traceback_text(error, skip, CALLER)
    except BaseException:
        return ""
