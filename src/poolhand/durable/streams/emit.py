"""The functions with which a running job emits events: chunks of its answer, and progress."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec

from poolhand.context import TOLD, running
from poolhand.errors import TooLarge, UsageError
from poolhand.rules.streams import MOST_DATA, StreamKind
from poolhand.wire.typed import dump_for_json

_encode = msgspec.json.Encoder(enc_hook=dump_for_json).encode


def emit(chunk: Any) -> Awaitable[None]:
    """Stream a piece of the answer, as JSON: `await emit(token)`.

    `ticket.events()` reads it, from any process and as often as needed. Awaiting it waits while the
    store cannot keep up; in a thread the call itself waits. Outside of a stored job it does
    nothing.
    """
    return _tell(StreamKind.CHUNK, chunk, "emit")


def progress(message: str = "", /, **details: Any) -> Awaitable[None]:
    """Report the progress of the job: `await progress("reading", page=3, of=10)`."""
    if not isinstance(message, str):
        raise UsageError(f"progress takes a text and named details, not {message!r}")
    return _tell(StreamKind.PROGRESS, {"message": message, **details}, "progress")


def _tell(kind: StreamKind, value: Any, verb: str) -> Awaitable[None]:
    inside = running.get()
    try:
        data = _encode(value)
    except Exception as error:
        raise UsageError(f"{verb} takes JSON values: {error}") from error
    if len(data) > MOST_DATA:
        raise TooLarge(
            f"{verb} was given {len(data):,} bytes of JSON; at most {MOST_DATA:,} are one event, "
            "send it in pieces",
            limit=MOST_DATA,
            size=len(data),
        )
    return TOLD if inside is None else inside.tell(kind, data)
