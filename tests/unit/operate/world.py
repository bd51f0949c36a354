"""A store with jobs in every state, and a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from poolhand.contract import (
    Added,
    Change,
    Claim,
    ClaimRequest,
    JobBatch,
    JobRequest,
    Owner,
    PoolRow,
    Refusal,
    Store,
    Stored,
)
from poolhand.operate.actions import Operator
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.queue.stored_desk import PoolSpec, pool_id
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import MemoryStore

TERMS = ("delay", "expires", "rerun_failed")
START = datetime(2030, 1, 1, tzinfo=UTC)


class Clock(Runtime):
    """A runtime whose clocks the test moves."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.seconds = 1000.0
        self.shift = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.seconds - 1000.0 + self.shift)


class World:
    """Actions of submitters and one worker on a store, in single steps."""

    def __init__(self, store: Store, runtime: Runtime, ids: str = "job") -> None:
        self.store = store
        self.runtime = runtime
        self.operator = Operator(store, runtime)
        self.worker = Owner("w-1", *runtime.identity(), works=True)
        self.audited_before = 0  # the last audit number before the test
        self._ids = ids
        self._count = 0

    async def look_around(self) -> None:
        """Record the last audit number."""
        lines = await self.store.read(STREAM, limit=10_000)
        self.audited_before = lines[-1].number if lines else 0

    async def declare(self, name: str, **rules: Any) -> None:
        await self.store.declare(PoolSpec(name, pool_id("app", "", name), **rules))

    async def offer(
        self, name: str = "work", pool: str = "chat", owner: str | None = None, **more: Any
    ) -> Added | Refusal:
        """Submit a job; options that are no fields of a job belong to its request."""
        self._count += 1
        terms = {key: more.pop(key) for key in TERMS if key in more}
        draft: dict[str, Any] = {
            "id": f"{self._ids}-{self._count:04}",
            "pool": pool,
            "pool_id": "",
            "status": Status.QUEUED,
            "submitted_at": self.runtime.wall(),
            "name": name,
            **more,
        }
        brief = draft.pop("brief", None) or f"brief of {draft['id']}".encode()
        order = JobRequest(Job(**draft), brief, **terms)
        (result,) = await self.store.add([JobBatch((order,), owner)])
        if isinstance(result, Refusal):
            return result
        (added,) = result
        return added

    async def add(self, name: str = "work", pool: str = "chat", **more: Any) -> str:
        """Submit a job that is accepted; return its id."""
        added = await self.offer(name, pool, **more)
        assert isinstance(added, Added)
        return added.job.id

    async def enroll(self, owner: Owner | None = None) -> None:
        await self.store.enroll(owner or self.worker)

    async def claim(self, count: int = 1, pools: tuple[str, ...] | None = None) -> list[Claim]:
        await self.enroll()
        slots = tuple(range(count))
        wanted = ClaimRequest(self.worker.id, slots, pools)
        return list((await self.store.replace((), wanted)).claims)

    async def end(self, claim: Claim, status: Status, **more: Any) -> None:
        job = replace(claim.job, status=status, finished_at=self.runtime.wall(), ran=2.0, **more)
        replaced = await self.store.replace([Change(job, claim.token)])
        assert replaced.made == (True,)

    async def back(self, claim: Claim, wait: float) -> None:
        """Make a job wait for its next attempt."""
        run_at = self.runtime.wall() + timedelta(seconds=wait)
        job = replace(claim.job, status=Status.SCHEDULED, run_at=run_at)
        replaced = await self.store.replace([Change(job, claim.token, wait)])
        assert replaced.made == (True,)

    async def dead(self, name: str = "work", pool: str = "chat", **more: Any) -> str:
        """Submit a job, run it, fail it; return its id."""
        id = await self.add(name, pool, **more)
        claims = await self.claim(1, (pool,))
        assert [claim.job.id for claim in claims] == [id]
        fault = Fault("ValueError", f"no {name}", f"Traceback:\n  a line\n{name}\x07: no")
        await self.end(claims[0], Status.FAILED, error=fault)
        return id

    async def get(self, id: str) -> Stored:
        (stored,) = await self.store.get([id])
        assert stored is not None
        return stored

    async def pool(self, name: str) -> PoolRow:
        (row,) = [row for row in await self.store.pools() if row.spec.name == name]
        return row


@asynccontextmanager
async def made(
    store: Store | None = None, runtime: Runtime | None = None, ids: str = "job"
) -> AsyncIterator[World]:
    """An open world in a store, in memory if none is given."""
    clock = runtime or Clock()
    kept = store or MemoryStore(clock)
    await kept.open()
    try:
        world = World(kept, clock, ids)
        await world.look_around()
        yield world
    finally:
        await kept.close()
