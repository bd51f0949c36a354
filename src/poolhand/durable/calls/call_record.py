"""The call record: what a worker needs to run a job, besides the job record; written once."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from poolhand.errors import BadSignature, Undecodable
from poolhand.rules.job import Job
from poolhand.rules.retry import Retry, RetryRecord, recorded
from poolhand.runtime import Identity


class CallRecord(Struct, frozen=True, array_like=True, gc=False):
    """The task to run, its arguments, and its run options.

    `payload` holds the arguments, `context` the context values of the submitter. `rerun`: the job
    may run again when a process dies under it. A `closure` can run only in the process that
    submitted it, its `home`. A signed record names the `run` it was signed for. `version` is that
    of the task's parameters when it was submitted, `source` the end of its file's path. Fields are
    written by position: new ones are added at the end, and older code ignores them.
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

    @property
    def policy(self) -> Retry | None:
        return None if self.retry is None else self.retry.retry()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CallRecord)


def write_brief(brief: CallRecord) -> bytes:
    return _encoder.encode(brief)


def read_brief(data: bytes, job_id: str) -> CallRecord:
    """Return the call record of a job, or raise Undecodable."""
    try:
        return _decoder.decode(data)
    except Exception as error:
        text = f"what job {job_id} was ordered with cannot be read: {error}"
        raise Undecodable(text[:500]) from error


CALL, CONTEXT, RESULT = "call", "context", "result"


def bound_to(job: Job, brief: CallRecord, run: str) -> tuple[Any, ...]:
    """Return the values that a signed call is bound to: its identity, and how it may be run."""
    retry = brief.retry
    return (
        run,
        brief.task,
        job.pool,
        job.tenant,
        job.session,
        job.user,
        _seconds(brief.timeout),
        _seconds(brief.soft_timeout),
        None if retry is None else _numbers(retry),
        brief.run_in,
        brief.rerun,
    )


def bound(purpose: str, to: tuple[Any, ...]) -> bytes:
    """Return the bound values as bytes to be signed; each purpose gives different bytes."""
    return _encoder.encode((purpose, to))


def bound_result(job: Job) -> bytes:
    """Return the bytes that the result of a job is bound to."""
    return bound(RESULT, (job.id, job.name))


def expect_own_run(brief: CallRecord, job: Job) -> None:
    """Raise if the call in a record was signed for another job than the one that has it."""
    if brief.run is not None and brief.run != job.run:
        raise BadSignature(
            f"the kept call of {brief.task} was signed for job {brief.run!a}, and job {job.id} has "
            "it: it was copied, and is not made; submit it anew"
        )


def _seconds(number: float | None) -> float | None:
    # Convert, as a number is decoded as a float: the bytes must be the same before and after.
    return None if number is None else float(number)


def _numbers(retry: RetryRecord) -> tuple[Any, ...]:
    attempts, *numbers, give_up_on = astuple(retry)
    return (attempts, *map(float, numbers), give_up_on)


def record_of(retry: Retry | None) -> RetryRecord | None:
    return None if retry is None else recorded(retry)
