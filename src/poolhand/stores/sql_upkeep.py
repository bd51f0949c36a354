"""What time does to a SQL store: jobs come due, and what is old is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from poolhand.contract import Promoted
from poolhand.rules import audit
from poolhand.rules.streams import streams_of
from poolhand.stores import sql_documents
from poolhand.stores.sql_books import FORGET_JOB
from poolhand.stores.sql_intake import Intake
from poolhand.stores.sql_rows import END_OF, sought
from poolhand.stores.sql_steps import Steps
from poolhand.stores.sql_tables import Delete, Tables

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
OVER = """
SELECT e.no, e.seq, e.pool, e.status, e.over_at,
    EXISTS (SELECT 1 FROM poolhand_keys WHERE seq = e.seq AND newcomer = 0)
    OR EXISTS (SELECT 1 FROM poolhand_claims WHERE seq = e.seq)
FROM poolhand_ends e WHERE e.no > ? ORDER BY e.no LIMIT ? /*pg FOR UPDATE OF e SKIP LOCKED */
"""
IDS = "SELECT id FROM poolhand_jobs WHERE seq IN (?*)"
HELD = "SELECT seq FROM poolhand_claims WHERE seq IN (?*)"
FORGET_END = Delete("poolhand_ends", "no")
ERASE_END = Delete("poolhand_ends", "seq")


def wake(steps: Steps, cause: str, by: str, limit: int) -> int:
    """Let the oldest jobs that wait for a cause be promoted now."""
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
    """Count the jobs that wait for something else than a time or a slot, by pool and cause."""
    found: dict[str, dict[str, int]] = {}
    for pool, cause, count in tables.execute(CAUSES):
        found.setdefault(pool, {})[cause] = count
    return found


def promote(steps: Steps, limit: int) -> Promoted:
    """Place what is due, end what has expired."""
    books = steps.books
    execute = books.tables.execute
    due = []
    for clock, by_wall in ((books.now, 0), (books.stamp, 1)):
        due += execute(DUE, (clock, by_wall, clock, limit)).fetchall()
    due = sorted(due)[:limit]
    intake = Intake(steps)
    for row in books.load([seq for _, seq in due]):
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


def prune(steps: Steps, keep: float, limit: int) -> int:
    """Forget what has been over for long; what is stuck, or what a key stands for, stays."""
    sql_documents.sweep(steps.books.tables, steps.books.now)
    for no in steps.pools.names():
        sweep(steps, no)
    return forget(steps, keep, limit)


def sweep(steps: Steps, no: int) -> None:
    """Forget the keys and the lanes of a pool whose time is over."""
    pool = steps.pools.no(no)
    pool.keys.forget(steps.books.now)
    if pool.queue.lanes is not None:
        pool.queue.lanes.sweep()


def forget(steps: Steps, keep: float, limit: int) -> int:
    """Forget jobs that have been over for long."""
    tables, until = steps.books.tables, steps.books.now - keep
    gone: list[tuple[int, int]] = []
    last = 0
    while len(gone) < limit:
        rows = tables.execute(OVER, (last, limit)).fetchall()
        for last, seq, of, status, over_at, kept in rows:
            if over_at > until or len(gone) >= limit:
                break
            if not kept:
                gone.append((last, seq))
                steps.pools.tally(of, status, -1)
        else:
            if len(rows) == limit:
                continue
        break
    numbers = [seq for _, seq in gone]
    ids = [id for (id,) in tables.among(IDS, numbers)]
    steps.books.log.forget([stream for id in ids for stream in streams_of(id)])
    tables.delete(FORGET_END, [no for no, _ in gone])
    tables.delete(FORGET_JOB, numbers)
    return len(gone)


def erase(steps: Steps, ids: Sequence[str], streams: Sequence[str], by: str) -> list[str]:
    """Forget jobs that are over, with their keys and streams, and other streams."""
    books, tables = steps.books, steps.books.tables
    rows = [row for row in map(books.row_named, dict.fromkeys(ids)) if row is not None]
    stuck = {seq for (seq,) in tables.among(HELD, [row.seq for row in rows])}
    gone = [row for row in rows if row.job.status.terminal and row.seq not in stuck]
    for row in gone:
        books.note(audit.acted_on(audit.ERASE, row.job, by, "", books.at))
        steps.pools.no(row.pool).keys.drop(row)
        steps.pools.tally(row.pool, END_OF[row.job.status], -1)
    names = [row.job.id for row in gone]
    books.log.forget([*streams, *(stream for id in names for stream in streams_of(id))])
    tables.delete(ERASE_END, [row.seq for row in gone])
    tables.delete(FORGET_JOB, [row.seq for row in gone])
    return names
