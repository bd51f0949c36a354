"""Bytes per waiting job, with the submitter's handle, the function shared.

Each way to wait is a context that blocks while open and yields the call that adds one job.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from contestants import OURS, TIMEOUT, Job, no_op

Add = Callable[[], Awaitable[object]]
Blocked = Callable[[], AbstractAsyncContextManager[Add]]


class Record:
    """The smallest realistic record of a waiting job."""

    __slots__ = ("answer", "job")

    def __init__(self, job: Job, answer: asyncio.Future[object]) -> None:
        self.job = job
        self.answer = answer


@asynccontextmanager
async def record_with_future() -> AsyncIterator[Add]:
    """A record with slots and a future, in a deque."""
    queue: deque[Record] = deque()
    loop = asyncio.get_running_loop()

    async def add() -> object:
        record = Record(no_op, loop.create_future())
        queue.append(record)
        return record

    yield add


@asynccontextmanager
async def task_on_semaphore() -> AsyncIterator[Add]:
    """A task that waits for a semaphore."""
    semaphore = asyncio.Semaphore(1)
    await semaphore.acquire()

    async def bounded() -> None:
        async with semaphore:
            await no_op()

    async def add() -> object:
        return asyncio.create_task(bounded())

    yield add
    semaphore.release()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


@asynccontextmanager
async def aiojobs_pending() -> AsyncIterator[Add]:
    """A job pending in an aiojobs Scheduler."""
    import aiojobs  # type: ignore[import-not-found, unused-ignore]

    gate = asyncio.Event()
    async with aiojobs.Scheduler(limit=1, pending_limit=0) as scheduler:
        await scheduler.spawn(gate.wait())

        async def add() -> object:
            return await scheduler.spawn(no_op())

        yield add
        gate.set()


@asynccontextmanager
async def ours_pending() -> AsyncIterator[Add]:
    """A job queued in a pool with a deadline for each job."""
    from poolhand import Pool

    gate = asyncio.Event()
    async with Pool("bench", max_concurrent=1, timeout=TIMEOUT) as pool:
        pool.submit_nowait(gate.wait)

        async def add() -> object:
            return pool.submit_nowait(no_op)

        yield add
        gate.set()


PENDING: dict[str, Blocked] = {
    "slots record with future": record_with_future,
    "task on a semaphore": task_on_semaphore,
    "aiojobs": aiojobs_pending,
    OURS: ours_pending,
}


async def weigh(name: str, count: int) -> float:
    """Bytes per pending job, after one job that covers one-time costs."""
    handles: list[object] = [None] * count
    async with PENDING[name]() as add:
        first = await add()
        await asyncio.sleep(0)
        gc.collect()
        tracemalloc.start()
        for index in range(count):
            handles[index] = await add()
        # Tasks have their full size only once they wait for the semaphore.
        await asyncio.sleep(0)
        gc.collect()
        weight = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del first
    return weight / count
