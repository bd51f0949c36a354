"""Deadlock detection: jobs that await jobs of their own pool."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from poolhand.context import running
from poolhand.errors import Deadlock
from poolhand.observe.events import DeadlockFound
from poolhand.pool.engine.reports import Outbox
from poolhand.pool.engine.work import Work
from poolhand.pool.slots.attempt import Attempt
from poolhand.rules.deadlock import PoolFloor, hopeless
from poolhand.rules.queue.desk import Desk


class PoolWaits:
    """Tracks which running job awaits which, and breaks awaits that could never end.

    A job counts as waiting while any of its tasks awaits a ticket of the same pool without a time
    limit. A job that closes a cycle, or is left in one, gets Deadlock raised from its await.
    """

    def __init__(
        self,
        pool_id: str,
        desk: Desk[Work],
        jobs: Callable[[], Iterable[Work]],
        stuck_keys: Callable[[], set[str]],
        outbox: Outbox,
        loop: AbstractEventLoop,
    ) -> None:
        self._pool_id = pool_id
        self._desk = desk
        self._running = jobs
        self._stuck_keys = stuck_keys
        self._outbox = outbox
        self._loop = loop
        self._looks_soon = False
        self.open: list[tuple[Work, Work, Future[None]]] = []

    @contextmanager
    def awaiting(self, work: Work, future: Future[None]) -> Iterator[None]:
        """Register for the duration of an await that the running job waits for `work`."""
        inside = running.get()
        if not isinstance(inside, Attempt) or not self._is_ours(inside):
            yield
            return
        item = (inside.work, work, future)
        self.open.append(item)
        try:
            self.check()
            yield
        finally:
            self.open.remove(item)

    def check(self) -> None:
        """Schedule one search for endless awaits per turn of the loop."""
        if not self._looks_soon:
            self._looks_soon = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Raise Deadlock in the newest await that can never end, until none is left."""
        self._looks_soon = False
        while (item := self._find()) is not None:
            waiter, awaited, future = item
            future.set_exception(
                Deadlock(
                    f"job {waiter.id} waits for job {awaited.id} of its own pool "
                    f"{waiter.job.pool!r}, which can never start: every job that could make "
                    "room for it waits too; give the pool more slots, or run inner jobs in a pool "
                    "of their own",
                    job_id=waiter.id,
                )
            )
            if self._outbox.live:
                self._outbox.put(DeadlockFound(waiter.job.pool, waiter.id, awaited.id))
                self._outbox.flush()

    def _find(self) -> tuple[Work, Work, Future[None]] | None:
        awaited: dict[Work, list[Work]] = {}
        open_items = [item for item in self.open if not item[2].done()]
        for waiter, work, _ in open_items:
            awaited.setdefault(waiter, []).append(work)
        desk = self._desk
        at_gates = desk.blocked or desk.blocked_submitters.size
        if desk.has_slot and not at_gates and not any(item[1] in awaited for item in open_items):
            # No job is at a gate and no awaited job itself awaits: free slots are enough.
            return None
        # Records are written late; `running` brings them up to date for the rule.
        floor = PoolFloor(self._desk, list(self._running()), awaited, self._stuck_keys())
        lost = hopeless((item[1] for item in open_items), floor)
        return next((item for item in reversed(open_items) if item[1] in lost), None)

    def _is_ours(self, attempt: Attempt[Work]) -> bool:
        return attempt.live and attempt.work.job.pool_id == self._pool_id
