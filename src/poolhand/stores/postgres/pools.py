"""The pools of a PostgreSQL store, and which transactions can use one at the same time.

A pool that decides nothing but the order of its queue is free: many transactions add, claim and end
its jobs at once. Any other pool is locked by one transaction at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from poolhand.contract import ClaimRequest, PoolRow
from poolhand.rules.job import Job
from poolhand.rules.queue.backpressure import Unbounded
from poolhand.rules.queue.desk import Verdict
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.rules.queue.strategy import Fifo, Priority
from poolhand.stores.sql.pools import (
    NEW,
    OLDEST,
    WAITING_UNDER_OTHER_KEYS,
    Columns,
    Pools,
    StoredPool,
    encode_spec,
    spec_of,
)
from poolhand.stores.sql.rows import ENDS, JobRow, sought, submit_of
from poolhand.stores.sql.tables import Insert, Tables
from poolhand.stores.sql.unit_of_work import UnitOfWork
from poolhand.stores.sql.upkeep import DATED_AT_ONCE, UNDATED

ALL = """
SELECT no, spec, paused, resized, running, waiting, queued, scheduled, parked, round, lanes, keys,
    0
FROM poolhand_pools
"""
SAVE = """
UPDATE poolhand_pools SET spec = ?, paused = ?, resized = ?, running = ?, waiting = ?, queued = ?,
    scheduled = ?, parked = ?, round = ?, lanes = ?, keys = ?
WHERE no = ?
"""
# Returns the time and new numbers; whether a job is overdue, or an owner expired; the owner that
# claims, locked so that it is not expired in between; then the locked pools and those with work,
# each with its number of queued jobs (up to the number asked for) and its version. At least one
# row. Shared locks are taken by the same statement: if it had to wait for one, it has read the
# state from before, and the versions show that. It selects the first job that closes or is queued:
# the planner may answer EXISTS by reading all of them.
LOAD = """
WITH {held}me AS MATERIALIZED (
    SELECT no FROM poolhand_owners WHERE id = ?1 AND buried = 0 FOR SHARE
)
SELECT {count}extract(epoch FROM clock_timestamp())::double precision, skew,
    ARRAY(SELECT nextval('poolhand_job_numbers') FROM generate_series(1, ?7::int)),
    coalesce((SELECT closes_at FROM poolhand_waits WHERE closes_at IS NOT NULL
        ORDER BY closes_at LIMIT 1)
        <= coalesce(?6::double precision, extract(epoch FROM clock_timestamp()) - skew), false),
    EXISTS (SELECT 1 FROM poolhand_owners WHERE buried = 1), (SELECT no FROM me), found.*
FROM poolhand_counters LEFT JOIN (
    SELECT p.*, (SELECT count(*) FROM (
        SELECT 1 FROM poolhand_waits w WHERE w.pool = p.no AND w.place = 4 LIMIT ?2) heads)
    FROM (
        SELECT no, spec, paused, resized, running, waiting, queued, scheduled, parked, round, lanes,
            keys, coalesce((SELECT 1 FROM poolhand_waits w WHERE w.pool = poolhand_pools.no
                AND w.waits_for IS NOT NULL AND w.due_at IS NULL LIMIT 1), 0) AS aside,
            xmin::text AS version,
            ?4 AND paused = 0 AND (?5::text[] IS NULL OR name = ANY(?5)) AS served
        FROM poolhand_pools) p
    WHERE p.no = ANY(?3::int[]) OR (served AND (aside > 0 OR (
        SELECT true FROM poolhand_waits w WHERE w.pool = p.no AND w.place = 4 LIMIT 1)))
) found ON true
"""
TAKE_AND_LOAD = LOAD.format(
    held="""held AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock_shared(?8::int, no)) AS many FROM unnest(?3::int[]) AS w(no)
), """,
    count="(SELECT many FROM held), ",
)
LOAD = LOAD.format(held="", count="")
RECOUNT = """
SELECT (SELECT count(*) FROM poolhand_claims WHERE pool = ?1), coalesce(sum(many), 0)::bigint,
    coalesce(sum(many) FILTER (WHERE place = 4), 0)::bigint,
    coalesce(sum(many) FILTER (WHERE place = 1), 0)::bigint
FROM (SELECT place, count(*) AS many FROM poolhand_waits
    WHERE pool = ?1 AND place > 0 AND (due_at IS NULL OR due_at >= 0) GROUP BY place) places
"""
HEADS = """
SELECT count(*) FROM (SELECT 1 FROM poolhand_waits WHERE pool = ? AND place = 4 LIMIT ?) heads
"""
OPEN = f"{NEW} RETURNING no"
TALLIES = Insert(
    "poolhand_tallies", "pool bigint, " + ", ".join(f"{end.value} bigint" for end in ENDS)
)


class Unlocked(Exception):
    """The transaction lacks a lock on a pool, or an exclusive one: it has to start again."""

    def __init__(self, pools: Mapping[int, bool]) -> None:
        super().__init__(pools)
        self.pools = pools


class PostgresPool(StoredPool):
    """A pool that this transaction has locked, exclusively (`alone`) or shared.

    The jobs of a free pool are not counted, so that no transaction waits for the counters; `heads`
    is the number of its queued jobs, up to as many as could be claimed.
    """

    SAVE = SAVE
    WAITING_UNDER_OTHER_KEYS = WAITING_UNDER_OTHER_KEYS.format(
        keys="SELECT jsonb_array_elements_text(?::jsonb)", oldest=OLDEST
    )

    def __init__(self, unit: UnitOfWork, columns: Columns) -> None:
        self.alone = True
        self.heads = 0
        super().__init__(unit, columns[:13])

    @property
    def free(self) -> bool:
        return is_free(self.spec, self.resized)

    def own(self) -> None:
        """Raise Unlocked unless this transaction has locked the pool exclusively."""
        if not self.alone:
            raise Unlocked({self.no: True})

    def admit(self, entry: JobRow, now: float, rerun: bool = False) -> Verdict[JobRow]:
        job = entry.job
        if job.session is not None or job.idempotency_key is not None:
            self.own()
        return super().admit(entry, now, rerun)

    def finish(self, entry: JobRow, now: float) -> None:
        self.own()
        super().finish(entry, now)

    def remove(self, entry: JobRow, now: float) -> None:
        self.own()
        super().remove(entry, now)
        if self.heads:
            ((self.queue.size,),) = self.unit.query(HEADS, (self.no, self.heads))

    def promote(self, entry: JobRow, now: float) -> None:
        self.own()
        super().promote(entry, now)

    def give_back(self, entry: JobRow, opens_at: float, now: float) -> None:
        if entry.job.session is not None:
            self.own()
        super().give_back(entry, opens_at, now)

    def put_back(self, entry: JobRow, ready_at: float) -> None:
        if entry.job.session is not None:
            self.own()
        super().put_back(entry, ready_at)

    def set_aside(self, entry: JobRow, now: float) -> None:
        if entry.job.session is not None:
            self.own()
        super().set_aside(entry, now)

    def free_session(self, line: str, now: float) -> None:
        self.own()
        super().free_session(line, now)

    def counted(self) -> tuple[int, int]:
        if self.free:
            self._count()
        return super().counted()

    def count_if(self, was_free: bool) -> None:
        """Count the jobs of a pool that was free and is not free any more."""
        if was_free and not self.free:
            self._count()
            self._saved = ()

    def _count(self) -> None:
        counts = self.unit.query(RECOUNT, (self.no,))[0]
        self.running, self.waiting, self.queue.size, self.schedule.size = counts

    def _state(self) -> tuple[Any, ...]:
        spec, paused, resized, *counts = super()._state()[:11]
        if self.free:
            counts = [0] * 7 + counts[7:]
        return (spec, int(paused), resized, *counts)


class PostgresPools(Pools):
    """The pools that one transaction has locked; `held` says whether exclusively."""

    BY_NAME = f"{ALL} WHERE name = ?"
    BY_NO = f"{ALL} WHERE no = ?"
    KIND = PostgresPool

    def __init__(self, unit: UnitOfWork, held: dict[int, bool]) -> None:
        super().__init__(unit)
        self._held = held
        self._served: list[int] = []
        self.versions: dict[int, str] = {}
        self._tallies: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self.claimant: tuple[str, int | None] = ("", None)
        self.may_be_overdue = self.owner_may_have_expired = True
        unit.writers.append(self._write_tallies)

    def load(self, rows: Sequence[Any], owner: str) -> None:
        """Load the locked pools, and those that have jobs for the claim request."""
        missing = {}
        for overdue, expired, number, *columns, version, served, heads in rows:
            self.may_be_overdue, self.owner_may_have_expired = overdue, expired
            self.claimant = owner, number
            no, spec, _, resized, running, *_ = columns
            if no in self._held:
                self._take(tuple(columns), heads)
                self.versions[no] = version
                if served:
                    self._served.append(no)
            elif no is not None and has_room(rules := spec_of(spec), resized, running):
                missing[no] = not is_free(rules, resized)
        if missing:
            raise Unlocked(missing)

    def _take(self, columns: Columns, heads: int) -> None:
        pool = self._keep(columns)
        assert isinstance(pool, PostgresPool)
        if pool.free:
            pool.queue.size = pool.heads = heads

    def met(self) -> dict[str, tuple[int, bool]]:
        """Return the numbers of all loaded pools by name, and whether they are free."""
        return {
            name: (pool.no, is_free(pool.spec, pool.resized))
            for name, pool in self._by_name.items()
        }

    def with_work(self) -> dict[int, bool]:
        """Return the pools with work, and whether it needs an exclusive lock."""
        pools = (self._by_no[no] for no in self._served)
        return {pool.no: not is_free(pool.spec, pool.resized) for pool in pools if pool.has_work}

    def busy(self, wanted: ClaimRequest) -> dict[int, StoredPool]:
        pools = (self._by_no[no] for no in self._served)
        return {pool.no: pool for pool in pools if pool.has_work}

    def holds(self, no: int) -> bool:
        """Return whether a pool is locked exclusively."""
        return self._held.get(no, False)

    def open(self, spec: PoolSpec) -> StoredPool:
        made = self._unit.tables.execute(OPEN, (spec.name, encode_spec(spec))).fetchone()
        if made is not None:
            # No other transaction can see it yet.
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
        self._tallies[no][end] += count

    def anew(self) -> PostgresPools:
        return type(self)(self._unit, self._held)

    def _own(self, pool: StoredPool) -> PostgresPool:
        assert isinstance(pool, PostgresPool)
        pool.own()
        return pool

    def _write_tallies(self) -> None:
        rows = [
            (no, *(counts[end] for end in range(len(ENDS)))) for no, counts in self._tallies.items()
        ]
        if rows:
            self._unit.also.append((TALLIES, rows))
        self._tallies.clear()

    def _keep(self, columns: Columns) -> StoredPool:
        no = columns[0]
        alone = self._held.get(no)
        if alone is None:
            raise Unlocked({no: True})
        pool = super()._keep(columns)
        assert isinstance(pool, PostgresPool)
        pool.alone = alone
        if not pool.free:
            pool.own()
        return pool


def is_free(spec: PoolSpec, resized: int | None) -> bool:
    """Return whether a pool decides nothing about its jobs but their order."""
    return (
        (spec.slots if resized is None else resized) is None
        and spec.max_per_key is None
        and isinstance(spec.backpressure, Unbounded)
        and isinstance(spec.queue, Fifo | Priority)
    )


def has_room(spec: PoolSpec, resized: int | None, running: int) -> bool:
    """Return whether a pool has a free slot."""
    slots = spec.slots if resized is None else resized
    return slots is None or running < slots


def is_plain(job: Job) -> bool:
    """Return whether a job is independent of any other."""
    return job.session is None and job.idempotency_key is None


POOLS = """
SELECT spec, paused, resized, coalesce(running, 0), coalesce(queued, 0), coalesce(blocked, 0),
    coalesce(scheduled, 0), coalesce(parked, 0)
FROM (SELECT no, spec, paused, resized FROM poolhand_pools) p
LEFT JOIN (SELECT pool, count(*) AS running FROM poolhand_claims GROUP BY pool) c ON c.pool = p.no
LEFT JOIN (SELECT pool, count(*) FILTER (WHERE place = 4) AS queued,
        count(*) FILTER (WHERE place IN (2, 3)) AS blocked,
        count(*) FILTER (WHERE place = 1) AS scheduled, count(*) FILTER (WHERE place = 0) AS parked
    FROM poolhand_waits GROUP BY pool) w ON w.pool = p.no
ORDER BY p.no
"""
# A few pools are counted one by one, so that the jobs of all others are not read.
SOME_POOLS = """
SELECT spec, paused, resized,
    (SELECT count(*) FROM poolhand_claims WHERE pool = p.no),
    (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 4),
    (SELECT count(*) FROM poolhand_waits
        WHERE pool = p.no AND place IN (2, 3) AND gate IS NOT NULL),
    (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 1),
    (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 0)
FROM poolhand_pools p WHERE name = ANY(?) ORDER BY p.no
"""
TALLIED = """
SELECT coalesce(queued, 0), coalesce(scheduled, 0), coalesce(blocked, 0), coalesce(running, 0),
    coalesce(completed, 0), coalesce(failed, 0), coalesce(cancelled, 0), coalesce(expired, 0),
    coalesce(rejected, 0)
FROM (SELECT no, name FROM poolhand_pools) p
LEFT JOIN (SELECT pool, count(*) AS running FROM poolhand_claims WHERE stuck = 0 GROUP BY pool) c
    ON c.pool = p.no
LEFT JOIN (SELECT pool, count(*) FILTER (WHERE place = 4) AS queued,
        count(*) FILTER (WHERE place = 1) AS scheduled,
        count(*) FILTER (WHERE place IN (2, 3)) AS blocked
    FROM poolhand_waits GROUP BY pool) w ON w.pool = p.no
LEFT JOIN (SELECT pool, sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
        sum(cancelled)::bigint AS cancelled, sum(expired)::bigint AS expired,
        sum(rejected)::bigint AS rejected
    FROM poolhand_tallies GROUP BY pool) t ON t.pool = p.no
WHERE ?::text IS NULL OR p.name = ?
"""


def pool_rows(tables: Tables, names: Sequence[str] | None) -> list[PoolRow]:
    """Return pools as callers see them."""
    if names is None:
        rows = tables.execute(POOLS)
    else:
        rows = tables.execute(SOME_POOLS, (list(map(sought, names)),))
    return [PoolRow(spec_of(spec), bool(paused), *counts) for spec, paused, *counts in rows]


WITH_REMAINS = "SELECT no FROM poolhand_pools WHERE keys > 0 OR lanes > 0 ORDER BY no"
FOLD = """
WITH gone AS (DELETE FROM poolhand_tallies RETURNING *)
INSERT INTO poolhand_tallies
SELECT pool, sum(completed), sum(failed), sum(cancelled), sum(expired), sum(rejected)
FROM gone GROUP BY pool
"""
DATE = """
UPDATE poolhand_jobs SET submitted = given.submitted, user_name = given.user_name
FROM unnest(?::bigint[], ?::double precision[], ?::text[]) AS given(seq, submitted, user_name)
WHERE poolhand_jobs.seq = given.seq
"""


def with_remains(tables: Tables) -> list[int]:
    """Return the pools that may have expired keys or lanes."""
    return [no for (no,) in tables.execute(WITH_REMAINS)]


def fold_tallies(tables: Tables, now: float, at: datetime) -> None:
    """Merge the tallies of each pool into one row."""
    tables.execute(FOLD)


def date_jobs(tables: Tables, now: float, at: datetime) -> None:
    """Fill in submission time and user in rows of older versions, a few at a time."""
    undated = tables.execute(UNDATED, (DATED_AT_ONCE,)).fetchall()
    if undated:
        times, users = zip(*(submit_of(ordered) for _, ordered in undated), strict=True)
        tables.execute(DATE, ([seq for seq, _ in undated], list(times), list(users)))
