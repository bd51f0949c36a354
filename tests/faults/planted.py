"""Planted bugs in the processes under test: a row must find each of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from poolhand.contract import Added, Admission, Store
from poolhand.durable.leases.reaper import Reaper
from poolhand.durable.worker.executor import hand_back
from poolhand.rules import lifecycle
from poolhand.rules.job import Status
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from poolhand.stores.sqlite.file import StoreFile
from tests.faults.ground import POSTGRES, SQLITE, STORES

VARIABLE = "FAULTS_PLANT"
_kept: set[asyncio.Task[Any]] = set()


def acknowledges_early() -> None:
    """Accept a job a moment before it is stored."""
    store = _store()
    add = store.add

    async def early(self: Store, batches: Any) -> Any:
        async def later() -> None:
            over = asyncio.Event()
            asyncio.get_running_loop().call_later(0.1, over.set)
            await over.wait()
            await add(self, batches)

        task = asyncio.create_task(later())
        _kept.add(task)
        task.add_done_callback(_kept.discard)
        return [
            tuple(Added(one.job, Admission.ACCEPTED) for one in batch.requests) for batch in batches
        ]

    _patch(store, "add", early)


def starts_without_looking() -> None:
    """Claim before the leases of dead owners have expired."""
    look = Reaper.look
    seen: set[int] = set()

    async def late(self: Reaper) -> None:
        if id(self) in seen:
            await look(self)
        seen.add(id(self))

    _patch(Reaper, "look", late)


def reaps_the_living() -> None:
    """Count every other process as dead."""
    _patch(Reaper, "_was_ours", lambda self, owner: owner.pid != os.getpid())


def counts_late_results() -> None:
    """Accept the result of a lost lease, instead of that of the present owner."""
    kind = _store()
    settle = kind.replace

    async def lenient(self: Store, changes: Any, *more: Any) -> Any:
        done = await settle(self, changes, *more)
        for change, made in zip(changes, done.made, strict=True):
            if not made and change.job.status.terminal:
                await by_force(self, change)
        return done

    async def by_force(store: Store, change: Any) -> None:
        for lease in await store.leases():
            for claim in await store.expire_owner(lease.owner.id, lease.renewal):
                is_it = claim.job.id == change.job.id
                what = replace(change, token=claim.token) if is_it else hand_back(claim)
                await settle(store, [what])

    _patch(kind, "replace", lenient)


def charges_for_stops() -> None:
    """Charge an attempt for an orderly stop."""
    _patch(lifecycle, "hand_back", lambda job: replace(job, status=Status.QUEUED))


def blames_neighbours() -> None:
    """Give up a job at its second crash, whatever caused it."""
    crash = lifecycle.crash

    def harsh(job: Any, policy: Any, rerun: bool, at: Any, proven: bool) -> Any:
        after = crash(job, policy, rerun, at, proven)
        if after.crashes < 2 or after.status.terminal:
            return after
        return replace(after, status=Status.FAILED, finished_at=at)

    _patch(lifecycle, "crash", harsh)


def forgets_caps() -> None:
    """Declare every pool without its cap."""
    store = _store()
    declare = store.declare

    async def generous(self: Store, spec: Any) -> None:
        await declare(self, replace(spec, slots=None))

    _patch(store, "declare", generous)


def trusts_the_wall_clock() -> None:
    """Measure delays by a clock that can be set."""
    _patch(StoreFile, "now", lambda self: self._runtime.wall().timestamp())


def believes_commits() -> None:
    """Count every commit without an answer as made."""
    from poolhand.stores.postgres.transaction import Transactions

    async def believed(self: Transactions, xid: str) -> bool:
        return True

    # Only where jobs are submitted: a worker would wait without end for an unwritten job.
    if os.environ["FAULTS_LIFE"].startswith("door"):
        _patch(Transactions, "became", believed)


@dataclass(frozen=True)
class Bug:
    """A planted bug, the row that must find it, and the promise that the row must name."""

    put_in: Callable[[], None]
    row: str
    finds: str
    stores: tuple[str, ...] = STORES


PLANTED: dict[str, Bug] = {
    "acknowledges-early": Bug(acknowledges_early, "kills", "lost"),
    "starts-without-looking": Bug(starts_without_looking, "restart", "slot_given_twice"),
    "reaps-the-living": Bug(reaps_the_living, "crowd", "duplicated"),
    "counts-late-results": Bug(counts_late_results, "fence", "duplicated"),
    "charges-for-stops": Bug(charges_for_stops, "drain", "charged"),
    "blames-neighbours": Bug(blames_neighbours, "poison", "wrong_end"),
    "forgets-caps": Bug(forgets_caps, "crowd", "over_cap"),
    "trusts-the-wall-clock": Bug(trusts_the_wall_clock, "clock", "early", (SQLITE,)),
    "believes-commits": Bug(believes_commits, "cut-commit", "lost", (POSTGRES,)),
}


def plant() -> None:
    """Plant the bug that the environment names, if any."""
    name = os.environ.get(VARIABLE)
    if name:
        PLANTED[name].put_in()


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug in all processes that are started inside a block."""
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def _store() -> Any:
    """Return the class of the store under test."""
    return type(store_of(os.environ["FAULTS_URL"], Runtime()))


def _patch(where: Any, name: str, by: Any) -> None:
    assert hasattr(where, name), f"{where} has no {name}: the bug has to be planted elsewhere"
    setattr(where, name, by)
