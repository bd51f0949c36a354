"""Dead letters: jobs that used up their attempts, and their `on_dead` callbacks."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Task
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable

from poolhand.errors import UsageError
from poolhand.observe.events import CallbackFailed, Events
from poolhand.observe.failures import warn
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.reports import Failure, UnreadFailure, UnreadFailures
from poolhand.pool.engine.work import Work
from poolhand.pool.slots.fault import fault_of, own_trace
from poolhand.rules.job import Job, Status


class DeadLetters:
    """Keeps the latest failed jobs with their calls, so that they can run again.

    `busy` counts unfinished `on_dead` calls; `quiet` is called when one finishes.
    """

    def __init__(
        self,
        config: PoolConfig,
        loop: AbstractEventLoop,
        events: Events,
        quiet: Callable[[], None],
        unread: UnreadFailures,
    ) -> None:
        self.busy = 0
        self._works: deque[Work] = deque()
        self._most = config.history
        self._pool = config.name
        self._on_dead = config.on_dead
        self._loop = loop
        self._events = events
        self._quiet = quiet
        self._unread = unread
        self._callbacks: set[Task[None]] = set()
        self._rerunning: set[str] = set()

    def jobs(self) -> list[Job]:
        return [work.snapshot() for work in self._works if work.id not in self._rerunning]

    @contextmanager
    def rerunning(self, job_id: str) -> Iterator[Work]:
        """Yield a dead job to run again; it stays a dead letter unless the block succeeds."""
        found = next((work for work in self._works if work.id == job_id), None)
        if found is None or job_id in self._rerunning:
            raise UsageError(
                f"job {job_id!r} is not a dead letter of pool {self._pool!r}; see pool.dead()"
            )
        self._rerunning.add(job_id)
        try:
            yield found
            if found in self._works:
                self._works.remove(found)
            found.call = found.context = None
        finally:
            self._rerunning.discard(job_id)

    def add(self, work: Work, error: BaseException) -> Work:
        """Attach the failure to the job's ticket, and return the record kept as a dead letter.

        Only the ticket references this failure: if the ticket is collected before the failure is
        read and there is no `on_dead`, the failure is logged.
        """
        trace = own_trace(error)
        is_dead = work.job.status is Status.FAILED
        if self._on_dead is None or not is_dead:
            work.failure = UnreadFailure(error, trace, work.job, self._unread)
        else:
            work.failure = Failure(error, trace)
        apart = work.record_apart()
        if is_dead:
            self._keep(apart)
        else:
            apart.call = apart.context = None
        return apart

    def look_at_log(self) -> None:
        """Log the due summaries of failures that were never read."""
        self._unread.log.look()

    def close_log(self) -> None:
        """Log all held-back summaries of failures that were never read."""
        self._unread.log.close()

    def _keep(self, work: Work) -> None:
        self._works.append(work)
        while len(self._works) > self._most + len(self._rerunning):
            self._let_go()
        if self._on_dead is not None:
            # Called later: the pool is in the middle of settling the job.
            self.busy += 1
            self._loop.call_soon(self._call_on_dead, work.snapshot())

    def _let_go(self) -> None:
        """Drop the oldest dead letter, and release its call even if its key is remembered.

        Jobs that are being rerun stay, because the rerun may be refused.
        """
        gone = next(work for work in self._works if work.id not in self._rerunning)
        self._works.remove(gone)
        gone.call = gone.context = None
        if gone.failure is not None:
            gone.failure = Failure(BaseException.with_traceback(gone.failure.error, None), None)

    def stop(self) -> None:
        """Cancel the callbacks that are still running."""
        for task in self._callbacks:
            task.cancel()

    def _call_on_dead(self, job: Job) -> None:
        assert self._on_dead is not None
        try:
            returned = self._on_dead(job)
        except (Exception, CancelledError) as error:
            self._over(error)
            return
        if isawaitable(returned):
            task = self._loop.create_task(_await(returned), name=f"{self._pool}-on-dead")
            self._callbacks.add(task)
            task.add_done_callback(self._on_dead_done)
        else:
            self._over(None)

    def _on_dead_done(self, task: Task[None]) -> None:
        self._callbacks.discard(task)
        self._over(None if task.cancelled() else task.exception())

    def _over(self, error: BaseException | None) -> None:
        self.busy -= 1
        if error is not None:
            report_callback(self._pool, error, self._events)
        self._quiet()


def report_callback(pool: str, error: BaseException, events: Events) -> None:
    """Log and emit that an `on_dead` callback failed."""
    fault = fault_of(error)
    text = f"{fault.type.rpartition('.')[2]}: {fault.message}"
    warn(f"on_dead of pool {pool!r} raised {text}", CallbackFailed, events)
    if events.live:
        events.emit(CallbackFailed(pool, "on_dead", text))


async def _await(awaitable: Awaitable[object]) -> None:
    await awaitable
