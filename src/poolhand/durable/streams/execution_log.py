"""The execution log of a session: one line for each attempt at each of its turns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from poolhand.contract import Change, LogLine
from poolhand.rules.streams import executions_of
from poolhand.rules.values.plain import PlainView

EXECUTION = "execution"
LONGEST_TEXT = 2_000


class Execution(PlainView, frozen=True):
    """One attempt at one turn. Texts are cut; model, tokens and cost are those of its LLM calls."""

    session: str
    job: str
    attempt: int
    worker: str
    status: str
    at: datetime
    message: str = ""
    result: str = ""
    duration_ms: int | None = None
    error: str = ""
    model: str | None = None
    tokens: int | None = None
    cost: float | None = None


_encode = msgspec.json.Encoder().encode
read_execution = msgspec.json.Decoder(Execution).decode


class AttemptLine(Struct, frozen=True):
    """An attempt as its worker knows it: where it ran, and its call."""

    attempt: int
    worker: str
    call: Callable[[], Any] | None = None


def logged(change: Change, tried: AttemptLine, at: datetime, value: Any = None) -> Change:
    """Return a change with the line of its attempt, if its job is a turn of a session."""
    job = change.job
    if job.session is None:
        # Reaped jobs include jobs without a session.
        return change
    line = Execution(
        job.session,
        job.id,
        tried.attempt,
        tried.worker,
        job.status.value,
        at,
        _text(tried.call.args) if isinstance(tried.call, partial) else "",
        "" if value is None else _text(value),
        None if job.ran is None else round(job.ran * 1000),
        "" if job.error is None else f"{job.error.type}: {job.error.message}"[:LONGEST_TEXT],
    )
    stream = executions_of(job.tenant, job.session)
    return replace(change, log=(*change.log, LogLine(stream, EXECUTION, _encode(line))))


def _text(value: Any) -> str:
    """Return a value as text that can be shown and stored."""
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except Exception:
        text = type(value).__name__
    return text[:LONGEST_TEXT].encode(errors="replace").decode()
