"""The guard of a worker: detects that all tasks of its event loop are cancelled, and by which code.

Code that ends a loop cancels its tasks: the worker then hands back what runs while there is time. A
job that cancels all tasks ends only itself: the jobs beside it are handed back, and the worker goes
on.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from poolhand.context import running
from poolhand.durable.worker.running_claim import RunningClaim
from poolhand.pool.slots.runner import own_task


class GuardedWorker(Protocol):
    """A worker, as its guard uses it."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def stopped(self) -> bool: ...

    @property
    def running(self) -> Mapping[int, RunningClaim]: ...

    def reclaim(self) -> None:
        """Handle attempts that were cancelled before they could begin."""

    def go_down(self) -> Awaitable[None]:
        """Hand back what runs: the loop is about to end."""


class LoopGuard:
    """A task of the loop that is cancelled when all tasks of the loop are."""

    def __init__(self, worker: GuardedWorker) -> None:
        self._worker = worker
        self._by_job = False
        self._task = self._standing()

    @property
    def ending(self) -> bool:
        """Whether the loop is being ended."""
        return self._task.cancelling() > 0 and not self._by_job

    def leave(self) -> None:
        """Stop guarding."""
        self._task.cancel()

    def _standing(self) -> Task[None]:
        return own_task(self._worker.loop, self._watch(), "worker-guard")

    async def _watch(self) -> None:
        try:
            await _Rest(self._disturbed, self._worker.loop)
        except CancelledError:
            if not self._worker.stopped:
                if self._by_job:
                    self._by_job, self._task = False, self._standing()
                else:
                    await self._worker.go_down()
            raise

    def _disturbed(self) -> None:
        """Note the job, if any, that is cancelling this task; runs in the context of that code."""
        culprit: Any = running.get()
        if culprit is None or self._worker.stopped:
            return
        self._by_job = True
        logging.getLogger("poolhand").warning(
            "job %s has cancelled every task of its event loop; those that ran there are given back"
            " and the worker goes on",
            culprit.snapshot().id,
        )
        for work in self._worker.running.values():
            attempt = work.place
            if attempt is None or attempt.task is None:
                continue
            work.swept = attempt is not culprit
            # A task cancelled before its first step does not report its end.
            attempt.task.add_done_callback(lambda _: self._worker.reclaim())


class _Rest(asyncio.Future[None]):
    """The future that the guard awaits: it calls `disturbed` in the context of the canceller."""

    def __init__(self, disturbed: Callable[[], None], loop: AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._disturbed = disturbed

    def cancel(self, msg: Any = None) -> bool:
        if not self.done():
            self._disturbed()
        return super().cancel(msg)
