"""Decode the answers of child processes: the value a job returned, or the error it raised."""

from __future__ import annotations

from typing import Any

from poolhand.errors import JobFailed
from poolhand.pool.slots.fault import fault_of, remote
from poolhand.pool.slots.process_child import Answer, unpack
from poolhand.pool.slots.process_error import name_kinds, rebuilt


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
        f"job {job_id} returned what cannot be made again outside of its process "
        f"({fault.type}: {fault.message}); return data"
    )
    return JobFailed(text, job_id=job_id)
