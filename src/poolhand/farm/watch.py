"""Watches: who waits for what to become of a stored job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from poolhand.contract import Stored
from poolhand.farm.keeper import Keeper, Reply
from poolhand.rules.job import Job

POLL = 1.0  # hints may be lost; what is true is asked for this often
MOST_AT_ONCE = 500
REST = 5.0  # a look at many jobs may take a sixth of the time, no more


class Seen:
    """What this process knows of a stored job: what it raised here or, of a closure, returned."""

    __slots__ = ("__weakref__", "error", "job", "value")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.error: BaseException | None = None
        self.value: Any = None


class Watch:
    """Looks after jobs until they are as they are waited for; lives on the keeper's loop.

    A hint makes it look, and so does time.
    """

    def __init__(self, keeper: Keeper, settled: Callable[[Stored | None], bool]) -> None:
        self._keeper = keeper
        self._settled = settled
        self._waiting: dict[str, list[Reply]] = {}
        self._look = asyncio.Event()

    def hint(self) -> None:
        if self._waiting:
            self._look.set()

    def wait(self, id: str, reply: Reply) -> None:
        """Answer once the job is as it is waited for, or is not kept any more (None)."""
        self._waiting.setdefault(id, []).append(reply)
        self._look.set()

    def tell(self, id: str, stored: Stored | None) -> None:
        """Answer those who wait for a job of which somebody brings news."""
        for reply in self._waiting.pop(id, ()):
            self._keeper.answer(reply, stored)

    async def run(self) -> None:
        loop = self._keeper.loop
        while True:
            await self._hinted()
            began = loop.time()
            await self._look_around()
            # Not again at once, however many hints come: a look costs as much as many wait.
            await asyncio.sleep((loop.time() - began) * REST)

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

    async def _look_around(self) -> None:
        ids = list(self._waiting)
        for start in range(0, len(ids), MOST_AT_ONCE):
            some = ids[start : start + MOST_AT_ONCE]
            for id, stored in zip(some, await self._keeper.store.get(some), strict=True):
                if self._settled(stored):
                    self.tell(id, stored)

    def _drop_gone(self) -> None:
        """Forget those who do not wait any more."""
        for id, replies in list(self._waiting.items()):
            living = [reply for reply in replies if not reply.future.done()]
            if living:
                self._waiting[id] = living
            else:
                del self._waiting[id]


class Outcomes:
    """Knows how jobs end: by asking the store, or at once when a worker of this process says so."""

    def __init__(self, keeper: Keeper) -> None:
        self.watch = Watch(keeper, _is_over)
        self._seen: WeakValueDictionary[str, Seen] = WeakValueDictionary()

    def seen(self, job: Job) -> Seen:
        """Return what is known of a job, the same to everybody who asks."""
        known = self._seen.get(job.id)
        if known is None:
            known = self._seen[job.id] = Seen(job)
        return known

    def tell(self, job: Job, value: Any, error: BaseException | None) -> None:
        """Note how a job ended in a worker of this process; on the keeper's loop."""
        known = self._seen.get(job.id)
        if known is not None:
            # In this order: whoever sees the job over looks for the rest.
            known.value, known.error = value, error
            known.job = job
        self.watch.tell(job.id, Stored(job))


def _is_over(stored: Stored | None) -> bool:
    return stored is None or stored.job.status.terminal


def is_in(stored: Stored | None) -> bool:
    """Tell whether an order is not parked any more: it has its place, or was withdrawn."""
    return stored is None or not stored.parked
