"""Helpers of the store tests: a clock that the test moves, and a `Hand` that submits and works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from poolhand.contract import (
    Added,
    Change,
    Claim,
    ClaimRequest,
    Filter,
    JobBatch,
    JobRequest,
    Owner,
    PoolRow,
    Refusal,
    Store,
    Stored,
)
from poolhand.rules import lifecycle
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Job, Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.backpressure import Policy, Unbounded
from poolhand.rules.queue.stored_desk import PoolSpec, undeclared
from poolhand.rules.queue.strategy import Fifo, Strategy
from poolhand.runtime import Runtime
from tests.conditions import STRANGER

START = datetime(2030, 1, 1, tzinfo=UTC)
EVERYTHING = Filter()

Another = Callable[[], Awaitable[Store]]  # opens another store on the same data


class Clock(Runtime):
    """A runtime whose clocks stand still until the test moves them."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.now = 1000.0
        self.date = START

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return self.date

    def identity(self) -> tuple[str, str, int, str]:
        return "host", "boot", 1, "1"

    def wait(self, seconds: float) -> None:
        """Advance both clocks."""
        self.now += seconds
        self.set_date(seconds)

    def set_date(self, seconds: float) -> None:
        """Set the wall clock forward or back; the monotonic clock does not move."""
        self.date += timedelta(seconds=seconds)


def owner(name: str) -> Owner:
    return Owner(name, "host", "boot", 1, "1")


def spec(
    name: str = "pool",
    queue: Strategy | None = None,
    backpressure: Policy | None = None,
    **options: Any,
) -> PoolSpec:
    """Return the spec of an undeclared pool, with the strategy fifo."""
    rules = {"queue": queue or Fifo(), "backpressure": backpressure or Unbounded(), **options}
    return replace(undeclared(name), **rules)


def over(seconds: float) -> Keep:
    """Return a `Keep` that keeps finished jobs and dead letters for that many seconds."""
    return Keep(results=seconds, dead=seconds)


def order(id: str, pool: str = "pool", **options: Any) -> JobRequest:
    """Return a job request; options are fields of JobRequest or of its job."""
    names = {"delay", "expires", "rerun_failed", "revives", "on_busy", "triggers"}
    of_order = names & options.keys()
    wanted = {name: options.pop(name) for name in sorted(of_order)}
    job = Job(
        id=id,
        pool=pool,
        pool_id="",
        status=Status.QUEUED,
        submitted_at=START,
        **{"name": "task", **options},
    )
    return JobRequest(job, b"brief of " + id.encode(), **wanted)


async def call_record(store: Store, id: str) -> bytes | None:
    """Return the call record that a job was submitted with."""
    (stored,) = await store.get([id], calls=True)
    return None if stored is None else stored.call_record


async def withdraw(store: Store, ids: Sequence[str]) -> list[str]:
    """Withdraw orders of blocked submitters; return the ids of those already admitted."""
    found = await store.cancel(ids, "me", blocked_only=True)
    return [one.job.id for one in found if one is not None]


async def document(store: Store, key: str) -> tuple[bytes, int] | None:
    """Return a document and its version."""
    found = await store.get_document(key)
    return None if found is None else found[:2]


class Hand:
    """Submits to a store and claims from it, as the owner "hand".

    The test chooses the ids. Nothing starts by itself: `claim` starts, `finish` ends.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.audited_before = 0  # the last audit number before the test
        self.others = {STRANGER}  # pools that existed before the test
        self.keys_before: set[str] = set()

    async def look_around(self) -> None:
        """Record what the store contained before the test."""
        lines = await self.store.read(STREAM, limit=10_000)
        self.audited_before = lines[-1].number if lines else 0
        self.others |= {row.spec.name for row in await self.store.pools()}
        self.keys_before |= set(await self.store.scan("", limit=10_000))

    async def add(
        self, *orders: JobRequest, owner: str | None = "hand"
    ) -> tuple[Added, ...] | Refusal:
        (answer,) = await self.store.add([JobBatch(orders, owner)])
        return answer

    async def submit(self, id: str, pool: str = "pool", **options: Any) -> Added | Refusal:
        """Add one job request."""
        answer = await self.add(order(id, pool, **options))
        return answer if isinstance(answer, Refusal) else answer[0]

    async def take_in(self, *ids: str, pool: str = "pool", **options: Any) -> None:
        """Add job requests one by one; each must be accepted."""
        for id in ids:
            answer = await self.submit(id, pool, **options)
            assert isinstance(answer, Added)
            assert answer.entry == "accepted"

    async def claim(
        self, count: int = 100, pools: tuple[str, ...] | None = None, owner: str = "hand"
    ) -> list[Claim]:
        wanted = ClaimRequest(owner, tuple(range(count)), pools)
        return list((await self.store.replace((), wanted)).claims)

    async def start(self, id: str, pool: str = "pool", **options: Any) -> Claim:
        """Add a job and claim it."""
        await self.take_in(id, pool=pool, **options)
        (claim,) = await self.claim(1, (pool,))
        assert claim.job.id == id
        return claim

    async def change(self, *changes: Change) -> tuple[bool, ...]:
        return (await self.store.replace(changes)).made

    async def finish(self, *claims: Claim, status: Status = Status.COMPLETED) -> None:
        made = await self.change(*[self.ended(claim, status) for claim in claims])
        assert all(made)

    async def retry(self, claim: Claim, wait: float | None = None, **options: Any) -> bool:
        """Make a job wait for its next attempt."""
        job = replace(lifecycle.hand_back(claim.job), status=Status.SCHEDULED)
        (made,) = await self.change(Change(job, claim.token, wait or 0.0, **options))
        return made

    async def hand_back(self, *claims: Claim) -> None:
        """Return jobs to the queue, as a worker does that is stopped."""
        changes = [Change(lifecycle.hand_back(one.job), one.token) for one in claims]
        assert all(await self.change(*changes))

    def ended(self, claim: Claim, status: Status = Status.COMPLETED, **options: Any) -> Change:
        """Return the change that ends a job with that status."""
        job = replace(claim.job, status=status, finished_at=self.clock.date, ran=1.0)
        return Change(job, claim.token, **options)

    async def serve(self, pools: tuple[str, ...] | None = None) -> list[str]:
        """Claim and complete all jobs, one after the other; return their ids in that order."""
        served = []
        while claims := await self.claim(1, pools):
            served += ids(claims)
            await self.finish(*claims)
        return served

    async def get(self, id: str) -> Stored:
        (stored,) = await self.store.get([id])
        assert stored is not None
        return stored

    async def call_record(self, id: str) -> bytes | None:
        return await call_record(self.store, id)

    async def withdraw(self, *ids: str) -> list[str]:
        """Withdraw orders of blocked submitters; return the ids of those already admitted."""
        return await withdraw(self.store, ids)

    async def document(self, key: str) -> tuple[bytes, int] | None:
        return await document(self.store, key)

    async def status(self, id: str) -> str:
        return (await self.get(id)).job.status.value

    async def statuses(self, *ids: str) -> str:
        return " ".join([await self.status(id) for id in ids])

    async def pool(self, name: str = "pool") -> PoolRow:
        (row,) = await self.store.pools([name])
        assert row in await self.store.pools()
        return row

    # These leave out what the store contained before the test.

    async def pools(self) -> list[PoolRow]:
        return [row for row in await self.store.pools() if row.spec.name not in self.others]

    async def count(self, which: Filter = EVERYTHING) -> dict[Status, int]:
        counted = Counter(await self.store.count(which))
        if which.pool is None:
            for pool in self.others:
                counted -= Counter(await self.store.count(replace(which, pool=pool)))
        return dict(counted)

    async def found(self, which: Filter = EVERYTHING) -> list[str]:
        page = await self.store.find(which)
        return [one.job.id for one in page.jobs if one.job.pool not in self.others]

    async def scan(self, prefix: str = "") -> list[str]:
        keys = await self.store.scan(prefix)
        return [key for key in keys if key not in self.keys_before]

    async def audited(self, *kinds: str) -> list[str]:
        """Return kinds and jobs of the audit so far, without "pool_"; only `kinds`, if given."""
        lines = await self.store.read(STREAM, self.audited_before, limit=10_000)
        told = [(line.kind.removeprefix("pool_"), task_of(line.body)) for line in lines]
        return [f"{kind} {job}".strip() for kind, job in told if not kinds or kind in kinds]


def task_of(body: bytes) -> str:
    return msgspec.json.decode(body).get("task_id") or ""


def ids(claims: Sequence[Claim | Stored | Added]) -> list[str]:
    return [claim.job.id for claim in claims]


def entries(answer: tuple[Added, ...] | Refusal) -> list[str]:
    assert not isinstance(answer, Refusal)
    return [added.entry.value for added in answer]


def refused(answer: object) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer
