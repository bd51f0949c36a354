"""What time does to a SQL store: jobs come due, and what is old is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from poolhand.contract import Promoted
from poolhand.rules import audit
from poolhand.stores import sql_documents
from poolhand.stores.sql_forget import forget_jobs
from poolhand.stores.sql_intake import Intake
from poolhand.stores.sql_rows import END_OF
from poolhand.stores.sql_steps import Steps
from poolhand.stores.sql_tables import Delete

DUE = """
SELECT due_at - ?, seq FROM poolhand_waits WHERE place = 1 AND by_wall = ? AND due_at <= ?
ORDER BY due_at, seq LIMIT ?
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
HELD = "SELECT seq FROM poolhand_claims WHERE seq IN (?*)"
FORGET_END = Delete("poolhand_ends", "no")
ERASE_END = Delete("poolhand_ends", "seq")


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
    tables.delete(FORGET_END, [no for no, _ in gone])
    forget_jobs(tables, steps.books.log, [seq for _, seq in gone])
    return len(gone)


def erase(
    steps: Steps, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str]
) -> list[str]:
    """Forget jobs that are over, with all that belongs to them, other streams and documents."""
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
