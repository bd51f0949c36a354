"""The stored bytes of a job: its call record, written once, and the value of a closure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from poolhand.errors import BadSignature, PoolhandError, ResultNotKept, Undecodable, WireError
from poolhand.rules.job import Job
from poolhand.rules.outcome import Retry, RetryRecord, recorded
from poolhand.runtime import Identity
from poolhand.wire.payload import decode, encode


class CallRecord(Struct, frozen=True, array_like=True, gc=False):
    """The task to run, its arguments, and its run options.

    `payload` holds the arguments, `context` the context values of the submitter. `rerun`: the job
    may run again when a process dies under it. A `closure` can run only in the process that
    submitted it, its `home`. A signed record names the `run` it was signed for. `version` is that
    of the task's parameters when it was submitted, `source` the end of its file's path. `digest` is
    that of the arguments, for a job with an idempotency key. Fields are written by position: new
    ones are added at the end, and older code ignores them.
    """

    task: str
    payload: bytes
    retry: RetryRecord | None = None
    timeout: float | None = None
    soft_timeout: float | None = None
    run_in: str | None = None
    rerun: bool = True
    closure: bool = False
    home: Identity | None = None
    context: bytes | None = None
    run: str | None = None
    version: str | None = None
    source: str | None = None
    digest: bytes | None = None

    @property
    def policy(self) -> Retry | None:
        return None if self.retry is None else self.retry.retry()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CallRecord)


def write_call_record(record: CallRecord) -> bytes:
    return _encoder.encode(record)


def read_call_record(data: bytes, job_id: str) -> CallRecord:
    """Return the call record of a job, or raise Undecodable."""
    try:
        return _decoder.decode(data)
    except Exception as error:
        text = f"the call record of job {job_id} cannot be read: {error}"
        raise Undecodable(text[:500]) from error


CALL, CONTEXT, RESULT = "call", "context", "result"


def bound_to(job: Job, record: CallRecord, run: str) -> tuple[Any, ...]:
    """Return the values that a signed call is bound to: its identity, and how it may be run."""
    retry = record.retry
    times = _seconds(record.timeout), _seconds(record.soft_timeout)
    how = None if retry is None else _numbers(retry), record.run_in, record.rerun
    return (run, record.task, job.pool, job.tenant, job.session, job.user, *times, *how)


def bound(purpose: str, to: tuple[Any, ...]) -> bytes:
    """Return the bound values as bytes to be signed; each purpose gives different bytes."""
    return _encoder.encode((purpose, to))


def bound_result(job: Job) -> bytes:
    """Return the bytes that the result of a job is bound to."""
    return bound(RESULT, (job.id, job.name))


def expect_own_run(record: CallRecord, job: Job) -> None:
    """Raise if the call in a record was signed for another job than the one that has it."""
    if record.run is not None and record.run != job.run:
        raise BadSignature(
            f"the stored call of {record.task} was signed for job {record.run!a}, not for job "
            f"{job.id}: it was copied, and is not run; submit the call again"
        )


def _seconds(number: float | None) -> float | None:
    # Convert, as a number is decoded as a float: the bytes must be the same before and after.
    return None if number is None else float(number)


def _numbers(retry: RetryRecord) -> tuple[Any, ...]:
    attempts, *numbers, give_up_on = astuple(retry)
    return (attempts, *map(float, numbers), give_up_on)


def record_of(retry: Retry | None) -> RetryRecord | None:
    return None if retry is None else recorded(retry)


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
            f"the result of job {job.id} was written by task {job.name!a}, which this process "
            "does not have; import the module that registers it"
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
