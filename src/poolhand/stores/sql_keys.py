"""The idempotency keys of a pool in a SQL store."""

from __future__ import annotations

from poolhand.rules.job import Job, Status
from poolhand.rules.keys import Keys
from poolhand.stores.sql_books import TURNS, Books
from poolhand.stores.sql_rows import Row

FIND = """
SELECT seq FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ?
ORDER BY newcomer DESC LIMIT 1
"""
OWNER = """
SELECT seq, ended FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 0
"""
WRITE = """
INSERT INTO poolhand_keys VALUES (?, ?, ?, ?, ?, NULL, NULL)
ON CONFLICT (pool, tenant, key, newcomer)
DO UPDATE SET seq = excluded.seq, ended = NULL, until = NULL
"""
RELEASE = "DELETE FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 1"
DELETE = "DELETE FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 0"
FINISH = """
UPDATE poolhand_keys SET ended = ?, until = ?
WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 0
"""
FIRST = """
SELECT tenant, key, until FROM poolhand_keys WHERE pool = ? AND ended IS NOT NULL
ORDER BY ended LIMIT 1
"""


class StoredKeys(Keys[Row]):
    """Remembers which job a key stands for; `finished` counts the keys whose job is over."""

    __slots__ = ("_books", "_pool", "finished")

    def __init__(self, books: Books, pool: int, ttl: float, most: int) -> None:
        super().__init__(ttl, most)
        self.finished = 0
        self._books = books
        self._pool = pool

    def find(self, job: Job, now: float) -> Row | None:
        if job.idempotency_key is None:
            return None
        self._forget(now)
        found = self._books.tables.execute(FIND, self._own(job)).fetchone()
        # One whose job is gone, as where only some tables were restored, stands for nothing.
        return None if found is None else self._books.find(found[0])

    def reserve(self, entry: Row) -> None:
        if entry.job.idempotency_key is not None:
            self._books.tables.execute(WRITE, (*self._own(entry.job), 1, entry.seq))

    def release(self, entry: Row) -> None:
        if entry.job.idempotency_key is not None:
            self._books.tables.execute(RELEASE, self._own(entry.job))

    def hold(self, entry: Row) -> None:
        if entry.job.idempotency_key is None:
            return
        own = self._own(entry.job)
        before = self._books.tables.execute(OWNER, own).fetchone()
        self.finished -= before is not None and before[1] is not None
        self._books.tables.execute(WRITE, (*own, 0, entry.seq))

    def finish(self, entry: Row, now: float) -> None:
        if entry.job.idempotency_key is None:
            return
        own, tables = self._own(entry.job), self._books.tables
        owner = tables.execute(OWNER, own).fetchone()
        if owner is None or owner[0] != entry.seq:
            return
        if entry.job.status is Status.REJECTED:
            tables.execute(DELETE, own)
            return
        ended = self._books.numbers.next(TURNS)
        tables.execute(FINISH, (ended, now + self._ttl, *own))
        self.finished += 1
        self._forget(now)

    def drop(self, entry: Row) -> None:
        if entry.job.idempotency_key is None:
            return
        own = self._own(entry.job)
        owner = self._books.tables.execute(OWNER, own).fetchone()
        if owner is not None and owner[0] == entry.seq and owner[1] is not None:
            self._books.tables.execute(DELETE, own)
            self.finished -= 1

    def forget(self, now: float) -> None:
        """Let go of the keys whose time is over, and of those there are too many of."""
        self._forget(now)

    def _forget(self, now: float) -> None:
        tables, pool = self._books.tables, self._pool
        while self.finished:
            tenant, key, until = tables.execute(FIRST, (pool,)).fetchone()
            if until > now and self.finished <= self._most:
                return
            tables.execute(DELETE, (pool, tenant, key))
            self.finished -= 1

    def _own(self, job: Job) -> tuple[int, str, str]:
        tenant = "" if job.tenant is None else f"={job.tenant}"
        return self._pool, tenant, job.idempotency_key or ""
