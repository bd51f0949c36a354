"""Dead letters: jobs that used up their attempts, and whom to tell."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Task
from collections import deque
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from poolhand.observe.events import CallbackFailed, Events
from poolhand.pool.config import PoolConfig
from poolhand.pool.work import Work
from poolhand.rules.job import Job


class DeadLetters:
    """Keeps the latest failed jobs with their calls, so that they can run again.

    `busy` counts the calls of `on_dead` that are not over; `quiet` is called when one is.
    """

    def __init__(
        self,
        config: PoolConfig,
        loop: AbstractEventLoop,
        events: Events,
        quiet: Callable[[], None],
    ) -> None:
        self.busy = 0
        self._works: deque[Work] = deque(maxlen=config.history)
        self._pool = config.name
        self._on_dead = config.on_dead
        self._loop = loop
        self._events = events
        self._quiet = quiet
        self._callbacks: set[Task[None]] = set()

    def jobs(self) -> list[Job]:
        return [work.snapshot() for work in self._works]

    def take(self, job_id: str) -> Work | None:
        """Remove and return a dead job."""
        for work in self._works:
            if work.id == job_id:
                self._works.remove(work)
                return work
        return None

    def put_back(self, work: Work) -> None:
        """Keep a dead job after all that was taken out."""
        self._works.append(work)

    def add(self, work: Work) -> None:
        self._works.append(work)
        if self._on_dead is not None:
            # Not here: the pool is in the middle of settling the job.
            self.busy += 1
            self._loop.call_soon(self._tell, work.snapshot())

    def stop(self) -> None:
        """Give up on the callbacks that still run."""
        for task in self._callbacks:
            task.cancel()

    def _tell(self, job: Job) -> None:
        assert self._on_dead is not None
        try:
            told = self._on_dead(job)
        except Exception as error:
            self._over(error)
            return
        if isawaitable(told):
            task = self._loop.create_task(_await(told), name=f"{self._pool}-on-dead")
            self._callbacks.add(task)
            task.add_done_callback(self._told)
        else:
            self._over(None)

    def _told(self, task: Task[None]) -> None:
        self._callbacks.discard(task)
        self._over(None if task.cancelled() else task.exception())

    def _over(self, error: BaseException | None) -> None:
        self.busy -= 1
        if error is not None and self._events.live:
            text = f"{type(error).__name__}: {error}"
            self._events.emit(CallbackFailed(self._pool, "on_dead", text))
        self._quiet()


async def _await(awaitable: Awaitable[object]) -> None:
    await awaitable
