"""Operations on sessions: list, show, history and erase."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from poolhand.agents.session import read
from poolhand.contract import Filter, Store
from poolhand.durable.streams.events import bodies_of
from poolhand.durable.streams.job_api import Execution, read_execution
from poolhand.errors import Unavailable
from poolhand.rules import streams
from poolhand.rules.job import Job
from poolhand.rules.plain import PlainView
from poolhand.rules.receipts import RECEIPTS, Receipt, ReceiptStage, is_former, receipts_of_session
from poolhand.rules.receipts import read as read_receipt

AT_ONCE = 1000
STOP_WITHIN = 30.0
LOOK_AGAIN = 0.1


class SessionView(PlainView, frozen=True):
    """A session; `revision` counts its writes, `turn` is the job that wrote it last."""

    id: str
    tenant: str | None
    user: str | None
    revision: int
    schema: int
    turn: str
    bytes: int
    state: dict[str, Any] | None = None


class ErasedView(PlainView, frozen=True):
    """An erased session, and how many turns were erased with it."""

    id: str
    tenant: str | None
    turns: int


class SessionsView(PlainView, frozen=True):
    """A page of sessions; `after` is the next cursor, None at the end."""

    sessions: tuple[SessionView, ...]
    after: str | None = None


async def sessions_of(store: Store, tenant: str | None, after: str, limit: int) -> SessionsView:
    """Return a page of the sessions of a tenant, or of all tenants."""
    prefix = streams.SESSIONS if tenant is None else streams.sessions_of(tenant)
    keys = await store.scan(prefix, after, limit + 1)
    found = [await _view(store, key, with_state=False) for key in keys[:limit]]
    views = tuple(one for one in found if one is not None)
    return SessionsView(views, keys[limit - 1] if len(keys) > limit else None)


async def session_of(store: Store, tenant: str | None, id: str) -> SessionView | None:
    """Return one session with its state."""
    return await _view(store, streams.session_of(tenant, id), with_state=True)


async def tenants_of(store: Store, id: str) -> list[str | None]:
    """Return the tenants that have a session of this name; None stands for no tenant."""
    found: list[str | None] = []
    after = ""
    for _ in range(AT_ONCE):
        keys = await store.scan(streams.SESSIONS, after, 1)
        if not keys:
            break
        tenant = keys[0].removeprefix(streams.SESSIONS).partition("/")[0]
        view = await _view(store, f"{streams.SESSIONS}{tenant}/{streams.part(id)}", False)
        if view is not None:
            found.append(view.tenant)
        # Skip all sessions of this tenant: "0" sorts after "/".
        after = f"{streams.SESSIONS}{tenant}0"
    return found


async def history_of(store: Store, tenant: str | None, id: str) -> list[Execution]:
    """Return the attempts of all turns of a session."""
    bodies = await bodies_of(store, streams.executions_of(tenant, id))
    return [read_execution(body) for body in bodies]


async def erase_session(store: Store, tenant: str | None, id: str, by: str) -> ErasedView | None:
    """Cancel the turns of a session, then delete it, its turns and their event streams."""
    key = streams.session_of(tenant, id)
    turns = await _turns_of(store, tenant, id)
    if not turns and await store.get_document(key) is None:
        return None
    await store.cancel([job.id for job in turns if not job.status.terminal], by)
    ids = [job.id for job in turns]
    await _until_over(store, ids, id)
    documents = [key, *await _receipts(store, tenant, id, turns)]
    erased = await store.erase(ids, streams.streams_of_session(tenant, id), by, documents)
    await _until_gone(store, [one for one in ids if one not in set(erased)], id, by)
    return ErasedView(id, tenant, len(ids))


async def _receipts(store: Store, tenant: str | None, id: str, turns: Sequence[Job]) -> list[str]:
    """Return the receipts of a session, except those of its runs, which are erased with them.

    A receipt that another job has claimed meanwhile stays: its call must not be made twice.
    """
    ids = {job.id for job in turns} | {job.run for job in turns}
    found = []
    async for key, receipt in _kept(store, receipts_of_session(tenant, id)):
        if receipt.stage is not ReceiptStage.CLAIMED or receipt.job in ids:
            found.append(key)
    async for key, receipt in _kept(store, RECEIPTS, is_former):
        if receipt.job in ids:
            found.append(key)
    return found


async def _kept(
    store: Store, prefix: str, wanted: Callable[[str], bool] = lambda key: True
) -> AsyncIterator[tuple[str, Receipt]]:
    """Yield the receipts under a key prefix, up to the first key that is not wanted."""
    after = ""
    while keys := await store.scan(prefix, after, AT_ONCE):
        for key in keys:
            if not wanted(key):
                return
            kept = await store.get_document(key)
            if kept is not None:
                yield key, read_receipt(kept[0])
        after = keys[-1]


async def _turns_of(store: Store, tenant: str | None, id: str) -> list[Job]:
    """Return all stored turns of a session; without a tenant, those that have none."""
    which, after = Filter(session=id, tenant=tenant), None
    found: list[Job] = []
    while True:
        page = await store.find(which, after, AT_ONCE)
        found += [one.job for one in page.jobs if one.job.tenant == tenant]
        after = page.after
        if after is None:
            return found


async def _until_over(store: Store, ids: Sequence[str], session: str) -> None:
    """Wait until the cancelled turns have ended."""
    try:
        async with asyncio.timeout(STOP_WITHIN):
            while True:
                found = await store.get(ids)
                if all(one is None or one.job.status.terminal for one in found):
                    return
                await asyncio.sleep(LOOK_AGAIN)
    except TimeoutError:
        raise Unavailable(
            f"a turn of session {session!r} was asked to stop and does not: nothing was erased; "
            "try again when its worker is back, or it has ended"
        ) from None


async def _until_gone(store: Store, ids: Sequence[str], session: str, by: str) -> None:
    """Erase ended turns as soon as their code has stopped running."""
    try:
        async with asyncio.timeout(STOP_WITHIN):
            while ids:
                await store.erase(ids, (), by)
                found = await store.get(ids)
                ids = [one.job.id for one in found if one is not None]
                await asyncio.sleep(LOOK_AGAIN if ids else 0)
    except TimeoutError:
        raise Unavailable(
            f"session {session!r} is erased, but not {', '.join(ids)}: the code of that turn still "
            "runs, though it was asked to stop; erase the session again when its worker has ended"
        ) from None


async def _view(store: Store, key: str, with_state: bool) -> SessionView | None:
    kept = await store.get_document(key)
    if kept is None:
        return None
    data, revision, _ = kept
    record = read(data)
    whose = (record.id, record.tenant, record.user)
    state = record.state if with_state else None
    return SessionView(*whose, revision, record.schema, record.turn, len(data), state)
