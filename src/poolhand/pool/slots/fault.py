"""Faults: an error as a record, with its traceback as text of bounded size."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb, format_list
from types import TracebackType

from poolhand.errors import JobCancelled, JobExpired, JobRejected, PoolhandError
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.outcome import Failed, Outcome

MOST_FRAMES = 20  # per exception: those closest to where it was raised
LONGEST_LINE = 2_000
LONGEST_TEXT = 16_000
MOST_REASONS = 3  # sub-exceptions that the message of a group names


def traceback_text(error: BaseException, skip: int, caller: str) -> str:
    """Return what `traceback.format_exception` gives, without the pool's outermost frames.

    These are the first `skip` frames of the error, and the leading frames from the file `caller`.
    Empty for an error that was never raised and has no cause, context or sub-exceptions. Raises
    whatever the methods of the error raise.
    """
    try:
        found = TracebackException(type(error), error, error.__traceback__, compact=True)
        del found.stack[:skip]
        _cut_stacks(found, caller)
        if not (found.stack or found.__cause__ or found.__context__ or found.exceptions):
            return ""
        text = "".join(found.format())
    except BaseException:
        # Formatting raised; the place where the error was raised is known nevertheless.
        frames = extract_tb(error.__traceback__)[skip:]
        text = "".join(format_list(_cut(frames, caller)))
    return bounded(text.rstrip("\n") + "\n") if text else ""


def group_text(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the message of a group with its first sub-exceptions, which are the reason."""
    reasons: list[str] = []
    left: list[BaseException] = [group]
    while left and len(reasons) < MOST_REASONS:
        one = left.pop(0)
        if isinstance(one, BaseExceptionGroup):
            left[:0] = one.exceptions
            continue
        try:
            text = str(one)[:LONGEST_LINE]
        except Exception:
            text = ""
        reasons.append(f"{type(one).__qualname__}: {text}" if text else type(one).__qualname__)
    return f"{group}: {'; '.join(reasons)}{'; …' if left else ''}"


def bounded(text: str) -> str:
    """Shorten a long text by omitting its middle; both ends stay."""
    lines = [_short(line) for line in text.split("\n")]
    if sum(len(line) + 1 for line in lines) <= LONGEST_TEXT:
        return "\n".join(lines)
    first = _fitting(lines, LONGEST_TEXT // 2)
    last = _fitting(lines[::-1], LONGEST_TEXT // 2)
    left_out = len(lines) - first - last
    return "\n".join([*lines[:first], f"  … {left_out:,} lines left out …", *lines[-last:]])


def _short(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def _fitting(lines: list[str], room: int) -> int:
    for count, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return count
    return len(lines)


def _cut_stacks(found: TracebackException, caller: str) -> None:
    """Cut the stacks of an exception and of its causes, contexts and sub-exceptions."""
    left = [found]
    while left:
        one = left.pop()
        one.stack = StackSummary(_cut(one.stack, caller))
        left += [other for other in (one.__cause__, one.__context__) if other is not None]
        left += one.exceptions or ()


def _cut(stack: list[FrameSummary], caller: str) -> list[FrameSummary]:
    start = 0
    while start < len(stack) and stack[start].filename == caller:
        start += 1
    return stack[max(start, len(stack) - MOST_FRAMES) :]


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
        message = "<its message cannot be formatted>"
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
