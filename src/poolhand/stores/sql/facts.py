"""A desk's parts as tables: queue, key gates, eviction index, blocked submitters, timers.

Each subclasses the in-memory structure of the rules, so that one desk decides for pools in memory
and for pools in a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poolhand.rules.queue import strategy
from poolhand.rules.queue.backpressure import EvictionIndex, KeyIndex, key_to_evict
from poolhand.rules.queue.entry import Timers, WaitingLine, seconds
from poolhand.rules.queue.gates import Gate, KeyGates
from poolhand.rules.queue.ready import MOST_RESTING, Ready
from poolhand.rules.queue.stored_desk import NEVER
from poolhand.rules.queue.strategy import FairRoundRobin, Fifo, Priority, Strategy, job_rank
from poolhand.stores.sql.rows import BLOCKED_SUBMITTER, KEY, MOVING, QUEUED, SCHEDULED, JobRow
from poolhand.stores.sql.tables import MOST, Insert
from poolhand.stores.sql.unit_of_work import TURNS, UnitOfWork

LEVEL_BITS = 22
TURN_BITS = 40

# PostgreSQL draws a token only after it has locked the row. Drawn before the lock, a token could be
# lower than the one the job had, if another transaction gives the job back meanwhile.
NEXT = """
/*pg WITH picked AS MATERIALIZED ( */
SELECT w.seq, w.since, w.gate, j.id, j.ordered, w.course, j.brief
FROM poolhand_waits w JOIN poolhand_jobs j ON j.seq = w.seq
WHERE w.pool = ? AND w.place = 4 ORDER BY w.rank, w.turn LIMIT ?
/*pg FOR UPDATE OF w SKIP LOCKED)
SELECT picked.*, nextval('poolhand_token_numbers') FROM picked */
"""
NEXT_OF_LANE = """
SELECT w.seq, w.since, w.gate, j.id, j.ordered, w.course, j.brief
FROM poolhand_waits w JOIN poolhand_jobs j ON j.seq = w.seq
WHERE w.pool = ? AND w.place = 4 AND w.rank = ? ORDER BY w.turn LIMIT ?
"""
HELD = """
SELECT (SELECT count(*) FROM poolhand_waits WHERE pool = ? AND gate = ? AND place IN (4, 5))
    + (SELECT count(*) FROM poolhand_claims WHERE pool = ? AND gate = ?)
"""
WORST = """
SELECT seq FROM poolhand_waits WHERE pool = ? AND gate = ? AND place = 4
ORDER BY rank DESC, seq DESC LIMIT 1
"""
NEXT_OF_GATE = """
SELECT seq FROM poolhand_waits WHERE pool = ? AND gate = ? AND place = ? ORDER BY rank, turn LIMIT 1
"""
OLDEST = "SELECT min(seq) FROM poolhand_waits WHERE pool = ? AND crowd = ?"
CROWDS = """
SELECT crowd, count(*), min(seq) FROM poolhand_waits WHERE pool = ? AND crowd IS NOT NULL
GROUP BY crowd
"""
FIRST_BLOCKED_SUBMITTER = (
    "SELECT seq FROM poolhand_waits WHERE pool = ? AND place = 0 ORDER BY seq LIMIT 1"
)

# The columns that a claim needs: seq, since (when the job began to wait), gate, id, ordered, course
# and brief; on PostgreSQL a token, too.
Pick = Sequence[Any]


def position(strategy: Strategy, row: JobRow, turn: int, first: bool = False) -> tuple[float, int]:
    """Return the sort position of a waiting row; `turn` is its arrival number.

    `first`: before its equals; with aging its age alone decides.
    """
    if isinstance(strategy, Priority) and strategy.aging is not None:
        # If aging makes two levels equal, the job of the lower level came first: it sorts first.
        most = 1 << LEVEL_BITS
        turn += max(-most, min(row.job.priority, most - 1)) << TURN_BITS
    elif first:
        turn = -turn
    if isinstance(strategy, Fifo | FairRoundRobin):
        return 0, turn
    return job_rank(strategy, row)[0], turn


class StoredReady(Ready[JobRow]):
    """The queue of a pool."""

    def __init__(self, unit: UnitOfWork, pool: int, strategy: Strategy, size: int) -> None:
        super().__init__(strategy)
        self.size = size
        self.lanes: StoredLanes | None = None
        if isinstance(strategy, FairRoundRobin):
            self.lanes = StoredLanes(unit, pool, strategy)
        self._unit = unit
        self._pool = pool

    def add(self, entry: JobRow, first: bool = False) -> None:
        unit = self._unit
        turn = unit.numbers.next(TURNS)
        entry.rank, entry.turn = position(self._strategy, entry, turn, first)
        if self.lanes is not None:
            entry.rank = self.lanes.join(entry.job.key)
        self.size += 1
        unit.put(entry, QUEUED)

    def take(self) -> JobRow | None:
        rows = self._next(1)
        if not rows:
            return None
        entry = self._unit.row(rows[0][0])
        entry.call_record = rows[0][6]
        self.size -= 1
        self._unit.put(entry, MOVING)
        return entry

    def take_lot(self, limit: int) -> list[Pick]:
        """Take several jobs at once; their rows in `waits` are deleted."""
        unit = self._unit
        picks = self._next(limit)
        self.size -= len(picks)
        unit.ended_waits += [pick[0] for pick in picks]
        for pick in picks if unit.rows else ():
            unit.rows.pop(pick[0], None)
        return picks

    def remove(self, entry: JobRow) -> None:
        if self.lanes is not None:
            self.lanes.leave(entry.job.key)
        self.size -= 1
        self._unit.put(entry, MOVING)

    def charge(self, key: str) -> None:
        if self.lanes is not None:
            self.lanes.charge(key)

    def refund(self, key: str) -> None:
        if self.lanes is not None:
            self.lanes.refund(key)

    def _next(self, limit: int) -> list[Pick]:
        if not self.size:
            return []
        if self.lanes is None:
            return self._unit.query_waits(NEXT, (self._pool, limit))
        turns = self.lanes.pick(limit)
        counts: dict[int, int] = {}
        for lane in turns:
            counts[lane] = counts.get(lane, 0) + 1
        query, pool = self._unit.query_waits, self._pool
        given = {lane: iter(query(NEXT_OF_LANE, (pool, lane, counts[lane]))) for lane in counts}
        return [next(given[lane]) for lane in turns]


class _Waiting(Ready[JobRow]):
    """Jobs that wait for a permit of one key."""

    def __init__(self, unit: UnitOfWork, pool: int, key: str, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._unit = unit
        self._pool = pool
        self._key = key

    def add(self, entry: JobRow, first: bool = False) -> None:
        unit = self._unit
        turn = unit.numbers.next(TURNS)
        entry.rank, entry.turn = position(self._strategy, entry, turn, first)
        entry.gate = self._key
        unit.put(entry, KEY)

    def take(self) -> JobRow | None:
        rows = self._unit.query(NEXT_OF_GATE, (self._pool, self._key, KEY))
        if not rows:
            return None
        entry = self._unit.row(rows[0][0])
        self._unit.put(entry, MOVING)
        return entry

    def remove(self, entry: JobRow) -> None:
        entry.gate = None
        self._unit.put(entry, MOVING)


class _Queued(dict[JobRow, int]):
    """Queued jobs of a key; their own rows record that, so deleting here does nothing."""

    def __delitem__(self, entry: JobRow) -> None:
        pass


class _StoredGate(Gate[JobRow]):
    """The permits of one key; `held` is counted from the rows once, then updated in memory."""

    __slots__ = ("_key", "_pool", "_unit")

    def __init__(self, unit: UnitOfWork, pool: int, key: str, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._unit = unit
        self._pool = pool
        self._key = key
        self.queued = _Queued()
        self.waiting = _Waiting(unit, pool, key, strategy)
        ((self.held,),) = unit.query(HELD, (pool, key, pool, key))

    def queue(self, entry: JobRow, rank: tuple[float, int], number: int) -> None:
        entry.gate = self._key

    def worst(self) -> JobRow | None:
        rows = self._unit.query(WORST, (self._pool, self._key))
        return self._unit.row(rows[0][0]) if rows else None


class _Gates(dict[str, Gate[JobRow]]):
    """Gates by key; each is loaded on first access, then cached."""

    def __init__(self, unit: UnitOfWork, pool: int, strategy: Strategy) -> None:
        super().__init__()
        self._unit = unit
        self._pool = pool
        self._strategy = strategy

    def __missing__(self, key: str) -> Gate[JobRow]:
        gate = self[key] = _StoredGate(self._unit, self._pool, key, self._strategy)
        return gate

    def get(self, key: str, default: Any = None) -> Gate[JobRow]:
        return self[key]

    def __delitem__(self, key: str) -> None:
        pass


class StoredGates(KeyGates[JobRow]):
    """The key gates of a pool."""

    def __init__(self, unit: UnitOfWork, pool: int, cap: int, strategy: Strategy) -> None:
        super().__init__(cap, strategy)
        self._gates: _Gates = _Gates(unit, pool, strategy)
        self._keyless = _Waiting(unit, pool, "", strategy)

    def start_at_once(self, entry: JobRow) -> None:
        super().start_at_once(entry)
        entry.gate = entry.job.key or None

    def next_without_key(self) -> JobRow | None:
        entry = self._keyless.take()
        if entry is not None:
            entry.gate = None
        return entry

    @property
    def looked(self) -> bool:
        """Return whether any gate has been loaded."""
        return bool(self._gates)


class StoredEvictionIndex(EvictionIndex[JobRow]):
    """The waiting jobs of a pool among which an eviction chooses."""

    def __init__(self, unit: UnitOfWork, pool: int, by_key: bool) -> None:
        super().__init__()
        self._unit = unit
        self._pool = pool
        self._by_key = by_key

    def enter(self, key: str, entry: JobRow) -> None:
        entry.crowd = key

    def leave(self, key: str, entry: JobRow) -> None:
        entry.crowd = None

    def victim(self, newcomer: str) -> JobRow:
        key = ""
        if self._by_key:
            key = key_to_evict(
                newcomer, (KeyIndex(*row) for row in self._unit.query(CROWDS, (self._pool,)))
            )
        ((seq,),) = self._unit.query(OLDEST, (self._pool, key))
        return self._unit.row(seq)


class BlockedSubmitters(WaitingLine[JobRow]):
    """Jobs whose submitter is blocked, in order of arrival; `first` is looked up ahead."""

    __slots__ = ("_pool", "_unit")

    def __init__(self, unit: UnitOfWork, pool: int, size: int) -> None:
        super().__init__()
        self.size = size
        self._unit = unit
        self._pool = pool
        if size:
            self._look()

    def append(self, link: JobRow) -> None:
        link.place = self
        if link.window is not None and link.window.opens_at is not None:
            link.due_at = _moment(link, link.window.opens_at)
        self._unit.put(link, BLOCKED_SUBMITTER)
        self.size += 1
        if self.first is None:
            self.first = link

    def remove(self, link: JobRow) -> None:
        link.place = link.owner = link.due_at = None
        self._unit.put(link, MOVING)
        self.size -= 1
        if self.first is link:
            self._look()

    def _look(self) -> None:
        rows = self._unit.query(FIRST_BLOCKED_SUBMITTER, (self._pool,)) if self.size else []
        self.first = self._unit.row(rows[0][0]) if rows else None


class StoredTimers(Timers[JobRow]):
    """Scheduled jobs of a pool; the store itself queries for those that are due."""

    __slots__ = ("_unit", "size")

    def __init__(self, unit: UnitOfWork, size: int) -> None:
        super().__init__()
        self.size = size
        self._unit = unit

    def __len__(self) -> int:
        return self.size

    def add(self, at: float, thing: JobRow) -> None:
        thing.due_at = None if at == NEVER else _moment(thing, at)
        self.size += 1
        self._unit.put(thing, SCHEDULED)

    def remove(self, thing: JobRow) -> bool:
        thing.due_at = None
        self.size -= 1
        self._unit.put(thing, MOVING)
        return True


class NotStored(Timers[JobRow]):
    """Timers that store nothing: the moments are columns of the rows."""

    __slots__ = ()

    def add(self, at: float, thing: JobRow) -> None:
        pass

    def remove(self, thing: JobRow) -> bool:
        return True


def _moment(row: JobRow, opens_at: float) -> float:
    """Return when a row may start, by the clock that applies to it."""
    run_at = row.job.run_at
    return seconds(run_at) if row.by_wall and run_at is not None else opens_at


ONE = "SELECT rank, no, queued FROM poolhand_lanes WHERE pool = ? AND key = ?"
BEST = """
SELECT key, rank, no, queued FROM poolhand_lanes WHERE pool = ? AND queued > 0
ORDER BY rank, no LIMIT ?
"""
WRITE = Insert(
    "poolhand_lanes",
    "pool bigint, key text, rank bigint, no bigint, queued bigint",
    key=("pool", "key"),
)
FORGET = "DELETE FROM poolhand_lanes WHERE pool = ? AND queued = 0 AND rank <= ?"
TOO_MANY = f"""
DELETE FROM poolhand_lanes WHERE pool = ? AND key IN (
    SELECT key FROM poolhand_lanes WHERE pool = ? AND queued = 0
    ORDER BY rank DESC LIMIT {MOST} OFFSET ?
)
"""  # noqa: S608
CLEAR = "DELETE FROM poolhand_lanes WHERE pool = ?"


class StoredLane:
    """The lane of one key: its rank, its number, and how many of its jobs are queued."""

    __slots__ = ("key", "no", "queued", "rank")

    def __init__(self, key: str, rank: int, no: int, queued: int) -> None:
        self.key = key
        self.rank = rank
        self.no = no
        self.queued = queued


class StoredLanes:
    """The lanes of one pool, loaded on demand.

    An empty lane keeps its rank until the round has passed it. From then on it counts as forgotten,
    though only `sweep` deletes its row.
    """

    def __init__(self, unit: UnitOfWork, pool: int, strategy: FairRoundRobin) -> None:
        self.round = 0
        self.opened = 0
        self._unit = unit
        self._pool = pool
        self._strategy = strategy
        self._lanes: dict[str, StoredLane] = {}
        self._changed: dict[str, StoredLane] = {}

    def join(self, key: str) -> int:
        """Count one more queued job of a key; return the number of its lane."""
        lane = self._find(key)
        if not lane.queued:
            lane.rank = strategy.rejoin(self.round, lane.rank)
        lane.queued += 1
        self._changed[key] = lane
        return lane.no

    def leave(self, key: str) -> None:
        """Count one queued job of a key less, without charging its lane."""
        lane = self._find(key)
        lane.queued -= 1
        self._changed[key] = lane

    def charge(self, key: str) -> None:
        """Charge the lane of a key for a job that starts without having been queued."""
        lane = self._find(key)
        lane.rank = strategy.rejoin(self.round, lane.rank) + self._strategy.step(key)
        self._changed[key] = lane

    def refund(self, key: str) -> None:
        """Refund the lane of a key for a job that was not started."""
        lane = self._find(key)
        lane.rank -= self._strategy.step(key)
        self._changed[key] = lane

    def pick(self, limit: int) -> list[int]:
        """Return the numbers of the lanes to serve next; charge each lane for its turns."""
        self.write()
        found = self._unit.tables.execute(BEST, (self._pool, limit))
        best = [StoredLane(*row) for row in found]
        step = self._strategy.step
        facts = [strategy.LaneFacts(one.rank, one.no, one.queued, step(one.key)) for one in best]
        picks = strategy.picks(facts, self.round, limit)
        for place in picks.turns:
            best[place].queued -= 1
        for lane, rank in zip(best, picks.ranks, strict=True):
            if rank != lane.rank:
                lane.rank = rank
                self._lanes[lane.key] = self._changed[lane.key] = lane
        self.round = picks.round
        return [best[place].no for place in picks.turns]

    def clear(self) -> None:
        """Delete all lanes."""
        self.round = self.opened = 0
        self._lanes.clear()
        self._changed.clear()
        self._unit.tables.execute(CLEAR, (self._pool,))

    def write(self) -> None:
        """Write the changed lanes."""
        if self._changed:
            rows = [
                (self._pool, one.key, one.rank, one.no, one.queued)
                for one in self._changed.values()
            ]
            self._unit.tables.insert(WRITE, rows)
            self._changed.clear()

    def sweep(self) -> None:
        """Delete the lanes that the round has passed, and empty lanes beyond the limit."""
        self.write()
        self._lanes.clear()
        self._unit.tables.execute(FORGET, (self._pool, self.round))
        self._unit.tables.execute(TOO_MANY, (self._pool, self._pool, MOST_RESTING))

    def _find(self, key: str) -> StoredLane:
        lane = self._lanes.get(key)
        if lane is None:
            row = self._unit.tables.execute(ONE, (self._pool, key)).fetchone()
            if row is not None:
                lane = self._lanes[key] = StoredLane(key, *row)
        if lane is None or (not lane.queued and strategy.is_passed(self.round, lane.rank)):
            self.opened += 1
            lane = self._lanes[key] = StoredLane(key, self.round, self.opened, 0)
        return lane
