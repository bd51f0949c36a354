"""A desk's parts as tables: queue, key gates, eviction index, blocked submitters, timers.

Each subclasses the in-memory structure of the rules, so that one desk decides for pools in memory
and for pools in a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poolhand.rules.queue.eviction import EvictionIndex, KeyIndex, payer
from poolhand.rules.queue.gates import Gate, KeyGates
from poolhand.rules.queue.lane import WaitingLine
from poolhand.rules.queue.ready import Ready
from poolhand.rules.queue.stored_desk import NEVER
from poolhand.rules.queue.strategy import FairRoundRobin, Fifo, Priority, Strategy, job_rank
from poolhand.rules.queue.timers import Timers
from poolhand.rules.queue.timing import seconds
from poolhand.stores.sql.queue.lanes import StoredLanes
from poolhand.stores.sql.rows import KEY, LIMBO, PARKED, QUEUED, SCHEDULED, JobRow
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
FIRST_PARKED = "SELECT seq FROM poolhand_waits WHERE pool = ? AND place = 0 ORDER BY seq LIMIT 1"

# The columns that a claim needs: seq, since (when the job began to wait), gate, id, ordered, course
# and brief; on PostgreSQL a token, too.
Pick = Sequence[Any]


def position(strategy: Strategy, row: JobRow, turn: int) -> tuple[float, int]:
    """Return the sort position of a waiting row; `turn` is its arrival number."""
    if isinstance(strategy, Fifo | FairRoundRobin):
        return 0, turn
    rank = job_rank(strategy, row)[0]
    if isinstance(strategy, Priority) and strategy.aging is not None:
        # If aging makes two levels equal, the job of the lower level came first: it sorts first.
        most = 1 << LEVEL_BITS
        turn += max(-most, min(row.job.priority, most - 1)) << TURN_BITS
    return rank, turn


class StoredReady(Ready[JobRow]):
    """The queue of a pool."""

    def __init__(self, books: UnitOfWork, pool: int, strategy: Strategy, size: int) -> None:
        super().__init__(strategy)
        self.size = size
        self.lanes: StoredLanes | None = None
        if isinstance(strategy, FairRoundRobin):
            self.lanes = StoredLanes(books, pool, strategy)
        self._books = books
        self._pool = pool

    def add(self, entry: JobRow, first: bool = False) -> None:
        books = self._books
        turn = books.numbers.next(TURNS)
        entry.rank, entry.turn = position(self._strategy, entry, turn)
        if self.lanes is not None:
            entry.rank = self.lanes.join(entry.job.key)
        self.size += 1
        books.put(entry, QUEUED)

    def take(self) -> JobRow | None:
        rows = self._next(1)
        if not rows:
            return None
        entry = self._books.row(rows[0][0])
        entry.brief = rows[0][6]
        self.size -= 1
        self._books.put(entry, LIMBO)
        return entry

    def take_lot(self, limit: int) -> list[Pick]:
        """Take several jobs at once; their rows in `waits` are deleted."""
        books = self._books
        picks = self._next(limit)
        self.size -= len(picks)
        books.ended_waits += [pick[0] for pick in picks]
        for pick in picks if books.rows else ():
            books.rows.pop(pick[0], None)
        return picks

    def remove(self, entry: JobRow) -> None:
        if self.lanes is not None:
            self.lanes.leave(entry.job.key)
        self.size -= 1
        self._books.put(entry, LIMBO)

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
            return self._books.query_waits(NEXT, (self._pool, limit))
        turns = self.lanes.pick(limit)
        counts: dict[int, int] = {}
        for lane in turns:
            counts[lane] = counts.get(lane, 0) + 1
        query, pool = self._books.query_waits, self._pool
        given = {lane: iter(query(NEXT_OF_LANE, (pool, lane, counts[lane]))) for lane in counts}
        return [next(given[lane]) for lane in turns]


class _Waiting(Ready[JobRow]):
    """Jobs that wait for a permit of one key."""

    def __init__(self, books: UnitOfWork, pool: int, key: str, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._books = books
        self._pool = pool
        self._key = key

    def add(self, entry: JobRow, first: bool = False) -> None:
        books = self._books
        turn = books.numbers.next(TURNS)
        aging = isinstance(self._strategy, Priority) and self._strategy.aging is not None
        if first and not aging:
            turn = -turn
        entry.rank, entry.turn = position(self._strategy, entry, turn)
        entry.gate = self._key
        books.put(entry, KEY)

    def take(self) -> JobRow | None:
        rows = self._books.query(NEXT_OF_GATE, (self._pool, self._key, KEY))
        if not rows:
            return None
        entry = self._books.row(rows[0][0])
        self._books.put(entry, LIMBO)
        return entry

    def remove(self, entry: JobRow) -> None:
        entry.gate = None
        self._books.put(entry, LIMBO)


class _Queued(dict[JobRow, int]):
    """Queued jobs of a key; their own rows record that, so deleting here does nothing."""

    def __delitem__(self, entry: JobRow) -> None:
        pass


class _StoredGate(Gate[JobRow]):
    """The permits of one key; `held` is counted from the rows once, then updated in memory."""

    __slots__ = ("_books", "_key", "_pool")

    def __init__(self, books: UnitOfWork, pool: int, key: str, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._books = books
        self._pool = pool
        self._key = key
        self.queued = _Queued()
        self.waiting = _Waiting(books, pool, key, strategy)
        ((self.held,),) = books.query(HELD, (pool, key, pool, key))

    def queue(self, entry: JobRow, rank: tuple[float, int], number: int) -> None:
        entry.gate = self._key

    def worst(self) -> JobRow | None:
        rows = self._books.query(WORST, (self._pool, self._key))
        return self._books.row(rows[0][0]) if rows else None


class _Gates(dict[str, Gate[JobRow]]):
    """Gates by key; each is loaded on first access, then cached."""

    def __init__(self, books: UnitOfWork, pool: int, strategy: Strategy) -> None:
        super().__init__()
        self._books = books
        self._pool = pool
        self._strategy = strategy

    def __missing__(self, key: str) -> Gate[JobRow]:
        gate = self[key] = _StoredGate(self._books, self._pool, key, self._strategy)
        return gate

    def get(self, key: str, default: Any = None) -> Gate[JobRow]:
        return self[key]

    def __delitem__(self, key: str) -> None:
        pass


class StoredGates(KeyGates[JobRow]):
    """The key gates of a pool."""

    def __init__(self, books: UnitOfWork, pool: int, cap: int, strategy: Strategy) -> None:
        super().__init__(cap, strategy)
        self._gates: _Gates = _Gates(books, pool, strategy)
        self._keyless = _Waiting(books, pool, "", strategy)

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

    def __init__(self, books: UnitOfWork, pool: int, by_key: bool) -> None:
        super().__init__()
        self._books = books
        self._pool = pool
        self._by_key = by_key

    def enter(self, key: str, entry: JobRow) -> None:
        entry.crowd = key

    def leave(self, key: str, entry: JobRow) -> None:
        entry.crowd = None

    def victim(self, newcomer: str) -> JobRow:
        key = ""
        if self._by_key:
            key = payer(
                newcomer, (KeyIndex(*row) for row in self._books.query(CROWDS, (self._pool,)))
            )
        ((seq,),) = self._books.query(OLDEST, (self._pool, key))
        return self._books.row(seq)


class Parking(WaitingLine[JobRow]):
    """Jobs whose submitter is blocked, in order of arrival; `first` is looked up ahead."""

    __slots__ = ("_books", "_pool")

    def __init__(self, books: UnitOfWork, pool: int, size: int) -> None:
        super().__init__()
        self.size = size
        self._books = books
        self._pool = pool
        if size:
            self._look()

    def append(self, link: JobRow) -> None:
        link.place = self
        if link.window is not None and link.window.opens_at is not None:
            link.due_at = _moment(link, link.window.opens_at)
        self._books.put(link, PARKED)
        self.size += 1
        if self.first is None:
            self.first = link

    def remove(self, link: JobRow) -> None:
        link.place = link.owner = link.due_at = None
        self._books.put(link, LIMBO)
        self.size -= 1
        if self.first is link:
            self._look()

    def _look(self) -> None:
        rows = self._books.query(FIRST_PARKED, (self._pool,)) if self.size else []
        self.first = self._books.row(rows[0][0]) if rows else None


class StoredTimers(Timers[JobRow]):
    """Scheduled jobs of a pool; the store itself queries for those that are due."""

    __slots__ = ("_books", "size")

    def __init__(self, books: UnitOfWork, size: int) -> None:
        super().__init__()
        self.size = size
        self._books = books

    def __len__(self) -> int:
        return self.size

    def add(self, at: float, thing: JobRow) -> None:
        thing.due_at = None if at == NEVER else _moment(thing, at)
        self.size += 1
        self._books.put(thing, SCHEDULED)

    def remove(self, thing: JobRow) -> bool:
        thing.due_at = None
        self.size -= 1
        self._books.put(thing, LIMBO)
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
