"""Upkeep of a SQL store: promote due jobs, expire overdue ones, delete old ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from poolhand.contract import Promoted
from poolhand.rules import audit
from poolhand.rules.retention import Keep
from poolhand.stores.sql import documents as sql_documents
from poolhand.stores.sql.admission import StoredAdmission
from poolhand.stores.sql.forget import forget_jobs
from poolhand.stores.sql.queue.pools import spec_of
from poolhand.stores.sql.queue.sessions import session_of
from poolhand.stores.sql.rows import END_OF, sought, submit_of
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.tables import Delete, Tables

DUE = """
SELECT due_at - ?, seq FROM poolhand_waits WHERE place = 1 AND by_wall = ? AND due_at <= ?
ORDER BY due_at, seq LIMIT ?
"""
CAUSES = """
SELECT p.name, w.waits_for, count(*) FROM poolhand_waits w JOIN poolhand_pools p ON p.no = w.pool
WHERE w.waits_for IS NOT NULL GROUP BY p.name, w.waits_for ORDER BY p.name, w.waits_for
"""
WAITING_FOR = """
SELECT pool, seq FROM (
    SELECT pool, seq FROM poolhand_waits WHERE waits_for IS NOT NULL AND waits_for = ?
    ORDER BY seq LIMIT ?
) oldest ORDER BY pool, seq
"""
WITH_PARKED = "SELECT no FROM poolhand_pools WHERE parked > 0 ORDER BY no"
NEXT_DUE = "SELECT min(due_at) FROM poolhand_waits WHERE place = 1 AND by_wall = ?"
NEXT_CLOSING = "SELECT min(closes_at) FROM poolhand_waits WHERE closes_at IS NOT NULL"
# `dead` is a constant, so that each kind has its own index: results, then dead letters.
OVER, OVER_DEAD = (
    f"""
SELECT e.no, e.seq, e.pool, e.status, e.over_at,
    EXISTS (SELECT 1 FROM poolhand_keys WHERE seq = e.seq AND newcomer = 0)
    OR EXISTS (SELECT 1 FROM poolhand_claims WHERE seq = e.seq)
FROM poolhand_ends e WHERE e.dead = {dead} AND e.no > ? ORDER BY e.no LIMIT ?
/*pg FOR UPDATE OF e SKIP LOCKED */
"""  # noqa: S608
    for dead in (0, 1)
)
SURPLUS, SURPLUS_DEAD = (
    f"SELECT no FROM poolhand_ends WHERE dead = {dead} ORDER BY no DESC LIMIT 1 OFFSET ?"  # noqa: S608
    for dead in (0, 1)
)
UNDATED = "SELECT seq, ordered FROM poolhand_jobs WHERE submitted IS NULL ORDER BY seq LIMIT ?"
DATE = "UPDATE poolhand_jobs SET submitted = ?, user_name = ? WHERE seq = ?"
DATED_AT_ONCE = 2000
SPECS = "SELECT spec FROM poolhand_pools WHERE no IN (?*)"
# A stuck job was already recorded as ended, and has left its session.
UNHELD = """
SELECT s.pool, p.name, s.line FROM poolhand_sessions s JOIN poolhand_pools p ON p.no = s.pool
WHERE NOT EXISTS (SELECT 1 FROM poolhand_waits WHERE seq = s.holder AND place <> 2)
    AND NOT EXISTS (SELECT 1 FROM poolhand_claims WHERE seq = s.holder AND stuck = 0)
UNION SELECT w.pool, p.name, w.gate FROM poolhand_waits w JOIN poolhand_pools p ON p.no = w.pool
WHERE w.place = 2 AND w.gate IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM poolhand_sessions WHERE pool = w.pool AND line = w.gate)
ORDER BY 1, 3
"""
HELD = "SELECT seq FROM poolhand_claims WHERE seq IN (?*)"
FORGET_END = Delete("poolhand_ends", "no")
ERASE_END = Delete("poolhand_ends", "seq")


def wake(steps: Steps, cause: str, by: str, limit: int) -> int:
    """Make the oldest jobs that wait for a cause due now; return how many."""
    books, left = steps.books, limit
    waiting = books.query(WAITING_FOR, (sought(cause), limit))
    for no, seqs in groupby(waiting, key=itemgetter(0)):
        rows = books.load([seq for _, seq in seqs])
        pool = steps.pools.no(no)
        for row in rows:
            pool.wake(row, books.now)
        steps.act(audit.WAKE, pool, by, f"{cause}: {len(rows)}")
        left -= len(rows)
    if left < limit:
        books.topics.add("due")
    return limit - left


def causes(tables: Tables) -> dict[str, dict[str, int]]:
    """Count jobs that wait for a cause (neither a time nor a slot), by pool and cause."""
    found: dict[str, dict[str, int]] = {}
    for pool, cause, count in tables.execute(CAUSES):
        found.setdefault(pool, {})[cause] = count
    return found


def promote(steps: Steps, limit: int) -> Promoted:
    """Admit or queue jobs that are due, expire jobs that are overdue."""
    books = steps.books
    execute = books.tables.execute
    due = []
    for clock, by_wall in ((books.now, 0), (books.stamp, 1)):
        due += execute(DUE, (clock, by_wall, clock, limit)).fetchall()
    due = sorted(due)[:limit]
    intake = StoredAdmission(steps)
    rows = books.load([seq for _, seq in due])
    intake.expect(row.job for row in rows if row.newcomer)
    for row in rows:
        if row.newcomer:
            intake.arrive(row)
        else:
            steps.pools.no(row.pool).promote(row, books.now)
    expired = steps.expire(limit)
    books.write()
    steps.pools.save()
    for (no,) in execute(WITH_PARKED).fetchall():
        steps.welcome(steps.pools.no(no))
    books.write()
    return Promoted(len(due), expired, _next_in(steps))


def _next_in(steps: Steps) -> float | None:
    """Return the seconds until something is due or expires."""
    books = steps.books
    asked = ((NEXT_DUE, (0,), books.now), (NEXT_DUE, (1,), books.stamp))
    found = [(books.tables.execute(text, values).fetchone()[0], now) for text, values, now in asked]
    found.append((books.tables.execute(NEXT_CLOSING).fetchone()[0], books.now))
    return min((max(0.0, at - now) for at, now in found if at is not None), default=None)


def prune(steps: Steps, keep: Keep, limit: int) -> int:
    """Delete what is past its retention; jobs that are stuck or that a key stands for stay."""
    sql_documents.sweep(steps.books.tables, steps.books.now)
    date_jobs(steps.books.tables)
    for no in steps.pools.names():
        sweep(steps, no)
    return forget(steps, keep, limit)


def date_jobs(tables: Tables) -> None:
    """Fill in submission time and user in rows of older versions, a few at a time."""
    undated = tables.execute(UNDATED, (DATED_AT_ONCE,)).fetchall()
    for seq, ordered in undated:
        tables.execute(DATE, (*submit_of(ordered), seq))


def sweep(steps: Steps, no: int) -> None:
    """Delete the expired keys and lanes of a pool."""
    pool = steps.pools.no(no)
    pool.keys.forget(steps.books.now)
    if pool.queue.lanes is not None:
        pool.queue.lanes.sweep()


def forget(steps: Steps, keep: Keep, limit: int) -> int:
    """Delete finished jobs that are too old or too many: results, then dead letters."""
    bound = RetentionBound(OVER, SURPLUS, keep.results, keep.max_results)
    results = _forgettable(steps, bound, limit)
    bound = RetentionBound(OVER_DEAD, SURPLUS_DEAD, keep.dead, keep.max_dead)
    dead = _forgettable(steps, bound, limit - len(results))
    gone = results + dead
    for one in gone:
        steps.pools.tally(one.pool, one.status, -1)
    _note_dropped(steps, keep, Counter(one.pool for one in dead if one.surplus))
    tables = steps.books.tables
    tables.delete(FORGET_END, [one.no for one in gone])
    forget_jobs(tables, steps.books.log, [one.seq for one in gone])
    return len(gone)


class RetentionBound(NamedTuple):
    """How long and how many jobs of one kind are kept, and the statements that find them."""

    over: str
    surplus: str
    seconds: float
    most: int | None


class Forgettable(NamedTuple):
    """A finished job that may be deleted; `surplus`: only because there are too many."""

    no: int
    seq: int
    pool: int
    status: int
    surplus: bool


def _forgettable(steps: Steps, bound: RetentionBound, limit: int) -> list[Forgettable]:
    """Return the oldest jobs beyond a bound, except those stuck or that a key stands for."""
    tables, until = steps.books.tables, steps.books.now - bound.seconds
    surplus = None
    if bound.most is not None:
        surplus = tables.execute(bound.surplus, (bound.most,)).fetchone()
    last_surplus = 0 if surplus is None else surplus[0]
    gone: list[Forgettable] = []
    last = 0
    while len(gone) < limit:
        rows = tables.execute(bound.over, (last, limit)).fetchall()
        for last, seq, pool, status, over_at, kept in rows:
            if (over_at > until and last > last_surplus) or len(gone) >= limit:
                return gone
            if not kept:
                gone.append(Forgettable(last, seq, pool, status, over_at > until))
        if len(rows) < limit:
            break
    return gone


def _note_dropped(steps: Steps, keep: Keep, counts: Mapping[int, int]) -> None:
    """Audit the dead letters that were deleted only because there were too many."""
    for (blob,) in steps.books.tables.among(SPECS, list(counts)):
        spec = spec_of(blob)
        number = next(no for no, name in steps.pools.names().items() if name == spec.name)
        text = f"{counts[number]} dead letters beyond max_dead={keep.max_dead}"
        of = (spec.id, spec.name)
        steps.books.note(audit.acted(audit.DROP_DEAD, of, "poolhand", text, steps.books.at))


class Unheld(NamedTuple):
    """A session that no job holds but that is closed: its pool's number and name, its line."""

    pool: int
    name: str
    line: str


def unheld(tables: Tables) -> list[Unheld]:
    """Return sessions whose holder has ended, is gone or waits itself, or that have none.

    Every step hands a session on in the transaction that ends its holder. So there are none unless
    a database did not isolate transactions as it must, or another program wrote to the tables.
    """
    return [Unheld._make(row) for row in tables.execute(UNHELD)]


def free(steps: Steps) -> list[tuple[str, str]]:
    """Give each such session to its next turn; return their pools and names."""
    found = unheld(steps.books.tables)
    for pool, _, line in found:
        steps.pools.no(pool).free_session(line, steps.books.now)
    return named(found)


def named(found: Sequence[Unheld]) -> list[tuple[str, str]]:
    """Return sessions as pairs of pool name and session name."""
    return [(one.name, session_of(one.line)) for one in found]


def erase(
    steps: Steps, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str]
) -> list[str]:
    """Delete finished jobs with all that belongs to them, and other streams and documents."""
    books, tables = steps.books, steps.books.tables
    rows = [row for row in map(books.row_named, dict.fromkeys(ids)) if row is not None]
    stuck = {seq for (seq,) in tables.among(HELD, [row.seq for row in rows])}
    gone = [row for row in rows if row.job.status.terminal and row.seq not in stuck]
    for row in gone:
        books.note(audit.acted_on(audit.ERASE, row.job, by, "", books.at))
        steps.pools.no(row.pool).keys.drop(row)
        steps.pools.tally(row.pool, END_OF[row.job.status], -1)
    numbers = [row.seq for row in gone]
    tables.delete(ERASE_END, numbers)
    forget_jobs(tables, books.log, numbers)
    books.log.forget(streams)
    sql_documents.erase(tables, documents, books.now)
    return [row.job.id for row in gone]
