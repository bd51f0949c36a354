"""The condition of a store at the start of a test: new, used by another app before, or old.

A used store was closed and opened again. Jobs, documents and streams of others have come and gone:
versions, numbers and tokens do not begin at 1. A pool, a job and a document of others are there.
An old store was written by an earlier version (tests/old_store), with jobs in every state, and
migrated by the present code. Its pools are paused, and due jobs have been promoted: a test meets
only its own jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from poolhand.contract import (
    Change,
    Claim,
    ClaimRequest,
    JobBatch,
    JobRequest,
    LogLine,
    Owner,
    Put,
    Store,
)
from poolhand.rules.job import Job, Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.stored_desk import undeclared
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from poolhand.stores.sqlite.store import SqliteStore
from tests.old_store.load import load_sqlite

STRANGER = "stranger"  # the name of the pool, job, document and stream in a used store
WAITS = "strange-job"  # the job that waits there, in a paused pool
GONE = 1e-6  # seconds after which something is old
MANY = 7


def _order(id: str, **options: object) -> JobRequest:
    fields = {"name": "strange.task", "submitted_at": datetime.now(UTC), **options}
    draft = Job(id=id, pool=STRANGER, pool_id="", status=Status.QUEUED, **fields)  # type: ignore[arg-type]
    return JobRequest(draft, b"")


async def _run(store: Store, *orders: JobRequest) -> None:
    """Add, run and end jobs."""
    await store.add([JobBatch(orders)])
    wanted = ClaimRequest(STRANGER, tuple(range(100)), (STRANGER,))
    claims = (await store.replace((), wanted)).claims
    assert len(claims) == len(orders)
    await store.replace([_ended(claim) for claim in claims])


def _ended(claim: Claim) -> Change:
    job = replace(claim.job, status=Status.COMPLETED, finished_at=claim.job.submitted_at, ran=1.0)
    return Change(job, claim.token)


async def use(store: Store) -> None:
    """Use an open store as another app does; leave it open."""
    await store.enroll(Owner(STRANGER, "strange host", "strange boot", 1, "1", works=True))
    await store.declare(undeclared(STRANGER))
    await _run(store, *(_order(f"pruned-{number}") for number in range(MANY)))
    await store.prune(Keep(results=0.0, dead=0.0))
    await _run(store, _order("erased", session="s", tenant="strange", idempotency_key="k"))
    await store.erase(["erased"], ["strange/erased"], "ann")
    await store.put([Put("strange/expired", b"old", ttl=GONE), Put("strange/kept", b"new")])
    for number in range(MANY):
        await store.put([Put("strange/deleted", b"%d" % number)])
    await store.put([Put("strange/deleted", None)])
    await store.append([LogLine("strange/lines", "said", b"%d" % number) for number in range(MANY)])
    await store.trim("strange/lines", MANY)
    await store.set_pool(STRANGER, "ann", paused=True)
    await store.add([JobBatch((_order(WAITS),))])
    (lease,) = [one for one in await store.leases() if one.owner.id == STRANGER]
    await store.expire_owner(STRANGER, lease.renewal)


async def use_at(store: Store) -> None:
    """Use a closed store, and close it again."""
    await store.open()
    try:
        await use(store)
    finally:
        await store.close()


async def migrate_at(store: Store) -> None:
    """Open a store of an earlier version, pause its pools, promote due jobs; close it."""
    await store.open()
    try:
        for pool in await store.pools():
            await store.set_pool(pool.spec.name, "ann", paused=True)
        await store.promote()
        await store.prune(Keep())
    finally:
        await store.close()


_files: dict[tuple[str, str], bytes] = {}


def used_file(path: Path, runtime: Runtime) -> None:
    """Write a used file; made once for each boot id of a runtime, then copied."""

    def make(made: Path) -> None:
        asyncio.run(use_at(SqliteStore(made, runtime)))

    _write_file(path, ("used", runtime.identity()[1]), make)


def old_file(path: Path, runtime: Runtime) -> None:
    """Write an old file, migrated; made once for each boot id of a runtime."""

    def make(made: Path) -> None:
        load_sqlite(made)
        asyncio.run(migrate_at(SqliteStore(made, runtime)))

    _write_file(path, ("old", runtime.identity()[1]), make)


def _write_file(path: Path, name: tuple[str, str], make: Callable[[Path], None]) -> None:
    if name not in _files:
        with TemporaryDirectory() as folder:
            made = Path(folder) / "jobs.db"
            make(made)
            _files[name] = made.read_bytes()
    path.write_bytes(_files[name])


def use_url(url: str) -> None:
    """Use the store of a URL, as another process would."""
    runtime = Runtime()
    if url.startswith("sqlite:///"):
        used_file(Path(url.removeprefix("sqlite:///")), runtime)
    else:
        asyncio.run(use_at(store_of(url, runtime)))
