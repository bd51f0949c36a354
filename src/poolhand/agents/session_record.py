"""The stored record of a session: its state, its tenant and user, and the turn that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from poolhand.errors import SchemaTooNew, TooLarge, UsageError
from poolhand.rules.values.json_values import (
    Changed,
    as_json,
    find_change,
    find_not_finite,
    returned_as,
    told,
)

MOST_STATE = 1024 * 1024  # bytes of JSON, unless the app configures another limit
KEPT_REVISIONS, KEPT_EXECUTIONS = 20, 1000

State = dict[str, Any]
Upcasters = Mapping[int, Callable[[State], State]]


class SessionRecord(Struct, frozen=True):
    """A session as it is stored; `turn` is the job that wrote it, `schema` the state's version.

    A `final` record was written with the outcome of its turn and is never rolled back. `writes`
    counts the writes of that turn, including this one.
    """

    id: str
    tenant: str | None
    user: str | None
    schema: int
    turn: str
    state: State
    final: bool = False
    writes: int = 1


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SessionRecord).decode


def new_state(session_id: str, at: datetime) -> State:
    """Return the initial state of a session that has not been written."""
    return {"session_id": session_id, "messages": [], "context": {}, "created_at": at.isoformat()}


def write(record: SessionRecord, most: int = MOST_STATE) -> bytes:
    """Encode a record for the store, or raise if its state cannot be stored."""
    if not isinstance(record.state, dict):
        kind = type(record.state).__name__
        raise UsageError(f"the state of session {record.id!r} is a {kind}; it must be a dict")
    changed = find_change(record.state)
    if changed is not None:
        raise UsageError(_changed(record.id, changed))
    try:
        data = _encode(record)
    except Exception as error:
        raise UsageError(
            f"the state of session {record.id!r} takes JSON values: {error}"
        ) from error
    # NaN and infinity are written as null.
    not_finite = find_not_finite(record.state) if b"null" in data else None
    if not_finite is not None:
        raise UsageError(
            f"the state of session {record.id!r} holds {not_finite.value} at "
            f"state{not_finite.place}, which is no number in JSON; store None, or a text"
        )
    if len(data) > most:
        raise TooLarge(
            f"the state of session {record.id!r} has {len(data):,} bytes; at most {most:,} "
            "are kept: leave out what can be found elsewhere, or raise the limit: "
            "App(…, limits=Limits(state=…))",
            limit=most,
            size=len(data),
        )
    return data


def _changed(id: str, changed: Changed) -> str:
    text = f"the state of session {id!r} {told(changed, 'state')}"
    if changed.is_key:
        return f"{text}; use str({changed.value!r}) as the key"
    if returned_as(changed.value) is None:
        return f"{text}; store the data it is made from"
    return f"{text}; store {as_json(changed.value, 'state' + changed.place)}, and read it back so"


def read(data: bytes) -> SessionRecord:
    return _decode(data)


def upcast(record: SessionRecord, schema: int, upcasters: Upcasters) -> State:
    """Return the state converted to the current schema."""
    state, known = record.state, record.schema
    if known > schema:
        raise SchemaTooNew(
            f"the state of session {record.id!r} has schema {known}, the agent here {schema}: run "
            "the newer code that wrote it"
        )
    for step in range(known, schema):
        if step not in upcasters:
            raise UsageError(
                f"the state of session {record.id!r} has schema {known}, the agent {schema}: give "
                f"upcasters={{{step}: …}}, which takes it from {step} to {step + 1}"
            )
        state = upcasters[step](state)
    return state
