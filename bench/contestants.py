"""Ways to run many small async jobs, at most LIMIT at a time; each returns when all are done.

A contestant imports its library when it runs, so that a missing library costs only its own row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from itertools import repeat
from typing import Any

LIMIT = 100
TIMEOUT = 60.0

Job = Callable[[], Coroutine[Any, Any, object]]
Contestant = Callable[[int, Job], Awaitable[None]]


async def no_op() -> None:
    """Finishes without touching the event loop."""


async def one_suspension() -> None:
    """Yields to the event loop once."""
    await asyncio.sleep(0)


JOBS: dict[str, Job] = {"no-op": no_op, "one suspension": one_suspension}


async def floor(count: int, job: Job) -> None:
    """The minimum with a limit and results: a queue, LIMIT workers, a future per job."""
    queue: asyncio.Queue[tuple[Job, asyncio.Future[object]]] = asyncio.Queue()

    async def work() -> None:
        while True:
            call, answer = await queue.get()
            answer.set_result(await call())

    loop = asyncio.get_running_loop()
    workers = [loop.create_task(work()) for _ in range(LIMIT)]
    answers = [loop.create_future() for _ in range(count)]
    for answer in answers:
        queue.put_nowait((job, answer))
    for answer in answers:
        await answer
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


class TaskPerJob:
    """At most LIMIT tasks at a time: the done-callback of each starts the next job of `take`."""

    def __init__(self, take: Callable[[], Job | None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[object]] = set()
        self.idle = asyncio.Event()

    def fill(self) -> None:
        """Starts jobs until every slot is taken or none is left."""
        while len(self._running) < LIMIT and (job := self._take()) is not None:
            self.start(job)

    def start(self, job: Job) -> None:
        """Runs one job in a task of its own, without checking the limit."""
        task = self._loop.create_task(job())
        self._running.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[object]) -> None:
        self._running.remove(task)
        task.result()
        job = self._take()
        if job is not None:
            self.start(job)
        elif not self._running:
            self.idle.set()


async def task_per_job(count: int, job: Job) -> None:
    """A task per job, started by the done-callback of the one before it."""
    jobs = repeat(job, count)
    slots = TaskPerJob(lambda: next(jobs, None))
    slots.fill()
    await slots.idle.wait()


async def semaphore_gather(count: int, job: Job) -> None:
    """Semaphore and gather, the usual first version."""
    semaphore = asyncio.Semaphore(LIMIT)

    async def bounded() -> object:
        async with semaphore:
            return await job()

    await asyncio.gather(*(bounded() for _ in range(count)))


async def semaphore_task_group(count: int, job: Job) -> None:
    """Semaphore and TaskGroup, the usual version since Python 3.11."""
    semaphore = asyncio.Semaphore(LIMIT)

    async def bounded() -> object:
        async with semaphore:
            return await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(bounded())


async def aiometer_run_all(count: int, job: Job) -> None:
    """aiometer.run_all with max_at_once."""
    import aiometer  # type: ignore[import-not-found, unused-ignore]

    await aiometer.run_all([job] * count, max_at_once=LIMIT)


async def anyio_limiter(count: int, job: Job) -> None:
    """A CapacityLimiter in an anyio task group."""
    import anyio  # type: ignore[import-not-found, unused-ignore]

    limiter = anyio.CapacityLimiter(LIMIT)

    async def bounded() -> None:
        async with limiter:
            await job()

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(bounded)


async def aiojobs_scheduler(count: int, job: Job) -> None:
    """An aiojobs Scheduler with an unbounded queue of pending jobs."""
    import aiojobs  # type: ignore[import-not-found, unused-ignore]

    async with aiojobs.Scheduler(limit=LIMIT, pending_limit=0) as scheduler:
        spawned = [await scheduler.spawn(job()) for _ in range(count)]
        for handle in spawned:
            await handle.wait()


async def ours(count: int, job: Job) -> None:
    """submit_nowait, then await each ticket; every job has a deadline."""
    from poolhand import Pool

    async with Pool("bench", max_concurrent=LIMIT, timeout=TIMEOUT) as pool:
        tickets = [pool.submit_nowait(job) for _ in range(count)]
        for ticket in tickets:
            await ticket


async def ours_run(count: int, job: Job) -> None:
    """pool.run under gather: one task of the caller beside each job."""
    from poolhand import Pool

    async with Pool("bench", max_concurrent=LIMIT, timeout=TIMEOUT) as pool:
        await asyncio.gather(*(pool.run(job) for _ in range(count)))


FLOOR = "floor: asyncio.Queue + future"
SEMAPHORE = "Semaphore + gather"
OURS = "poolhand"

# poolhand runs right after the contestant it is compared with, so that noise affects both.
CONTESTANTS: dict[str, Contestant] = {
    FLOOR: floor,
    SEMAPHORE: semaphore_gather,
    OURS: ours,
    "poolhand: run under gather": ours_run,
    "task per job + done-callback": task_per_job,
    "Semaphore + TaskGroup": semaphore_task_group,
    "aiometer": aiometer_run_all,
    "anyio CapacityLimiter": anyio_limiter,
    "aiojobs": aiojobs_scheduler,
}
