"""What a process knows of its durable pool without asking the store.

Counts as of the last look at the store, and the jobs that it has submitted and whose end it does
not know yet: a worker of this process reports how its own jobs end; a job that ends while it waits,
or in another process, has to be polled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from math import inf

from msgspec import Struct

from poolhand.contract import PoolRow, Store, Stored
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.drain import DrainReport
from poolhand.rules.explain import home_of
from poolhand.rules.job import WAITING, Job, Status
from poolhand.rules.queue.stored_desk import undeclared

LOT = 500
LOOKS_UNHINTED = 10  # signals may be lost; without one, this many looks pass between two rounds
DOUBT = 60.0  # seconds after which a request that is not in the store counts as not accepted


class ExpectedEnd(Struct, frozen=True):
    """A job that is over; without a record it was pruned or never stored."""

    id: str
    job: Job | None


class ExpectedJobs:
    """The ids of such jobs. Polled on the store thread's loop; all else is on that of the pool."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[str, float] = {}
        self._round: list[str] = []
        self._hinted = False
        self._unhinted = 0
        self._open: list[str] | None = None

    def __contains__(self, id: str) -> bool:
        return id in self._since

    def add(self, id: str) -> None:
        """Expect a job that is being added to the store."""
        self._since[id] = self._now()

    def confirm(self, id: str) -> None:
        """Note that a job is in the store; its end may already have been reported."""
        if id in self._since:
            self._since[id] = -inf

    def discard(self, id: str) -> bool:
        """Stop expecting a job; return whether it was expected."""
        return self._since.pop(id, None) is not None

    def hint(self, topic: str) -> None:
        """Note a signal of the store."""
        self._hinted = self._hinted or topic == "over"

    async def look(
        self, store: Store, met: Callable[[Job, float], None] | None = None
    ) -> list[ExpectedEnd]:
        """Poll the next batch, if that is due; return its jobs that are over.

        `met` gets the others, with the time of the poll.
        """
        if not self._round and self._is_due():
            self._round = list(self._since)
        lot, self._round = self._round[:LOT], self._round[LOT:]
        return await self._look_after(store, lot, met)

    async def look_at_all(self, store: Store) -> list[ExpectedEnd]:
        """Poll all of them, for the last time."""
        ids = list(self._since)
        gone: list[ExpectedEnd] = []
        for start in range(0, len(ids), LOT):
            gone += await self._look_after(store, ids[start : start + LOT])
        return gone

    async def are_open(self, store: Store) -> bool:
        """Return whether any of the jobs expected now runs, or could run now.

        Meant for repeated calls, which check the same jobs: each job is read once or twice.
        """
        if self._open is None:
            self._open = list(self._since)
        at_once = 1
        while self._open:
            ids = self._open[-at_once:]
            found = zip(ids, await store.get(ids), strict=True)
            still = [id for id, stored in found if stored is not None and _is_open(stored.job)]
            self._open[-len(ids) :] = still
            if still:
                return True
            at_once = LOT
        return False

    def _is_due(self) -> bool:
        self._unhinted += 1
        due = self._hinted or self._unhinted >= LOOKS_UNHINTED
        if due:
            self._hinted, self._unhinted = False, 0
        return due

    async def _look_after(
        self,
        store: Store,
        ids: Sequence[str],
        met: Callable[[Job, float], None] | None = None,
    ) -> list[ExpectedEnd]:
        ids = [id for id in ids if id in self._since]
        if not ids:
            return []
        at = self._now()
        gone: list[ExpectedEnd] = []
        for id, stored in zip(ids, await store.get(ids), strict=True):
            if self._is_over(id, stored):
                gone.append(ExpectedEnd(id, None if stored is None else stored.job))
            elif stored is not None and met is not None:
                met(stored.job, at)
        return gone

    def _is_over(self, id: str, stored: Stored | None) -> bool:
        if stored is not None:
            return stored.job.status.terminal
        # A job that is not in the store may still be on its way there.
        return self._now() - self._since.get(id, -inf) >= DOUBT


def _is_open(job: Job) -> bool:
    if job.status is Status.SCHEDULED:
        # Another worker has parked a closure of this process: only this process can run it.
        return home_of(job.waits_for) is not None
    return not job.status.terminal


OVER = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED, Status.EXPIRED)


class StoreCounts(Struct, frozen=True):
    """The state of the pool in the store at `as_of`: its row, and how many jobs of each status.

    One query counts them all: a job that changes its status meanwhile is counted once.
    """

    row: PoolRow
    counts: Mapping[Status, int]
    as_of: datetime

    def count(self, status: Status) -> int:
        return self.counts.get(status, 0)

    @property
    def running(self) -> int:
        return self.count(Status.RUNNING)

    @property
    def waiting(self) -> int:
        return sum(map(self.count, WAITING))

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class PoolCounts:
    """The last known state of the pool in the store, and the counts of this process.

    `heard` counts the ends of jobs that it ran or had submitted.
    """

    def __init__(self, name: str, made_at: datetime) -> None:
        self.look = StoreCounts(PoolRow(undeclared(name)), {}, made_at)
        self.submitted = 0
        self.heard: Counter[Status] = Counter()
        self.dead: dict[str, Job] = {}

    def slots(self, config: PoolConfig) -> int:
        """Return the cap in force, which another process or an operator may have set."""
        slots = self.look.row.slots
        return config.max_concurrent if slots is None else slots

    def hear(self, job: Job, history: int) -> Iterator[str]:
        """Note that a job is over; yield the ids of jobs that are not needed any more."""
        self.heard[job.status] += 1
        if job.status is not Status.FAILED:
            yield job.id
            return
        self.dead[job.id] = job
        while len(self.dead) > history:
            gone = next(iter(self.dead))
            del self.dead[gone]
            yield gone

    def report(self, stuck: int, seconds: float) -> DrainReport:
        """Return the counts of this process."""
        completed, failed, cancelled, rejected, expired = (self.heard[one] for one in OVER)
        ends = (completed, failed, cancelled, rejected, expired)
        return DrainReport(self.submitted, *ends, stuck, seconds)
