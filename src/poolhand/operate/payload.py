"""Arguments and result of a job, as far as both can be decoded without its app."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from poolhand.contract import Stored
from poolhand.durable.calls.call_record import read_brief
from poolhand.durable.calls.returned import unpack_returned
from poolhand.durable.calls.serializer import read_without_keys
from poolhand.errors import PoolhandError
from poolhand.operate.operable import Operable
from poolhand.rules.job import Job
from poolhand.rules.values.escape import safe

LONGEST_SHOWN = 4_000  # characters of a value in text output
_CLOSURE = "a closure: its arguments are in the process that submitted it"


class PayloadView(Struct, frozen=True):
    """The arguments of a job, by parameter name, and its result.

    A value that cannot be decoded here is None, and its note says why.
    """

    id: str
    task: str
    arguments: dict[str, Any] | None
    arguments_note: str | None
    has_result: bool
    result: Any
    result_note: str | None


async def payload_of(store: Operable, id: str) -> PayloadView | None:
    """Return the arguments and the result of a job; None if there is no such job."""
    (stored,) = await store.get([id])
    brief = None if stored is None else await store.brief(id)
    return None if stored is None or brief is None else payload_view(stored, brief)


def payload_view(stored: Stored, brief: bytes) -> PayloadView:
    """Return the view of a job's stored call record and result."""
    job = stored.job
    arguments, note, is_closure = _arguments(brief, job.id)
    value, result_note = _result(job, is_closure)
    has_result = job.result is not None
    return PayloadView(job.id, job.name, arguments, note, has_result, value, result_note)


def payload_lines(view: PayloadView | None, advice: str) -> list[str]:
    """Return a payload as lines of text: long values cut, control characters escaped.

    The `advice` says how to see all of a value that is cut.
    """
    if view is None:
        return []
    lines = _lines("arguments", view.arguments, view.arguments_note, advice)
    if view.has_result:
        lines += _lines("result", view.result, view.result_note, advice)
    return lines


def _lines(name: str, value: Any, note: str | None, advice: str) -> list[str]:
    if note is not None:
        return [f"{name}: {safe(note)}"]
    text = msgspec.json.encode(value).decode()
    if len(text) <= LONGEST_SHOWN:
        return [f"{name}: {safe(text)}"]
    cut = f"{len(text) - LONGEST_SHOWN:,} of {len(text):,} characters are left out"
    return [f"{name}: {safe(text[:LONGEST_SHOWN])}…", f"({cut}; {advice})"]


def _arguments(brief: bytes, job_id: str) -> tuple[dict[str, Any] | None, str | None, bool]:
    """Return the arguments of a call, or a note why not; and whether it is a closure."""
    try:
        told = read_brief(brief, job_id)
    except PoolhandError as error:
        return None, str(error), False
    if told.closure:
        return None, _CLOSURE, True
    call, note = read_without_keys(told.payload)
    match call:
        case [_, list(), dict(arguments)]:
            return arguments, None, False
        case _:
            return None, note or "not a call that this version of poolhand knows", False


def _result(job: Job, is_closure: bool) -> tuple[Any, str | None]:
    if not isinstance(job.result, bytes):
        return job.result, None
    if not is_closure:
        return read_without_keys(job.result)
    try:
        return unpack_returned(job), None
    except PoolhandError as error:
        return None, str(error)
