"""Job watchers: wait until a stored job reaches a state, such as its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

from poolhand.contract import Stored
from poolhand.durable.connection.store_thread import CallResult, StoreThread
from poolhand.rules.job import Job

POLL = 1.0  # seconds: signals may be lost, so the store is polled this often
MOST_AT_ONCE = 500
# The pause after a poll, in multiples of its duration: polls take at most a sixth of the time.
REST = 5.0


class KnownJob:
    """This process's knowledge of a stored job, with the error or closure value produced here.

    `waiting` counts the waiters for its value in this process; `shared`: several submitters got it.
    `since` is the time of its submit, if that was here and alone; `at` is when the record was
    valid.
    """

    __slots__ = (
        "__weakref__",
        "at",
        "error",
        "job",
        "shared",
        "since",
        "trace",
        "value",
        "waiting",
    )

    def __init__(self, job: Job, at: float) -> None:
        self.job = job
        self.at = at
        self.error: BaseException | None = None
        self.trace: TracebackType | None = None
        self.value: Any = None
        self.shared = False
        self.since = 0.0
        self.waiting = 0

    def end_with(self, value: Any, error: BaseException | None) -> None:
        self.value, self.error = value, error
        self.trace = None if error is None else error.__traceback__

    def learn(self, job: Job, at: float) -> None:
        """Update the record, unless the known one is the end of the job, or later."""
        later = (at, job.attempts) >= (self.at, self.job.attempts)
        if job.status.terminal or (later and not self.job.status.terminal):
            self.job, self.at = job, at


class JobWatcher:
    """Polls jobs until they reach the state that is waited for; lives on the store thread's loop.

    It polls on a hint, and periodically.
    """

    def __init__(
        self, name: str, thread: StoreThread, settled: Callable[[Stored | None], bool]
    ) -> None:
        self.name = name
        self.met: Callable[[Job, float], None] | None = None
        self.waited: Callable[[], None] | None = None
        self.looked: Callable[[], Awaitable[None]] | None = None
        self._thread = thread
        self._settled = settled
        self._waiting: dict[str, list[CallResult]] = {}
        self._look = asyncio.Event()
        thread.endings.append(self._end)

    def hint(self) -> None:
        if self._waiting:
            self._look.set()

    async def until(
        self, id: str, look_in: float = 0.0, waiter: str | None = None
    ) -> Stored | None:
        """Return the job once it reaches the state, None if it is not stored; on any loop.

        Without a hint it is polled in `look_in` seconds. `waiter` is the job that awaits it without
        a time limit; `waited` is called when there is one.
        """
        found: Stored | None = await self._thread.wait(partial(self._wait, id, look_in, waiter))
        return found

    def nested(self) -> list[tuple[CallResult, str]]:
        """Return the waits of jobs, each with the id of the awaited job."""
        return [
            (reply, id)
            for id, replies in self._waiting.items()
            for reply in replies
            if reply.waiter is not None and not reply.future.done()
        ]

    def _wait(self, id: str, look_in: float, waiter: str | None, reply: CallResult) -> None:
        reply.waiter = waiter
        self._waiting.setdefault(id, []).append(reply)
        if waiter is not None and self.waited is not None:
            self.waited()
        if look_in:
            self._thread.loop.call_later(look_in, self._look.set)
        else:
            self._look.set()

    def is_awaited(self, id: str) -> bool:
        return id in self._waiting

    def answer(self, id: str, stored: Stored | None) -> None:
        """Answer the waiters for a job whose state is known."""
        for reply in self._waiting.pop(id, ()):
            self._thread.answer(reply, stored)

    def _end(self, error: BaseException) -> None:
        """Fail all waiters: polling has ended."""
        waiting, self._waiting = self._waiting, {}
        for replies in waiting.values():
            for reply in replies:
                self._thread.answer(reply, None, error)

    async def run(self) -> None:
        loop = self._thread.loop
        while True:
            await self._hinted()
            began = loop.time()
            if await self._look_around() and self.looked is not None:
                await self.looked()
            self._thread.well(self.name)
            # Pause even if more hints come: the cost of a poll grows with the number of waiters. At
            # most POLL seconds: the poll may have been slow because the store was away.
            await asyncio.sleep(min(POLL, (loop.time() - began) * REST))

    async def _hinted(self) -> None:
        self._drop_gone()
        if not self._waiting:
            await self._look.wait()
        else:
            try:
                async with asyncio.timeout(POLL):
                    await self._look.wait()
            except TimeoutError:
                pass
        self._look.clear()

    async def _look_around(self) -> bool:
        """Poll the awaited jobs; return whether there are some that do not have the state yet."""
        ids, pending = list(self._waiting), False
        for start in range(0, len(ids), MOST_AT_ONCE):
            some = ids[start : start + MOST_AT_ONCE]
            at = self._thread.runtime.monotonic()
            for id, stored in zip(some, await self._thread.store.get(some), strict=True):
                if self._settled(stored):
                    self.answer(id, stored)
                elif self.met is not None and stored is not None:
                    pending = True
                    self.met(stored.job, at)
        return pending

    def _drop_gone(self) -> None:
        """Remove the waiters that do not wait any more."""
        for id, replies in list(self._waiting.items()):
            living = [reply for reply in replies if not reply.future.done()]
            if living:
                self._waiting[id] = living
            else:
                del self._waiting[id]


class Outcomes:
    """Learns how jobs end: by polling the store, or at once from a worker of this process."""

    def __init__(self, thread: StoreThread) -> None:
        self.watch = JobWatcher("outcomes", thread, _is_over)
        self.watch.met = self.meet
        self._seen: WeakValueDictionary[str, KnownJob] = WeakValueDictionary()

    def seen(self, job: Job, at: float) -> KnownJob:
        """Return the KnownJob of a job, one object for all callers; `job` was its record `at` then.

        Times are monotonic: when the store was asked for the record, or was given it.
        """
        known = self._seen.get(job.id)
        if known is None:
            known = self._seen[job.id] = KnownJob(job, at)
        else:
            known.learn(job, at)
        return known

    def watch_unserved(
        self, met: Callable[[Job, float], None], look: Callable[[], Awaitable[None]]
    ) -> None:
        """Call `met` with the record of each awaited job that is polled, and then `look`."""

        def meet(job: Job, at: float) -> None:
            met(job, at)
            self.meet(job, at)

        self.watch.met, self.watch.looked = meet, look

    def meet(self, job: Job, at: float) -> None:
        """Update the record of an unfinished job, if a caller in this process holds it."""
        known = self._seen.get(job.id)
        if known is not None:
            known.learn(job, at)

    def expect(self, job: Job, value: Any, error: BaseException | None) -> None:
        """Note the value or error with which a job is about to end; on the store thread.

        Called before the write: a caller that sees the end in the store looks here for the rest.
        """
        known = self._seen.get(job.id)
        if known is not None and job.status.terminal:
            known.end_with(value, error)

    def ended(self, job: Job) -> None:
        """Note that a job of this process has ended as expected."""
        known = self._seen.get(job.id)
        if known is not None:
            known.job = job
        if self.watch.is_awaited(job.id):
            self.watch.answer(job.id, Stored(job))

    def retract(self, job: Job) -> None:
        """Drop the expected value and error: the write was refused, as the claim was lost."""
        known = self._seen.get(job.id)
        if known is not None:
            known.end_with(None, None)


def _is_over(stored: Stored | None) -> bool:
    return stored is None or stored.job.status.terminal


def is_in(stored: Stored | None) -> bool:
    """Return whether a submitter is not blocked any more: its job was accepted or withdrawn."""
    return stored is None or not stored.submitter_blocked
