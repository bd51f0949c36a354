"""Reports of jobs that a worker parks: a warning, unless another worker has their task.

Services that share a pool claim each other's jobs all the time, and that is no problem. Whether
another worker has a task is in the store: the report of a task waits for a look there.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from poolhand.durable.catalogue import PublishedTasks
from poolhand.durable.client.explain import known_task
from poolhand.durable.connection.connection import StoreConnection
from poolhand.errors import StoreError
from poolhand.observe.events import Events, JobSetAside
from poolhand.observe.failures import FailureLog
from poolhand.pool.slots.runner import own_task
from poolhand.rules.causes import task_of
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Job

MOST_CAUSES = 1000  # the most reported causes remembered; at the limit all are dropped
LOOK_AFTER = 1.0  # seconds: a worker that has just started may not be listed yet
LOOK_AGAIN = 10.0  # seconds until a task that another worker had is looked up again
SERVED, QUEUED = "served", "queued"


class TaskLookup(Protocol):
    """Finds out which tasks a name may mean, and whether another worker has them."""

    def candidates(self, task: str) -> list[str]:
        """Return the tasks of this worker that an ambiguous name may mean."""

    async def explain(self, job: Job, cause: str) -> Explanation | None:
        """Explain whether other workers can run a job that waits for a task; None: none has it."""


class StoreLookup:
    """Looks into the store of a worker; `catalogue` returns the tasks of this worker."""

    def __init__(
        self,
        station: StoreConnection,
        candidates: Callable[[str], list[str]],
        catalogue: Callable[[], PublishedTasks | None],
    ) -> None:
        self._station = station
        self.candidates = candidates
        self._catalogue = catalogue

    async def explain(self, job: Job, cause: str) -> Explanation | None:
        """Explain whether other workers can run a job; None if the store is away."""
        with suppress(StoreError):
            return await self._station.keeper.ask(lambda: self._look(job, cause))
        return None

    async def _look(self, job: Job, cause: str) -> Explanation | None:
        store, own = self._station.store, self._catalogue()
        mine = None if own is None else own.digest
        (stored,) = await store.get([job.id])
        if stored is None or stored.job.waits_for != cause:
            return Explanation(SERVED, "another worker has taken it")
        # Workers with the same code would park it, too.
        others = [one for one in await store.leases() if one.owner.catalogue != mine]
        return await known_task(store, task_of(cause) or "", others, job.pool)


class SetAsideReports:
    """Reports each cause once; looks a task that another worker has up again later.

    Each report runs in a task of its own, not in the middle of settling.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        failures: FailureLog,
        events: Events,
        lookup: TaskLookup,
    ) -> None:
        self._loop = loop
        self._failures = failures
        self._events = events
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
                self._events.emit(JobSetAside(job.pool, job, cause, hint, served))

    def _hint(self, task: str | None) -> str:
        names = " or ".join(self._lookup.candidates(task or ""))
        text = f"its task {task!r} may mean {names} of this worker; submit it by its full name"
        return f"{text}, or rename all but one" if names else ""
