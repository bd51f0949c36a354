"""poolhand over PostgreSQL: an app with one task, filled and drained in several ways."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from durable_cases import POOL, Span
from durable_ours import WARM_UP as OPENING
from durable_ours import Bench, Verbs, verbs
from poolhand.contract import Filter
from poolhand.rules.job import Status


class Ours:
    """A whole app: submits, a worker with its slots, audit and log."""

    def __init__(self, bench: Bench, put: str, awaited: bool) -> None:
        self._bench = bench
        self._put = getattr(bench, put)
        self._awaited = awaited
        self._tickets: list[Any] = []

    async def put(self, count: int) -> None:
        tickets = await self._put(count)
        # Results are not awaited; a job can be read by its id.
        self._tickets = tickets if self._awaited else []

    async def drain(self, count: int) -> Span:
        if self._awaited:
            return await self._bench.await_all(self._tickets)
        return await self._bench.drain(count)

    async def done(self) -> int:
        return await self._bench.completed()


@asynccontextmanager
async def ours(url: str, put: str = "put_at_once", awaited: bool = False) -> AsyncIterator[Ours]:
    """An app over an empty database; `put` is the way of submitting."""
    bench = Bench(url)
    async with bench.app:
        yield Ours(bench, put, awaited)


class BareStore:
    """The store alone: no tasks, no store thread, no slots; audit is written by the store."""

    def __init__(self, ours: Verbs) -> None:
        self._verbs = ours

    async def put(self, count: int) -> None:
        await self._verbs.fill(count)

    async def drain(self, count: int) -> Span:
        self._verbs.claiming = self._verbs.replacing = span = Span()
        await self._verbs.drain(count)
        return span

    async def done(self) -> int:
        counts = await self._verbs.store.count(Filter(POOL))
        return counts[Status.COMPLETED] - OPENING


@asynccontextmanager
async def bare_store(url: str) -> AsyncIterator[BareStore]:
    """The verbs of the store in an empty database."""
    async with verbs(url) as store:
        yield BareStore(store)
