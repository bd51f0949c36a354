"""A brief: what a worker is told about a job besides its record, written once."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from poolhand.errors import Undecodable
from poolhand.rules.backoff import Retry, RetryRecord, recorded
from poolhand.runtime import Identity


class PlainBrief(Struct, frozen=True, array_like=True, gc=False):
    """Which task to run, with what, and how it may be treated.

    `payload` holds the arguments. `rerun`: the job may run again when a process dies under it. A
    `closure` lives in the process that submitted it, its `home`, and nowhere else.
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

    @property
    def policy(self) -> Retry | None:
        return None if self.retry is None else self.retry.retry()


class Brief(PlainBrief, frozen=True, array_like=True, gc=False):
    """A brief as it is read; `context` holds what came along from the submitter.

    Most bring nothing, and are written plain: to them this costs neither time nor bytes.
    """

    context: bytes | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Brief)


def write_brief(brief: PlainBrief) -> bytes:
    return _encoder.encode(brief)


def read_brief(data: bytes, job_id: str) -> Brief:
    """Return the brief of a job, or say that its bytes hold none."""
    try:
        return _decoder.decode(data)
    except Exception as error:
        text = f"what job {job_id} was ordered with cannot be read: {error}"
        raise Undecodable(text[:500]) from error


def record_of(retry: Retry | None) -> RetryRecord | None:
    return None if retry is None else recorded(retry)
