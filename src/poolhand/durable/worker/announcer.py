"""Reports jobs whose outcome is written: to events, the log, a listener and `on_dead`."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import isawaitable

from poolhand.durable.catalogue import PublishedTasks
from poolhand.durable.client.explain import known_task
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.worker.dispatcher import SettledClaim
from poolhand.errors import StoreError
from poolhand.observe import events
from poolhand.observe.failures import FailureLog
from poolhand.pool.config import OnDead, PoolConfig
from poolhand.pool.engine.dead_letters import report_callback
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.pool.slots.attempt import PoolClock
from poolhand.pool.slots.runner import own_task, start_task
from poolhand.rules.explain import Explanation, home_of, task_of
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import is_self_cancelled

MOST_CAUSES = 1000  # the most reported causes remembered; at the limit all are dropped
LOOK_AFTER = 1.0  # seconds: a worker that has just started may not be listed yet
LOOK_AGAIN = 10.0  # seconds until a task that another worker had is looked up again
SERVED, QUEUED = "served", "queued"


class TaskLookup:
    """Finds out which tasks a name may mean, and whether another worker has them.

    `candidates` returns the tasks of this worker that an ambiguous name may mean; `catalogue`
    holds the tasks that this worker publishes.
    """

    def __init__(
        self,
        connection: StoreConnection,
        candidates: Callable[[str], list[str]],
        catalogue: PublishedTasks | None,
    ) -> None:
        self._connection = connection
        self.candidates = candidates
        self._digest = None if catalogue is None else catalogue.digest

    async def explain(self, job: Job, cause: str) -> Explanation | None:
        """Explain whether other workers can run a job; None if none can, or the store is away."""
        with suppress(StoreError):
            return await self._connection.thread.ask(lambda: self._look(job, cause))
        return None

    async def _look(self, job: Job, cause: str) -> Explanation | None:
        store = self._connection.store
        (stored,) = await store.get([job.id])
        if stored is None or stored.job.waits_for != cause:
            return Explanation(SERVED, "another worker has taken it")
        # Workers with the same code would park it, too.
        others = [one for one in await store.leases() if one.owner.catalogue != self._digest]
        return await known_task(store, task_of(cause) or "", others, job.pool)


class Announcer:
    """Reports each job once, when it is written; calls `heard` with those that are over.

    `completed` and `failed` count attempts by the outcome that was written.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        all_events: events.Events,
        configs: Mapping[str, PoolConfig],
        emit: Callable[[events.Event], None],
        lookup: TaskLookup,
        clock: PoolClock,
    ) -> None:
        self.heard: Callable[[Job], None] | None = None
        self.completed = self.failed = 0
        self.failures = FailureLog(loop, clock.now, all_events)
        self.aside = SetAsideReports(loop, self.failures, all_events, lookup)
        self._loop = loop
        self._events = all_events
        self._configs = configs
        self._emit = emit
        self._clock = clock
        self._callbacks: set[Task[None]] = set()

    def written(self, one: SettledClaim) -> None:
        """Report a written outcome."""
        job = one.change.job
        self.completed += job.status is Status.COMPLETED
        self.failed += one.failed or job.status is Status.FAILED
        if job.status.waiting:
            self._waits_again(job, one)
            return
        if job.status is Status.FAILED:
            self.failures.died(job)
        elif is_self_cancelled(job.status, job.error):
            self.failures.self_cancelled(job)
        self._emit(events.JobEnded(job.pool, job))
        if self.heard is not None:
            self.heard(job)
        config = self._configs.get(job.pool)
        if job.status is Status.FAILED and config is not None and config.on_dead is not None:
            # In a task of its own, not in the middle of settling.
            call = partial(self._on_dead, config.on_dead, job)
            task = start_task(self._loop, call, f"{job.pool}-on-dead")
            if task is not None:
                self._callbacks.add(task)
                task.add_done_callback(self._callbacks.discard)

    def lost(self, job: Job) -> None:
        """Report that this worker has lost the claim of a job."""
        self.failures.lease_lost(job)
        self._emit(events.LeaseLost(job.pool, job))

    async def callbacks_over(self, within: float) -> None:
        """Wait for the `on_dead` calls that still run, then cancel them."""
        if self._callbacks:
            await asyncio.wait(self._callbacks, timeout=within)
        for task in self._callbacks:
            task.cancel()
        if self._callbacks:
            await asyncio.wait(self._callbacks, timeout=STOP_GRACE)

    def _waits_again(self, job: Job, one: SettledClaim) -> None:
        cause = job.waits_for
        if one.failed:
            at = job.run_at
            wait = None if at is None else (at - self._clock.wall()).total_seconds()
            self.failures.retried(job, wait)
        if one.begun:
            self._emit(events.JobRetried(job.pool, job))
        elif cause is not None and home_of(cause) is None:
            # A parked closure is not reported: its home process runs it.
            self.aside.report(job, cause)

    async def _on_dead(self, callback: OnDead, job: Job) -> None:
        try:
            result = callback(job)
            if isawaitable(result):
                await _await(result)
        except (Exception, CancelledError) as error:
            report_callback(job.pool, error, self._events)
            if isinstance(error, CancelledError):
                raise


async def _await(awaitable: Awaitable[object]) -> None:
    await awaitable


class SetAsideReports:
    """Reports jobs that a worker parks: with a warning, unless another worker has their task.

    Services that share a pool claim each other's jobs all the time, and that is no problem. Each
    cause is reported once; a task that another worker has is looked up again later. Each report
    runs in a task of its own, not in the middle of settling.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        failures: FailureLog,
        all_events: events.Events,
        lookup: TaskLookup,
    ) -> None:
        self._loop = loop
        self._failures = failures
        self._events = all_events
        self._lookup = lookup
        self._warned: set[str] = set()
        self._served: dict[str, float] = {}
        self._tasks: set[Task[None]] = set()
        self._closing = asyncio.Event()

    @property
    def causes(self) -> int:
        """How many causes are remembered."""
        return len(self._warned) + len(self._served)

    def report(self, job: Job, cause: str) -> None:
        """Report that a job was parked, unless its cause was reported before."""
        now = self._loop.time()
        is_new = cause not in self._served
        if cause in self._warned or (not is_new and now - self._served[cause] < LOOK_AGAIN):
            return
        if self.causes >= MOST_CAUSES:
            self._warned.clear()
            self._served.clear()
        self._served[cause] = now
        task = own_task(self._loop, self._report(job, cause, is_new), "set-aside")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def over(self) -> None:
        """Send the reports that still wait at once."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _report(self, job: Job, cause: str, is_new: bool) -> None:
        task = task_of(cause)
        hint, served = self._hint(task), False
        if task is not None and not hint:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AFTER):
                    await self._closing.wait()
            found = await self._lookup.explain(job, cause)
            served = found is not None and found.reason in (SERVED, QUEUED)
            hint = "" if found is None or served else found.text
        if not served:
            self._served.pop(cause, None)
            self._warned.add(cause)
        if is_new or not served:
            self._failures.set_aside(job, cause, hint, served)
            if self._events.live:
                self._events.emit(events.JobSetAside(job.pool, job, cause, hint, served))

    def _hint(self, task: str | None) -> str:
        names = " or ".join(self._lookup.candidates(task or ""))
        text = f"its task {task!r} may mean {names} of this worker; submit it by its full name"
        return f"{text}, or rename all but one" if names else ""
