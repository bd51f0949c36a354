"""The pools of a SQL store: the desk of each, over its tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, Self

import msgspec

from poolhand.contract import ClaimRequest, PoolRow
from poolhand.errors import Conflict
from poolhand.rules.job import Job
from poolhand.rules.queue.desk import Verdict
from poolhand.rules.queue.stored_desk import PoolSpec, StoredDesk
from poolhand.rules.queue.strategy import Priority
from poolhand.stores.sql.facts import (
    BlockedSubmitters,
    NotStored,
    StoredEvictionIndex,
    StoredGates,
    StoredReady,
    StoredTimers,
    position,
)
from poolhand.stores.sql.rows import SCHEDULED, SESSION, JobRow, sought
from poolhand.stores.sql.sessions import StoredKeys, StoredSessions
from poolhand.stores.sql.tables import Tables
from poolhand.stores.sql.unit_of_work import UnitOfWork, json

ALL = """
SELECT no, spec, paused, resized, running, waiting, queued, scheduled, parked, round, lanes, keys,
    set_aside, completed, failed, cancelled, expired, rejected
FROM poolhand_pools
"""
BY_NAME = f"{ALL} WHERE name = ?"
BY_NO = f"{ALL} WHERE no = ?"
BUSY = f"{ALL} WHERE (queued > 0 OR set_aside > 0) AND paused = 0 ORDER BY no"
NAMED = f"{ALL} WHERE name IN (?*)"
NEW = "INSERT INTO poolhand_pools (name, spec) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
SAVE = """
UPDATE poolhand_pools SET spec = ?, paused = ?, resized = ?, running = ?, waiting = ?, queued = ?,
    scheduled = ?, parked = ?, round = ?, lanes = ?, keys = ?, set_aside = ?, completed = ?,
    failed = ?, cancelled = ?, expired = ?, rejected = ?
WHERE no = ?
"""
NAMES = "SELECT no, name FROM poolhand_pools ORDER BY no"
TO_LIMBO = """
UPDATE poolhand_waits SET place = 5, gate = NULL WHERE pool = ? AND place IN (3, 4) RETURNING seq
"""
OCCUPY = """
UPDATE poolhand_claims SET gate = CASE WHEN ?
    THEN (SELECT key FROM poolhand_jobs WHERE seq = poolhand_claims.seq) END
WHERE pool = ?
"""
RECROWD = """
UPDATE poolhand_waits SET crowd = CASE CAST(? AS integer) WHEN 0 THEN NULL WHEN 1 THEN '' ELSE
    (SELECT key FROM poolhand_jobs WHERE seq = poolhand_waits.seq) END
WHERE pool = ? AND place > 0 AND (due_at IS NULL OR due_at >= 0)
"""

# Skips along the index from one cause to the next: a cause may have very many jobs.
CAUSES = """
WITH RECURSIVE found(cause) AS (
    SELECT (SELECT min(waits_for) FROM poolhand_waits
        WHERE pool = ? AND waits_for IS NOT NULL AND due_at IS NULL)
    UNION ALL
    SELECT (SELECT min(waits_for) FROM poolhand_waits
        WHERE pool = ? AND waits_for > found.cause AND due_at IS NULL)
    FROM found WHERE found.cause IS NOT NULL
)
SELECT cause FROM found WHERE cause IS NOT NULL
"""
WAITING_FOR = """
SELECT seq FROM poolhand_waits
WHERE pool = ? AND waits_for = ? AND due_at IS NULL ORDER BY seq LIMIT ?
/*pg FOR UPDATE SKIP LOCKED */
"""
# At most this many jobs of a cause are examined: examining all would block the pool.
OLDEST = 2000
WAITING_UNDER_OTHER_KEYS = """
SELECT w.seq FROM poolhand_waits w JOIN poolhand_jobs j ON j.seq = w.seq
WHERE w.seq IN (
    SELECT seq FROM poolhand_waits WHERE pool = ? AND waits_for = ? AND due_at IS NULL
    ORDER BY seq LIMIT {oldest}
) AND coalesce(j.key, '') NOT IN ({keys}) ORDER BY w.seq LIMIT ?
/*pg FOR UPDATE OF w SKIP LOCKED */
"""

Columns = tuple[Any, ...]  # a row of ALL

AT_ONCE = 100  # rows that are ranked again per write

encode_spec = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PoolSpec).decode
_specs: dict[bytes, PoolSpec] = {}


def spec_of(blob: bytes) -> PoolSpec:
    """Return the spec of a pool, cached: specs are few and read all the time."""
    spec = _specs.get(blob)
    if spec is None:
        if len(_specs) > 1000:
            _specs.clear()
        spec = _specs[blob] = _decode(blob)
    return spec


def pool_rows(tables: Tables, names: Sequence[str] | None) -> list[PoolRow]:
    """Return pools as callers see them."""
    if names is None:
        rows = tables.execute(ALL).fetchall()
    else:
        rows = list(tables.among(NAMED, [sought(name) for name in dict.fromkeys(names)]))
    return [_pool_row(columns) for columns in sorted(rows, key=itemgetter(0))]


def _pool_row(columns: Columns) -> PoolRow:
    _, spec, paused, resized, running, waiting, queued, scheduled, blocked_submitters = columns[:9]
    blocked = waiting - queued - scheduled
    places = (running, queued, blocked, scheduled, blocked_submitters)
    return PoolRow(spec_of(spec), bool(paused), resized, *places)


class StoredPool(StoredDesk[JobRow]):
    """A pool: a desk whose parts are tables, and the counts of its row.

    `takes_all`: a job without session, key and time is queued without any further decision.
    `by_level`: its priority alone decides its position. `aside` counts the jobs that are set aside
    under a cause, or is 1 if there are any. `tally` counts finished jobs by status, in the order of
    ENDS.
    """

    SAVE = SAVE
    WAITING_UNDER_OTHER_KEYS = WAITING_UNDER_OTHER_KEYS.format(
        keys="SELECT value FROM json_each(?)", oldest=OLDEST
    )

    def __init__(self, unit: UnitOfWork, columns: Columns) -> None:
        no, spec, paused, resized, running, waiting, queued, scheduled, blocked_submitters = (
            columns[:9]
        )
        self.no: int = no
        self.spec_blob: bytes = spec
        self.spec = spec = spec_of(spec)
        self.resized: int | None = resized
        self.unit = unit
        self.aside: int = columns[12]
        self.tally = list(columns[13:])
        slots = spec.slots if resized is None else resized
        keys = StoredKeys(unit, no, spec.key_ttl, spec.max_keys)
        super().__init__(spec.queue, spec.backpressure, slots, keys, spec.max_per_key)
        self.keys = keys
        self.paused = bool(paused)
        self.running, self.waiting = running, waiting
        self.topics = unit.topics
        self.queue = StoredReady(unit, no, spec.queue, queued)
        self.schedule = StoredTimers(unit, scheduled)
        self._ready, self._due = self.queue, self.schedule
        self._expiries = self._openings = NotStored()
        self.sessions: StoredSessions = StoredSessions(unit, no)
        self.blocked_submitters = BlockedSubmitters(unit, no, blocked_submitters)
        keys.finished = columns[11]
        if self.queue.lanes is not None:
            self.queue.lanes.round, self.queue.lanes.opened = columns[9:11]
        self.gates: StoredGates | None = None
        if spec.max_per_key is not None:
            self.gates = StoredGates(unit, no, spec.max_per_key, spec.queue)
        if self._evictions is not None:
            self._evictions = StoredEvictionIndex(unit, no, self._by_key)
        self.takes_all = self._plain and not self._by_key
        self.by_level = spec.queue == Priority()
        self._saved: tuple[Any, ...] = self._state()

    @property
    def has_work(self) -> bool:
        """Return whether there may be something to claim."""
        return self.queued > 0 or self.aside > 0

    @property
    def gives_lots(self) -> bool:
        """Return whether jobs can be taken several at a time: taking one admits no other job."""
        return not self.blocked_submitters.size

    @property
    def ends_lots(self) -> bool:
        """Return whether the end of a job without session and key only frees a slot.

        Gates that were loaded have counted this job, so they must process its end.
        """
        if self.blocked_submitters.size:
            return False
        return self.gates is None or not (self.gates.looked or self.blocked)

    @property
    def crowds(self) -> int:
        """Return among which jobs an eviction chooses: 0 none, 1 all, 2 those of one key."""
        return 0 if self._evictions is None else 1 + self._by_key

    def own(self) -> None:
        """Ensure that no other write uses the pool; SQLite makes one write at a time."""

    def counted(self) -> tuple[int, int]:
        """Return how many jobs run, and how many wait."""
        return self.running, self.waiting

    def admit(self, entry: JobRow, now: float, rerun: bool = False) -> Verdict[JobRow]:
        self._arrivals = entry.seq - 1
        return super().admit(entry, now, rerun)

    def remove(self, entry: JobRow, now: float) -> None:
        if entry.where == SESSION:
            entry.place = self.sessions
        self.aside -= entry.set_aside
        super().remove(entry, now)

    def _start_waiting(self, entry: JobRow) -> None:
        super()._start_waiting(entry)
        if entry.closes_at is not None and entry.closes_at <= self.unit.now:
            # It was given back, or its submitter was blocked until now. It has expired, so no claim
            # of this write may take it.
            self.unit.may_be_overdue = True

    def set_aside(self, entry: JobRow, now: float) -> None:
        super().set_aside(entry, now)
        self.aside += 1
        self.topics.add("ready")

    def take_aside(self, entry: JobRow, now: float) -> bool:
        taken = super().take_aside(entry, now)
        self.aside -= taken
        return taken

    def wake(self, entry: JobRow, now: float) -> None:
        """Make a job that waits for a cause due now."""
        self.own()
        self.aside -= entry.set_aside
        entry.due_at, entry.by_wall = now, False
        self.unit.put(entry, SCHEDULED)

    def causes(self) -> list[str]:
        """Return the causes that jobs are set aside under, each once."""
        found = [cause for (cause,) in self.unit.query_waits(CAUSES, (self.no, self.no))]
        if not found:
            # A process of an older version removed such a job without updating the count.
            self.aside = 0
        return found

    def waiting_for(self, cause: str, limit: int, but: Collection[str] = ()) -> list[int]:
        """Return the seqs of the oldest jobs set aside under a cause, except those of some keys."""
        if not but:
            rows = self.unit.query_waits(WAITING_FOR, (self.no, cause, limit))
        else:
            values = (self.no, cause, json(sorted(but)).decode(), limit)
            rows = self.unit.query_waits(self.WAITING_UNDER_OTHER_KEYS, values)
        return [seq for (seq,) in rows]

    def free_session(self, line: str, now: float) -> None:
        """Give a session that no job holds to its next turn."""
        successor = self.sessions.hand_on(line)
        if successor is not None:
            self._pass_key_gate(successor, now)

    def position(self, job: Job, seq: int, turn: int) -> tuple[float, int]:
        """Return the sort position of a job that enters the queue now."""
        row = JobRow(job, self.no, self.unit.now)
        row.seq, row.ready_at = seq, self.unit.now
        return position(self.spec.queue, row, turn)

    def turn_away(self, row: JobRow) -> None:
        """Discard a new job that would have to block its submitter but has no owner."""
        self.dismiss(row)
        del self.unit.changed[row.seq], self.unit.rows[row.seq]

    def declare(self, spec: PoolSpec, old: StoredPool) -> None:
        """Apply this spec to the jobs already in the pool; `old` is the pool under the old spec."""
        self._saved = ()
        self.keys.limit(spec.key_ttl, spec.max_keys, self.unit.now)
        if self.rank != old.rank:
            self._rank_anew(old)
        self.unit.write()
        if self.crowds != old.crowds:
            self.unit.tables.execute(RECROWD, (self.crowds, self.no))
        self.unit.rows.clear()
        if self.blocked_submitters.size:
            self.blocked_submitters = BlockedSubmitters(
                self.unit, self.no, self.blocked_submitters.size
            )

    def _rank_anew(self, old: StoredPool) -> None:
        """Queue again, in their order, the jobs that are queued or wait for their key."""
        unit = self.unit
        if old.queue.lanes is not None:
            old.queue.lanes.clear()
        if self.queue.lanes is not None:
            self.queue.lanes.clear()
        unit.tables.execute(OCCUPY, (self.gates is not None, self.no))
        self.queue.size = 0
        seqs = sorted([seq for (seq,) in unit.query(TO_LIMBO, (self.no,))])
        for start in range(0, len(seqs), AT_ONCE):
            for row in unit.load(seqs[start : start + AT_ONCE]):
                self._pass_key_gate(row, row.ready_at)
            # There may be more rows than fit into memory.
            unit.write()
            unit.rows.clear()

    def save(self) -> None:
        """Write the counts, after the keys of jobs that have ended: those are counted, too."""
        self.keys.save(self.unit.now)
        if self.queue.lanes is not None:
            self.queue.lanes.write()
        state = self._state()
        if state != self._saved:
            self.unit.tables.execute(self.SAVE, (*state, self.no))
            self._saved = state

    def _state(self) -> tuple[Any, ...]:
        lanes = self.queue.lanes
        return (
            self.spec_blob,
            self.paused,
            self.resized,
            self.running,
            self.waiting,
            self.queue.size,
            self.schedule.size,
            self.blocked_submitters.size,
            0 if lanes is None else lanes.round,
            0 if lanes is None else lanes.opened,
            self.keys.finished,
            self.aside,
            *self.tally,
        )


class Pools:
    """The pools that one write uses, loaded on demand."""

    BY_NAME, BY_NO, BUSY = BY_NAME, BY_NO, BUSY
    KIND = StoredPool

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        self._by_no: dict[int, StoredPool] = {}
        self._by_name: dict[str, StoredPool] = {}
        self._missing: set[str] = set()
        unit.writers.append(self.save)

    def no(self, no: int) -> StoredPool:
        """Return a pool that exists."""
        pool = self._by_no.get(no)
        if pool is None:
            pool = self._keep(self._unit.tables.execute(self.BY_NO, (no,)).fetchone())
        return pool

    def named(self, name: str) -> StoredPool | None:
        pool = self._by_name.get(name)
        if pool is None and name not in self._missing:
            columns = self._unit.tables.execute(self.BY_NAME, (sought(name),)).fetchone()
            if columns is not None:
                return self._keep(columns)
            self._missing.add(name)
        return pool

    def names(self) -> dict[int, str]:
        """Return the names of all pools by number, in order."""
        return dict(self._unit.tables.execute(NAMES).fetchall())

    def busy(self, wanted: ClaimRequest) -> dict[int, StoredPool]:
        """Return the pools that may have jobs for a claim request."""
        self.save()
        busy = {}
        for columns in self._unit.tables.execute(self.BUSY).fetchall():
            pool = self._by_no.get(columns[0]) or self._keep(columns)
            if wanted.pools is None or pool.spec.name in wanted.pools:
                busy[pool.no] = pool
        return busy

    def known(self, name: str) -> StoredPool:
        """Return a pool that an operator names; raise Conflict if there is none."""
        pool = self.named(name)
        if pool is None:
            known = ", ".join(map(repr, self.names().values())) or "none"
            raise Conflict(f"pool={name!r} is not known to this store; it knows: {known}")
        return pool

    def open(self, spec: PoolSpec) -> StoredPool:
        """Create a pool, or return the one that exists."""
        self._unit.tables.execute(NEW, (spec.name, encode_spec(spec)))
        self._missing.discard(spec.name)
        pool = self.named(spec.name)
        assert pool is not None
        return pool

    def declare(self, pool: StoredPool, spec: PoolSpec) -> StoredPool:
        """Apply a new spec to a pool; return the pool under that spec."""
        self._unit.write()
        self.save()
        columns = self._unit.tables.execute(self.BY_NO, (pool.no,)).fetchone()
        new = self._keep((columns[0], encode_spec(spec), *columns[2:]))
        new.declare(spec, pool)
        return new

    def tally(self, no: int, end: int, count: int) -> None:
        """Add to a pool's count of jobs that ended with a status."""
        self.no(no).tally[end] += count

    def pause(self, pool: StoredPool, paused: bool) -> None:
        """Pause or resume claims from a pool."""
        pool.paused = paused

    def resize(self, pool: StoredPool, slots: int | None) -> None:
        """Override the slots of a pool; None restores those of its spec."""
        pool.resized = slots
        pool.resize(pool.spec.slots if slots is None else slots, self._unit.now)

    def save(self) -> None:
        for pool in self._by_no.values():
            pool.save()

    def anew(self) -> Self:
        """Return a new instance with nothing loaded."""
        return type(self)(self._unit)

    def _keep(self, columns: Columns) -> StoredPool:
        pool = self.KIND(self._unit, columns)
        self._by_no[pool.no] = self._by_name[pool.spec.name] = pool
        return pool
