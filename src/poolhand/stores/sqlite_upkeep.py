"""What time does to a SQLite store: jobs come due, and what is old is forgotten."""

from __future__ import annotations

from sqlite3 import Connection

from poolhand.contract import Promoted
from poolhand.stores import sqlite_documents
from poolhand.stores.sqlite_books import FORGET_JOB
from poolhand.stores.sqlite_lots import Delete
from poolhand.stores.sqlite_steps import Steps

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
FROM poolhand_ends e ORDER BY e.no
"""
FORGET_END = Delete("DELETE FROM poolhand_ends WHERE no")


def promote(steps: Steps, limit: int) -> Promoted:
    """Place what is due, end what has expired."""
    books = steps.books
    execute = books.connection.execute
    due = []
    for clock, by_wall in ((books.now, 0), (books.stamp, 1)):
        due += execute(DUE, (clock, by_wall, clock, limit)).fetchall()
    due = sorted(due)[:limit]
    for row in books.load([seq for _, seq in due]):
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
    found = [
        (books.connection.execute(text, values).fetchone()[0], now) for text, values, now in asked
    ]
    found.append((books.connection.execute(NEXT_CLOSING).fetchone()[0], books.now))
    return min((max(0.0, at - now) for at, now in found if at is not None), default=None)


def prune(steps: Steps, keep: float, limit: int) -> int:
    """Forget what has been over for long; what is stuck, or what a key stands for, stays."""
    books = steps.books
    connection: Connection = books.connection
    sqlite_documents.sweep(connection, books.now)
    for no in steps.pools.names():
        pool = steps.pools.no(no)
        pool.keys.forget(books.now)
        if pool.queue.lanes is not None:
            pool.queue.lanes.sweep()
    gone: list[tuple[int, int]] = []
    for no, seq, of, status, over_at, kept in connection.execute(OVER):
        if len(gone) >= limit or over_at + keep > books.now:
            break
        if not kept:
            gone.append((no, seq))
            steps.pools.no(of).tally[status] -= 1
    FORGET_END.write(connection, [no for no, _ in gone])
    FORGET_JOB.write(connection, [seq for _, seq in gone])
    return len(gone)
