"""Sessions as an operator sees them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from poolhand.execute.execution import Execution, read_execution
from poolhand.operate.operable import Operable
from poolhand.rules import streams
from poolhand.sessions.record import read

AT_ONCE = 1000


class SessionView(Struct, frozen=True):
    """A session; `revision` counts how often it was written, `turn` is the job that did so last."""

    id: str
    tenant: str | None
    user: str | None
    revision: int
    schema: int
    turn: str
    bytes: int
    state: dict[str, Any] | None = None


class SessionsView(Struct, frozen=True):
    """Some sessions, and the cursor that goes on behind them, None at the end."""

    sessions: tuple[SessionView, ...]
    after: str | None = None


async def sessions_of(store: Operable, tenant: str | None, after: str, limit: int) -> SessionsView:
    """Return a page of the sessions of a tenant, or of all."""
    prefix = streams.SESSIONS if tenant is None else streams.sessions_of(tenant)
    keys = await store.scan(prefix, after, limit + 1)
    found = [await _view(store, key, with_state=False) for key in keys[:limit]]
    views = tuple(one for one in found if one is not None)
    return SessionsView(views, keys[limit - 1] if len(keys) > limit else None)


async def session_of(store: Operable, tenant: str | None, id: str) -> SessionView | None:
    """Return one session with its state."""
    return await _view(store, streams.session_of(tenant, id), with_state=True)


async def history_of(store: Operable, tenant: str | None, id: str) -> list[Execution]:
    """Return the attempts at the turns of a session."""
    stream, last = streams.executions_of(tenant, id), 0
    found: list[Execution] = []
    while lines := await store.read(stream, last, AT_ONCE):
        last = lines[-1].number
        found += [read_execution(line.body) for line in lines]
    return found


async def _view(store: Operable, key: str, with_state: bool) -> SessionView | None:
    kept = await store.get_document(key)
    if kept is None:
        return None
    data, revision = kept
    record = read(data)
    whose = (record.id, record.tenant, record.user)
    state = record.state if with_state else None
    return SessionView(*whose, revision, record.schema, record.turn, len(data), state)
