"""Operations on farms: read their records, send control requests and await the answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TypeGuard

import msgspec
from msgspec.structs import replace

from poolhand.contract import Document, Lease, LogLine, Put, Store
from poolhand.durable.leases.reaper import is_gone
from poolhand.errors import Unavailable, UsageError
from poolhand.farm.records import (
    ANSWERS,
    FARMS,
    KEEP,
    KEEP_REQUEST,
    REQUESTS,
    TOPIC,
    ControlAnswer,
    ControlKind,
    ControlRequest,
    FarmRecord,
    write,
)
from poolhand.rules import audit
from poolhand.rules.plain import PlainView
from poolhand.rules.validation import is_int, shown
from poolhand.runtime import Identity, Runtime

AT_ONCE = 100
MOST_WORKERS = 1_000
ANSWER_WITHIN = 10.0
LOOK_AGAIN = 0.1  # first pause between two polls for an answer; it grows up to the next value
LOOK_AGAIN_AT_MOST = 0.5
BOUNDS_ALLOWED = (
    f"minimum must be an int from 0, maximum from 1, both up to {MOST_WORKERS:,}, "
    "and the minimum no more than the maximum"
)
ID = re.compile(r"(?P<farm>[^/]{1,300}-[0-9a-f]{6})(?P<worker>\.[0-9]{1,18})?")

AUDITED = {
    ControlKind.DRAIN: audit.FARM_DRAIN,
    ControlKind.RESTART: audit.FARM_RESTART,
    ControlKind.BOUNDS: audit.FARM_BOUNDS,
}


class LoneWorker(PlainView, frozen=True):
    """A worker process without a supervisor; `holds` counts its jobs."""

    id: str
    host: str
    pid: int
    holds: int


class WorkersView(PlainView, frozen=True):
    """All workers of a store: farms with their workers, and workers without a farm."""

    farms: tuple[FarmRecord, ...]
    alone: tuple[LoneWorker, ...]


async def farms_of(store: Store) -> list[FarmRecord]:
    """Return all farms whose records this version can decode, ordered by id."""
    found: list[FarmRecord] = []
    after = ""
    while keys := await store.scan(FARMS, after, AT_ONCE):
        after = keys[-1]
        for key in keys:
            record = await _record(store, key)
            found += [] if record is None else [record]
    return found


async def farm_of(store: Store, id: str) -> FarmRecord | None:
    """Return one farm."""
    return await _record(store, f"{FARMS}{id}") if parts_of(id) == (id, None) else None


async def workers_of(store: Store, here: Identity) -> WorkersView:
    """Return all workers, without lone processes of this machine that have ended."""
    # Read leases first, or a worker that a farm starts meanwhile would count as alone.
    leases = await store.leases()
    farms = await farms_of(store)
    supervised = {(farm.host, pid) for farm in farms for pid in _pids(farm)}
    lone = [
        LoneWorker(one.owner.id, one.owner.host, one.owner.pid, one.held)
        for one in leases
        if is_at_work(one, here) and (one.owner.host, one.owner.pid) not in supervised
    ]
    return WorkersView(tuple(farms), tuple(sorted(lone, key=lambda one: one.id)))


def silence_text(farm: FarmRecord) -> str:
    """Return the text for a farm whose supervisor is silent, and what to do."""
    host = farm.host.partition("/")[0]
    return (
        f"no message from the supervisor (process {farm.pid} on {host}) for {farm.age:.0f} s: it "
        "was killed, hangs or cannot reach the store; the state of its workers is older than that. "
        f"If it has died, start it again: `poolhand work {farm.app}`"
    )


def parts_of(id: object) -> tuple[str, str | None] | None:
    """Split an id into farm id and worker id (None for a farm); None if it is neither."""
    found = ID.fullmatch(id) if isinstance(id, str) else None
    if found is None or not found[0].isprintable():
        return None
    return found["farm"], found[0] if found["worker"] else None


class FarmControl:
    """Sends control requests to farms and returns their answers.

    The audit log records the operator before the request is sent.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    async def drain(self, id: str, by: str) -> ControlAnswer | None:
        """Request that a farm, or one worker, finishes its running jobs and ends."""
        return await self._of(id, ControlKind.DRAIN, by)

    async def restart(self, id: str, by: str) -> ControlAnswer | None:
        """Request that a farm replaces all its workers."""
        return await self._of(id, ControlKind.RESTART, by)

    async def bounds(
        self, id: str, minimum: int | None, maximum: int | None, by: str
    ) -> ControlAnswer | None:
        """Request another minimum or maximum number of workers."""
        farm = await farm_of(self._store, id)
        lowest, highest = (0, MOST_WORKERS) if farm is None else (farm.minimum, farm.maximum)
        _check_bounds(minimum, maximum, lowest, highest)
        if farm is None:
            return None
        request = ControlRequest(
            self._runtime.salt(), ControlKind.BOUNDS, by, minimum=minimum, maximum=maximum
        )
        return await self._send(id, request, f"{id} {_or_none(minimum)}-{_or_none(maximum)}")

    async def snapshot(self, id: str, after: int, limit: int) -> ControlAnswer | None:
        """Request the running and recently finished jobs of a farm or a worker."""
        return await self._of(id, ControlKind.SNAPSHOT, "", after, limit)

    async def _of(
        self, id: str, kind: ControlKind, by: str, after: int = 0, limit: int = 100
    ) -> ControlAnswer | None:
        parts = parts_of(id)
        if parts is None or await farm_of(self._store, parts[0]) is None:
            return None
        farm, worker = parts
        request = ControlRequest(self._runtime.salt(), kind, by, worker, after=after, limit=limit)
        return await self._send(farm, request, id)

    async def _send(self, farm: str, request: ControlRequest, detail: str) -> ControlAnswer:
        """Send a request to a farm, and return its answer."""
        await self._note(request, detail)
        key = f"{REQUESTS}{farm}/{request.id}"
        await self._store.put([Put(key, write(request), ttl=KEEP_REQUEST)])
        self._store.publish(TOPIC)
        answer = await self._answer(request.id, ANSWER_WITHIN)
        if answer is None:
            await self._store.put([Put(key, None)])
            # The answer may have been written just before the delete.
            answer = await self._answer(request.id, 0.0)
        if answer is None:
            raise Unavailable(
                f"farm {farm!r} did not answer within {ANSWER_WITHIN:g} s; "
                "`poolhand workers list` shows whether it is alive and what it has done"
            )
        found = answer.read(ControlAnswer)
        if found is None:
            raise Unavailable(
                f"farm {farm!r} sent an answer that this poolhand cannot decode; use the version "
                "of the farm"
            )
        return found

    async def _note(self, request: ControlRequest, detail: str) -> None:
        kind = AUDITED.get(request.kind)
        if kind is not None:
            record = audit.acted(kind, ("", ""), request.by, detail, self._runtime.wall())
            await self._store.append([LogLine(audit.STREAM, kind, msgspec.json.encode(record))])

    async def _answer(self, id: str, within: float) -> Document | None:
        now = asyncio.get_running_loop().time
        until, pause = now() + within, LOOK_AGAIN
        while True:
            kept = await self._store.get_document(f"{ANSWERS}{id}")
            if kept is not None:
                await self._store.put([Put(f"{ANSWERS}{id}", None)])
                return kept
            if now() >= until:
                return None
            await asyncio.sleep(pause)
            pause = min(LOOK_AGAIN_AT_MOST, 1.5 * pause)


async def _record(store: Store, key: str) -> FarmRecord | None:
    kept = await store.get_document(key)
    record = None if kept is None else kept.read(FarmRecord)
    if kept is None or record is None:
        return None
    # By the store's clock: the clocks of the two machines may differ.
    left = kept.expires_in
    age = 0.0 if left is None else max(0.0, KEEP - left)
    workers = tuple(replace(one, heard=one.heard + age) for one in record.workers)
    return replace(record, age=age, workers=workers)


def _pids(farm: FarmRecord) -> Sequence[int]:
    return [farm.pid, *(worker.pid for worker in farm.workers)]


def is_at_work(lease: Lease, here: Identity) -> bool:
    """Return whether an owner runs workers and is not known here to be dead."""
    return lease.owner.works and not lease.expired and not is_gone(lease.owner, here)


def _check_bounds(minimum: object, maximum: object, lowest: int, highest: int) -> None:
    if minimum is None and maximum is None:
        raise UsageError("give minimum, maximum or both; None leaves one as it is")
    least, most = lowest if minimum is None else minimum, highest if maximum is None else maximum
    if not _is_bound(least, 0) or not _is_bound(most, 1) or least > most:
        raise UsageError(
            f"minimum={shown(minimum)}, maximum={shown(maximum)} is not allowed where there are "
            f"{lowest} to {highest} workers; {BOUNDS_ALLOWED}"
        )


def _is_bound(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and is_int(value) and least <= value <= MOST_WORKERS


def _or_none(bound: int | None) -> str:
    return "" if bound is None else str(bound)
