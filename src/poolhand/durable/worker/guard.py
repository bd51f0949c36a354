"""The guard of a worker: it notices when all tasks of its event loop are ended, and by whom.

Whoever ends a loop cancels its tasks: then what runs goes back while there is time. A job that
cancels them all ends nothing but itself: those that ran beside it go back, and the worker goes on.
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
    """A worker, as its guard sees it."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def stopped(self) -> bool: ...

    @property
    def running(self) -> Mapping[int, RunningClaim]: ...

    def reclaim(self) -> None:
        """See to what was ended before it could begin."""

    def go_down(self) -> Awaitable[None]:
        """Give back what runs: the loop is about to end."""


class LoopGuard:
    """A task that stands among all others of a loop, and falls with them."""

    def __init__(self, worker: GuardedWorker) -> None:
        self._worker = worker
        self._by_job = False
        self._task = self._standing()

    @property
    def ending(self) -> bool:
        """Whether the loop is being ended."""
        return self._task.cancelling() > 0 and not self._by_job

    def leave(self) -> None:
        """Guard no longer."""
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
        """Hear, from within the code that does it, that this task is cancelled."""
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
            # One that had not begun ends without a word.
            attempt.task.add_done_callback(lambda _: self._worker.reclaim())


class _Rest(asyncio.Future[None]):
    """What the guard awaits: it is asked to be cancelled in the context of whoever does it."""

    def __init__(self, disturbed: Callable[[], None], loop: AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._disturbed = disturbed

    def cancel(self, msg: Any = None) -> bool:
        if not self.done():
            self._disturbed()
        return super().cancel(msg)
