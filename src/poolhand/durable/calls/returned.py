"""The stored result of a closure: its value if that is JSON, else why it is not stored."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from poolhand.errors import PoolhandError, ResultNotKept, Undecodable, WireError
from poolhand.rules.job import Job
from poolhand.wire.payload import decode, encode

LONGEST_REASON = 300
UNTOLD = "no JSON came of it, or an older poolhand ran it"


class Returned(Struct, frozen=True, array_like=True, tag="poolhand.returned"):
    """The value of a closure."""

    value: Any


class ResultNotStored(Struct, frozen=True, array_like=True, tag="poolhand.unkept"):
    """Why the value of a closure is not stored."""

    reason: str


def pack_returned(value: Any) -> bytes:
    """Return the stored form of a value; waiters in its own process get the value itself."""
    try:
        data = encode(Returned(value), what="it")
        back: Returned = decode(data, Returned, what="it")
        if back.value == value:
            return data
        reason = f"JSON does not give a {type(value).__name__} back as it was"
    except Exception as error:
        # User types may raise anything when they are written or compared.
        reason = _reason(error)
    reason = reason[:LONGEST_REASON].encode(errors="replace").decode()
    return encode(ResultNotStored(reason), what="it")


def unpack_returned(job: Job) -> Any:
    """Return the stored value of a closure, or raise why it is not stored."""
    if job.result is None:
        raise _not_kept(job, UNTOLD)
    try:
        found: Returned | ResultNotStored = decode(
            job.result, Returned | ResultNotStored, what="it"
        )
    except WireError:
        raise Undecodable(
            f"the result of job {job.id} is one of {job.name!a}, which is no task here; import "
            "the module that registers it"
        ) from None
    if isinstance(found, ResultNotStored):
        raise _not_kept(job, found.reason)
    return found.value


def _reason(error: Exception) -> str:
    if isinstance(error, PoolhandError):
        return error.message
    return str(error) if isinstance(error, ValueError) else type(error).__name__


def _not_kept(job: Job, reason: str) -> ResultNotKept:
    return ResultNotKept(
        f"the result of {job.name} (job {job.id}) was not kept, because {reason}; it was for the "
        "process that submitted it: make it a task, or return JSON",
        job_id=job.id,
    )
