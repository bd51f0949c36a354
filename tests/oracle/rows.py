"""The rows of the memory store: jobs with their places, pools, owners."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from poolhand.contract import Claim, Filter, Lease, Owner, PoolRow, Stored
from poolhand.rules.job import Job
from poolhand.rules.queue.entry import Entry, Window
from poolhand.rules.queue.idempotency import IdempotencyKeys, is_same_stored_call
from poolhand.rules.queue.stored_desk import PoolSpec, StoredDesk


class Row(Entry):
    """A stored job. `number` counts arrivals, `since` is when it last began to wait.

    `holder` has it under its lease, running or parked; `by_wall`: its time is by the wall clock.
    """

    __slots__ = (
        "by_wall",
        "call_record",
        "cancel_requested",
        "dead",
        "holder",
        "number",
        "over_at",
        "pool",
        "since",
        "slot",
        "stuck",
        "submitter_blocked",
        "token",
    )

    def __init__(
        self, job: Job, call_record: bytes, pool: Pool, now: float, window: Window | None = None
    ) -> None:
        self.job = job
        self.window = window
        self.seq = 0
        self.ready_at = 0.0
        self.before = self.after = self.place = None
        self.call_record = call_record
        self.pool = pool
        self.since = now
        self.number = 0
        self.token = 0
        self.slot = 0
        self.stuck = 0
        self.over_at = 0.0
        self.holder: Holder | None = None
        self.submitter_blocked = self.cancel_requested = self.dead = self.by_wall = False

    def is_same_call(self, kept: Row) -> bool:
        return is_same_stored_call((self.job, self.call_record), (kept.job, kept.call_record))

    def stored(self, with_call: bool = False) -> Stored:
        record = self.call_record if with_call else None
        return Stored(self.job, self.submitter_blocked, self.cancel_requested, self.dead, record)

    def claim(self) -> Claim:
        return Claim(self.job, self.call_record, self.token, self.slot)

    def is_one_of(self, which: Filter) -> bool:
        """Return whether all conditions of a filter hold."""
        job = self.job
        return (
            which.pool in (None, job.pool)
            and (not which.statuses or job.status in which.statuses)
            and which.name in (None, job.name)
            and which.key in (None, job.key)
            and which.session in (None, job.session)
            and which.tenant in (None, job.tenant)
            and which.dead in (None, self.dead)
        )


class Pool:
    """A pool and its desk."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.resized: int | None = None
        self.keys: IdempotencyKeys[Row] = IdempotencyKeys(spec.key_ttl, spec.max_keys)
        self.desk = self._new_desk()

    @property
    def slots(self) -> int | None:
        return self.spec.slots if self.resized is None else self.resized

    def row(self) -> PoolRow:
        desk = self.desk
        places = (
            desk.running,
            desk.queued,
            desk.blocked,
            desk.scheduled,
            desk.blocked_submitters.size,
        )
        return PoolRow(self.spec, desk.paused, self.resized, *places)

    def declare(self, spec: PoolSpec, entries: list[Row], occupied: list[str], now: float) -> None:
        """Continue under other rules; `entries` and `occupied` go to `StoredDesk.succeed`."""
        self.spec = spec
        self.keys.limit(spec.key_ttl, spec.max_keys, now)
        old, self.desk = self.desk, self._new_desk()
        self.desk.succeed(old, entries, occupied)

    def _new_desk(self) -> StoredDesk[Row]:
        spec = self.spec
        return StoredDesk(spec.queue, spec.backpressure, self.slots, self.keys, spec.max_per_key)


class Holder:
    """An owner and what it holds: running rows by token, stuck ones, parked ones by id."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.renewal = 0
        self.expired = False
        self.claims: dict[int, Row] = {}
        self.stuck: dict[int, Row] = {}
        self.parked: dict[str, Row] = {}

    @property
    def held(self) -> int:
        return len(self.claims) + len(self.stuck) + len(self.parked)

    def lease(self) -> Lease:
        return Lease(self.owner, self.renewal, self.held, self.expired)


class Moments:
    """Rows by time, the earliest first, ties by arrival.

    A removed row stays in the heap until it is met, or until such rows outnumber the others.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Row]] = []
        self._at: dict[Row, float] = {}

    def add(self, at: float, row: Row) -> None:
        self._at[row] = at
        heappush(self._heap, (at, row.number, row))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [item for item in set(self._heap) if self._at.get(item[2]) == item[0]]
            heapify(self._heap)

    def remove(self, row: Row) -> None:
        self._at.pop(row, None)

    def first(self) -> tuple[float, int] | None:
        """Return the earliest time, and its arrival number."""
        heap = self._heap
        while heap:
            at, number, row = heap[0]
            if self._at.get(row) == at:
                return at, number
            heappop(heap)
        return None

    def until(self, moment: float) -> list[Row]:
        """Return the due rows, in no order."""
        return [row for row, at in self._at.items() if at <= moment]

    def pop(self) -> Row:
        """Remove the row that `first` returned."""
        row = heappop(self._heap)[2]
        del self._at[row]
        return row
