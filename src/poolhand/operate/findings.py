"""Findings: what is right and wrong with a store, its owners and its jobs, and how to mend it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from poolhand.contract import Filter, Lease, PoolRow, Store
from poolhand.errors import StoreError
from poolhand.farm.maintenance import is_gone
from poolhand.rules.job import Status
from poolhand.runtime import Runtime

LITTLE_SPACE = 1 << 30
NO_SPACE = 64 << 20
CLOCK_SLACK = 5.0
OVERDUE = 60.0


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    WRONG = "WRONG"


class Finding(Struct, frozen=True):
    """What one look found; `fix` says what to do about it."""

    check: str
    level: Level
    text: str
    fix: str | None = None


@runtime_checkable
class InFile(Protocol):
    """A store that is a file of this machine; it can tell of itself without being opened."""

    @property
    def path(self) -> Path:
        """Where it is."""

    async def schema(self) -> tuple[int, int]:
        """Return the number of its schema, 0 for none, and the newest that is known here."""

    async def damage(self) -> list[str]:
        """Read all of it; return what is broken."""


async def examine(store: Store, runtime: Runtime) -> list[Finding]:
    """Look at everything, opening and closing the store.

    The look ends at a file that is damaged or has another schema: opening it would migrate it.
    """
    found = [finding async for finding in _file(store)]
    if any(finding.level is not Level.OK and finding.check != "disk" for finding in found):
        return found
    try:
        await store.open()
    except StoreError as error:
        return [*found, _unusable(error)]
    try:
        found.append(await _writable(store))
        found += await _contents(store, runtime)
    except StoreError as error:
        found.append(_unusable(error))
    finally:
        await store.close()
    return found


async def _file(store: Store) -> AsyncIterator[Finding]:
    if not isinstance(store, InFile):
        return
    yield _space(store.path)
    try:
        damage = await store.damage()
        has, knows = await store.schema()
    except StoreError as error:
        yield _unusable(error)
        return
    yield _sound(store.path, damage)
    yield _schema(has, knows)


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    text = f"{free / (1 << 20):,.0f} MiB are free on the disk of {path}"
    if free < NO_SPACE:
        return Finding("disk", Level.WRONG, text, "free some space: a full disk takes no job")
    if free < LITTLE_SPACE:
        return Finding("disk", Level.WARN, text, "free some space before the disk is full")
    return Finding("disk", Level.OK, text)


def _sound(path: Path, damage: Sequence[str]) -> Finding:
    if not damage:
        return Finding("file", Level.OK, "the file is whole")
    text = f"the file is damaged: {damage[0]}"
    more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
    fix = f"stop everything that uses {path}, keep a copy of it, and restore a backup"
    return Finding("file", Level.WRONG, text + more, fix)


def _schema(has: int, knows: int) -> Finding:
    if has == knows:
        return Finding("schema", Level.OK, f"the schema is number {has}, the newest")
    if has == 0:
        text = "the file is no store of poolhand yet"
        fix = "check the name, or make one of it with `poolhand migrate`"
        return Finding("schema", Level.WRONG, text, fix)
    if has > knows:
        text = f"the schema is number {has}, this poolhand knows {knows}"
        return Finding("schema", Level.WRONG, text, "use the newer version of poolhand")
    text = f"the schema is number {has}, this poolhand brings {knows}"
    return Finding("schema", Level.WARN, text, "run `poolhand migrate`, or start the app")


def _unusable(error: StoreError) -> Finding:
    return Finding("store", Level.WRONG, f"it cannot be used: {error} [{error.code}]", _cure(error))


def _cure(error: StoreError) -> str:
    # The message of an error says what to do; this adds where to look.
    return f"{type(error).__name__} is explained in the operating guide, under exit codes"


async def _writable(store: Store) -> Finding:
    try:
        await store.check()
    except StoreError as error:
        return _unusable(error)
    return Finding("store", Level.OK, "it could take a job now")


async def _contents(store: Store, runtime: Runtime) -> list[Finding]:
    now = runtime.wall()
    leases = await store.leases()
    pools = await store.pools()
    here = runtime.identity()
    dead = [lease for lease in leases if lease.buried or is_gone(lease.owner, here)]
    return [
        await _clock(store, now),
        _owners(leases, dead),
        *_unserved(pools, any(one.owner.works for one in leases if one not in dead)),
        await _due(store, now),
    ]


async def _clock(store: Store, now: datetime) -> Finding:
    """Compare the clock with the newest job: nothing was submitted in the future."""
    page = await store.find(Filter(), limit=1)
    ahead = (page.jobs[0].job.submitted_at - now).total_seconds() if page.jobs else 0.0
    if ahead <= CLOCK_SLACK:
        return Finding("clock", Level.OK, "the clock of this machine agrees with the store")
    text = f"the newest job was submitted {ahead:.0f} s from now by the clock of this machine"
    fix = "set the clock (NTP) here and on the machines that submit; times shown are off till then"
    return Finding("clock", Level.WRONG, text, fix)


def _owners(leases: Sequence[Lease], dead: Sequence[Lease]) -> Finding:
    holds = sum(lease.holds for lease in dead)
    if not dead:
        text = f"{_many(len(leases), 'owner')}, none of them known to be dead"
        return Finding("leases", Level.OK, text)
    who = ", ".join(f"{lease.owner.host} pid {lease.owner.pid}" for lease in dead[:3])
    text = f"{_many(len(dead), 'dead owner')} ({who}) still holding {_many(holds, 'job')}"
    if not holds:
        return Finding("leases", Level.OK, text)
    fix = "start a worker: it takes them back at once on this machine, else within 35 s"
    return Finding("leases", Level.WRONG, text, fix)


def _unserved(pools: Sequence[PoolRow], served: bool) -> Iterator[Finding]:
    """Tell of jobs that nobody will run as things are."""
    waiting = [pool for pool in pools if pool.queued]
    paused = [pool for pool in waiting if pool.paused]
    for pool in paused:
        name = pool.spec.name
        text = f"{_waiting(pool.queued)} in pool {name!r}, which is paused"
        fix = f"`poolhand pools resume {shlex.quote(name)}` lets them run"
        yield Finding("jobs", Level.WARN, text, fix)
    queued = sum(pool.queued for pool in waiting if not pool.paused)
    if queued and not served:
        text = f"{_waiting(queued)} and no worker is connected"
        yield Finding("jobs", Level.WRONG, text, "start a worker of the app")
    elif not paused:
        yield Finding("jobs", Level.OK, "no job waits without anybody to run it")


async def _due(store: Store, now: datetime) -> Finding:
    page = await store.find(Filter(statuses=(Status.SCHEDULED,)), limit=1000)
    late = [
        one.job
        for one in page.jobs
        if one.job.run_at is not None and (now - one.job.run_at).total_seconds() > OVERDUE
    ]
    if not late:
        return Finding("schedule", Level.OK, "no job is overdue")
    text = f"{_many(len(late), 'job')} should have been queued over {OVERDUE:.0f} s ago"
    return Finding("schedule", Level.WRONG, text, "start a worker of the app: workers do that")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _waiting(count: int) -> str:
    return f"{_many(count, 'job')} {'waits' if count == 1 else 'wait'}"
