"""The pools of a PostgreSQL store, and who may use one at the same time.

A pool that has nothing to decide but the order of its queue is free: its jobs are added, claimed
and ended by many at once. Every other one belongs to one transaction at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from poolhand.contract import Wanted
from poolhand.rules.backpressure import Unbounded
from poolhand.rules.desk import Verdict
from poolhand.rules.job import Job
from poolhand.rules.rank import Fifo, Priority
from poolhand.rules.spec import PoolSpec
from poolhand.stores.sql_books import Books
from poolhand.stores.sql_pools import NEW, Columns, Pools, StoredPool, encode_spec
from poolhand.stores.sql_rows import ENDS, Row, sought
from poolhand.stores.sql_tables import Insert

ALL = """
SELECT no, spec, paused, resized, running, waiting, queued, scheduled, parked, round, lanes, keys
FROM poolhand_pools
"""
SAVE = """
UPDATE poolhand_pools SET spec = ?, paused = ?, resized = ?, running = ?, waiting = ?, queued = ?,
    scheduled = ?, parked = ?, round = ?, lanes = ?, keys = ?
WHERE no = ?
"""
# With how many jobs could be claimed, as far as that is asked, and who would claim them: held, so
# that nobody is buried in between.
LOAD = """
WITH me AS MATERIALIZED (
    SELECT no FROM poolhand_owners WHERE id = ? AND buried = 0 FOR SHARE
)
SELECT p.no, spec, paused, resized, running, waiting, queued, scheduled, parked, round, lanes, keys,
    (SELECT count(*) FROM (
        SELECT 1 FROM poolhand_waits w WHERE w.pool = p.no AND w.place = 4 LIMIT ?) heads),
    (SELECT no FROM me)
FROM poolhand_pools p WHERE p.no = ANY(?)
"""
RECOUNT = """
SELECT (SELECT count(*) FROM poolhand_claims WHERE pool = ?1), coalesce(sum(many), 0)::bigint,
    coalesce(sum(many) FILTER (WHERE place = 4), 0)::bigint,
    coalesce(sum(many) FILTER (WHERE place = 1), 0)::bigint
FROM (SELECT place, count(*) AS many FROM poolhand_waits
    WHERE pool = ?1 AND place > 0 AND (due_at IS NULL OR due_at >= 0) GROUP BY place) places
"""
OPEN = f"{NEW} RETURNING no"
TALLIES = Insert("poolhand_tallies", {"pool": "bigint", **{end.value: "bigint" for end in ENDS}})


class Unlocked(Exception):
    """A pool is needed that is not held, or not alone: the transaction has to begin anew."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(*numbers)
        self.numbers = numbers


class PostgresPool(StoredPool):
    """A pool that is held by this transaction, alone or with others (`shared`).

    Of a free one nothing is counted, so that nobody has to wait to count.
    """

    SAVE = SAVE

    def __init__(self, books: Books, columns: Columns) -> None:
        self.alone = True
        super().__init__(books, columns[:12])

    @property
    def free(self) -> bool:
        return is_free(self.spec, self.resized)

    def own(self) -> None:
        """Make sure that nobody else uses the pool."""
        if not self.alone:
            raise Unlocked(self.no)

    def admit(self, entry: Row, now: float, rerun: bool = False) -> Verdict[Row]:
        job = entry.job
        if job.session is not None or job.idempotency_key is not None:
            self.own()
        return super().admit(entry, now, rerun)

    def finish(self, entry: Row, now: float) -> None:
        self.own()
        super().finish(entry, now)

    def remove(self, entry: Row, now: float) -> None:
        self.own()
        super().remove(entry, now)

    def promote(self, entry: Row, now: float) -> None:
        self.own()
        super().promote(entry, now)

    def give_back(self, entry: Row, opens_at: float, now: float) -> None:
        if entry.job.session is not None:
            self.own()
        super().give_back(entry, opens_at, now)

    def counted(self) -> tuple[int, int]:
        if self.free:
            self._count()
        return super().counted()

    def count_if(self, was_free: bool) -> None:
        """Count what was not counted while the pool was free, if it is not so any more."""
        if was_free and not self.free:
            self._count()
            self._saved = ()

    def _count(self) -> None:
        counts = self.books.query(RECOUNT, (self.no,))[0]
        self.running, self.waiting, self.queue.size, self.schedule.size = counts

    def _state(self) -> tuple[Any, ...]:
        spec, paused, resized, *counts = super()._state()[:11]
        if self.free:
            counts = [0] * 7 + counts[7:]
        return (spec, int(paused), resized, *counts)


class PostgresPools(Pools):
    """The pools that one transaction holds: `held` says whether alone."""

    BY_NAME = f"{ALL} WHERE name = ?"
    BY_NO = f"{ALL} WHERE no = ?"
    KIND = PostgresPool

    def __init__(self, books: Books, held: dict[int, bool], busy: Collection[int] = ()) -> None:
        super().__init__(books)
        self._held = held
        self._maybe_busy = busy
        self._tallies: dict[int, Counter[int]] = {}
        self.claimant: tuple[str, int | None] = ("", None)
        books.writers.append(self._write_tallies)

    def load(self, wanted: Wanted | None) -> None:
        """Look all pools up that are held, with what could be claimed of what is wanted."""
        if not self._held:
            return
        owner, limit = ("", 0) if wanted is None else (wanted.owner, len(wanted.slots))
        asked = (sought(owner), limit, list(self._held))
        for *columns, heads, number in self._books.tables.execute(LOAD, asked):
            pool = self._keep(tuple(columns))
            assert isinstance(pool, PostgresPool)
            if pool.free:
                pool.queue.size = heads
            self.claimant = owner, number

    def busy(self, wanted: Wanted) -> dict[int, StoredPool]:
        pools = (self._by_no[no] for no in self._maybe_busy if no in self._by_no)
        return {pool.no: pool for pool in pools if pool.queued > 0 and not pool.paused}

    def holds(self, no: int) -> bool:
        """Tell whether a pool is held alone."""
        return self._held.get(no, False)

    def open(self, spec: PoolSpec) -> StoredPool:
        made = self._books.tables.execute(OPEN, (spec.name, encode_spec(spec))).fetchone()
        if made is not None:
            # Nobody else can see it yet.
            self._held[made[0]] = True
        self._missing.discard(spec.name)
        pool = self.named(spec.name)
        assert pool is not None
        return pool

    def declare(self, pool: StoredPool, spec: PoolSpec) -> StoredPool:
        was_free = self._own(pool).free
        new = self._own(super().declare(pool, spec))
        new.count_if(was_free)
        return new

    def pause(self, pool: StoredPool, paused: bool) -> None:
        self._own(pool)
        super().pause(pool, paused)

    def resize(self, pool: StoredPool, slots: int | None) -> None:
        was_free = self._own(pool).free
        super().resize(pool, slots)
        self._own(pool).count_if(was_free)

    def tally(self, no: int, end: int, count: int) -> None:
        self._tallies.setdefault(no, Counter())[end] += count

    def anew(self) -> PostgresPools:
        return type(self)(self._books, self._held, self._maybe_busy)

    def _own(self, pool: StoredPool) -> PostgresPool:
        assert isinstance(pool, PostgresPool)
        pool.own()
        return pool

    def _write_tallies(self) -> None:
        rows = [
            (no, *(counts[end] for end in range(len(ENDS)))) for no, counts in self._tallies.items()
        ]
        if rows:
            self._books.also.append((TALLIES, rows))
        self._tallies.clear()

    def _keep(self, columns: Columns) -> StoredPool:
        no = columns[0]
        alone = self._held.get(no)
        if alone is None:
            raise Unlocked(no)
        pool = super()._keep(columns)
        assert isinstance(pool, PostgresPool)
        pool.alone = alone
        if not pool.free:
            pool.own()
        return pool


def is_free(spec: PoolSpec, resized: int | None) -> bool:
    """Tell whether all that has to be decided about the jobs of a pool is their order."""
    return (
        (spec.slots if resized is None else resized) is None
        and spec.max_per_key is None
        and isinstance(spec.backpressure, Unbounded)
        and isinstance(spec.queue, Fifo | Priority)
    )


def is_plain(job: Job) -> bool:
    """Tell whether a job has nothing to do with any other."""
    return job.session is None and job.idempotency_key is None
