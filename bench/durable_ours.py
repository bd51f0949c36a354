"""poolhand: an app with a no-op task over any store, and the bare verbs of the same stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from durable_cases import BATCH, POOL, SLOTS, Countdown, Span, batches
from poolhand import App
from poolhand.contract import (
    Change,
    Claim,
    ClaimRequest,
    Filter,
    JobBatch,
    JobRequest,
    Owner,
    Refusal,
    Store,
)
from poolhand.rules import lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.stored_desk import PoolSpec, pool_id
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of

WARM_UP = 500
MEMORY = "memory://"
BRIEF = b"x" * 150
ME = "bench"


def url_of(where: str) -> str:
    """The store of a sample: a file in its folder, or its URL."""
    return where if "://" in where else f"sqlite:///{where}/jobs.db"


class Bench:
    """An app with one task that only counts itself."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self._countdown = Countdown(0)

        @self.app.task(pool=POOL, name="no_op")
        async def no_op(number: int) -> None:
            self._countdown.one()

        self._no_op = no_op

    async def put_at_once(self, count: int) -> list[Any]:
        """One call of submit_many."""
        return await self._no_op.submit_many([(number,) for number in range(count)])

    async def put_many(self, count: int) -> list[Any]:
        """submit_many, a hundred at a time, one after the other."""
        tickets: list[Any] = []
        for batch in batches(count):
            tickets += await self._no_op.submit_many([(number,) for number in batch])
        return tickets

    async def put_singly(self, count: int) -> list[Any]:
        """A hundred callers, each with one submit after the other."""

        async def caller(numbers: Iterable[int]) -> list[Any]:
            return [await self._no_op.submit(number) for number in numbers]

        turns = [range(first, count, BATCH) for first in range(BATCH)]
        done = await asyncio.gather(*map(caller, turns))
        return [ticket for tickets in done for ticket in tickets]

    async def drain(self, count: int) -> Span:
        """Run that many jobs with a worker, until every outcome is written."""
        self._countdown = countdown = Countdown(count)
        async with self.app.worker(slots=SLOTS):
            await countdown.over.wait()
        countdown.span.stop()
        return countdown.span

    async def await_all(self, tickets: list[Any]) -> Span:
        """The same, and each result is awaited."""
        self._countdown = countdown = Countdown(len(tickets))
        async with self.app.worker(slots=SLOTS):
            for ticket in tickets:
                await ticket
        countdown.span.stop()
        return countdown.span

    async def completed(self) -> int:
        counts = await self.app.operator().count(Filter(POOL))
        return counts.get(Status.COMPLETED, 0)


async def through_app(
    jobs: int, where: str, singly: bool = False, awaited: bool = False
) -> dict[str, float]:
    """A whole app: submits, a worker, audit and log."""
    bench = Bench(url_of(where))
    put = bench.put_singly if singly else bench.put_many
    putting, taking = Span(), Span()
    async with bench.app:
        await put(WARM_UP)
        await bench.drain(WARM_UP)
        with putting.timed():
            tickets = await put(jobs)
        if not awaited:
            # Results are not awaited; a job can be read by its id.
            tickets.clear()
        with taking.timed():
            await (bench.await_all(tickets) if awaited else bench.drain(jobs))
        assert await bench.completed() == jobs + WARM_UP
    return {**putting.per(jobs, "put"), **taking.per(jobs, "take")}


class Verbs:
    """A store used as by a worker: a hundred jobs per write, settle and claim in one."""

    def __init__(self, store: Store, spec: PoolSpec | None = None) -> None:
        self.store = store
        self.spec = spec or PoolSpec(POOL, pool_id("app", "", POOL))
        self.adding, self.claiming, self.replacing = Span(), Span(), Span()
        self._made = 0
        self._runtime = Runtime()
        self._prefix = f"job-{time.time_ns():016x}"
        self._wanted = ClaimRequest(ME, tuple(range(SLOTS)), (POOL,))

    async def begin(self) -> None:
        """Open the store, and do everything once as a warm-up."""
        await self.store.open()
        await self.store.declare(self.spec)
        await self.store.enroll(Owner(ME, *self._runtime.identity()))
        await self.fill(WARM_UP)
        await self.drain(WARM_UP)
        self.adding, self.claiming, self.replacing = Span(), Span(), Span()

    async def fill(self, count: int, keys: int = 0) -> None:
        """Add jobs whose keys take turns."""
        for batch in batches(count):
            lot = JobBatch(tuple(self._order(number % keys if keys else None) for number in batch))
            with self.adding.timed():
                (added,) = await self.store.add([lot])
            assert not isinstance(added, Refusal)

    async def drain(self, count: int) -> None:
        """Settle claimed jobs and claim the next, `count` in all."""
        with self.claiming.timed():
            claims = (await self.store.replace((), self._wanted)).claims
        done = len(claims)
        while claims:
            changes = [self._end(claim) for claim in claims]
            wanted = self._wanted if done < count else None
            with self.replacing.timed():
                replaced = await self.store.replace(changes, wanted)
            assert all(replaced.made)
            claims = replaced.claims
            done += len(claims)
        assert done == count

    async def claim_apart(self, count: int) -> None:
        """Claim, then settle, each in its own write; `count` in all."""
        for _ in batches(count):
            with self.claiming.timed():
                claims = (await self.store.replace((), self._wanted)).claims
            changes = [self._end(claim) for claim in claims]
            with self.replacing.timed():
                replaced = await self.store.replace(changes)
            assert len(claims) == BATCH
            assert all(replaced.made)

    def _order(self, key: int | None) -> JobRequest:
        self._made += 1
        job = Job(
            # Ids grow as real ones do: the position of a row in an index has a cost.
            id=f"{self._prefix}-{self._made:016x}",
            pool=POOL,
            pool_id=self.spec.id,
            status=Status.QUEUED,
            submitted_at=datetime.now(UTC),
            name="no_op",
            key="" if key is None else f"key-{key}",
        )
        return JobRequest(job, BRIEF)

    def _end(self, claim: Claim) -> Change:
        done = lifecycle.complete(claim.job, b"null", datetime.now(UTC), 0.0)
        return Change(done, claim.token)


@asynccontextmanager
async def verbs(url: str, spec: PoolSpec | None = None) -> AsyncIterator[Verbs]:
    """The verbs of the store with this URL."""
    ours = Verbs(store_of(url, Runtime()), spec)
    await ours.begin()
    try:
        yield ours
    finally:
        await ours.store.close()


async def by_verbs(jobs: int, where: str) -> dict[str, float]:
    """The store alone: no tasks, no store thread, no slots; audit is written by the store."""
    async with verbs(url_of(where)) as ours:
        await ours.fill(jobs)
        await ours.drain(jobs)
        counts = await ours.store.count(Filter(POOL))
        assert counts[Status.COMPLETED] == jobs + WARM_UP
    taking = ours.replacing
    taking.cpu += ours.claiming.cpu
    taking.wall += ours.claiming.wall
    return {**ours.adding.per(jobs, "put"), **taking.per(jobs, "take")}
