"""The idempotency keys of a pool in a SQL store."""

from __future__ import annotations

from collections.abc import Iterable

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.idempotency import IdempotencyKeys
from poolhand.stores.sql.rows import JobRow
from poolhand.stores.sql.tables import Insert
from poolhand.stores.sql.unit_of_work import TURNS, UnitOfWork

FIND = """
SELECT seq FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ?
ORDER BY newcomer DESC LIMIT 1
"""
OWNERS = """
SELECT key, seq, ended FROM poolhand_keys
WHERE pool = ? AND tenant = ? AND newcomer = 0 AND key IN (?*)
"""
WRITE = """
INSERT INTO poolhand_keys VALUES (?, ?, ?, ?, ?, NULL, NULL)
ON CONFLICT (pool, tenant, key, newcomer)
DO UPDATE SET seq = excluded.seq, ended = NULL, until = NULL
"""
RELEASE = "DELETE FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 1"
DELETE = "DELETE FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 0"
FINISH = Insert(
    "poolhand_keys",
    {
        "pool": "bigint",
        "tenant": "text",
        "key": "text",
        "newcomer": "smallint",
        "seq": "bigint",
        "ended": "bigint",
        "until": "double precision",
    },
    key=("pool", "tenant", "key", "newcomer"),
)
FIRST = """
SELECT ended, until FROM poolhand_keys WHERE pool = ? AND ended IS NOT NULL ORDER BY ended LIMIT ?
"""
FORGET = "DELETE FROM poolhand_keys WHERE pool = ? AND ended IS NOT NULL AND ended <= ?"
FORGET_AT_ONCE = 100

Own = tuple[int, str, str]  # pool, tenant and key


class StoredKeys(IdempotencyKeys[JobRow]):
    """The job that each idempotency key stands for; `finished` counts keys of finished jobs.

    Keys of jobs that end are written in one batch, before the next query that depends on them.
    """

    __slots__ = ("_books", "_ending", "_known", "_pool", "finished")

    def __init__(self, books: UnitOfWork, pool: int, ttl: float, most: int) -> None:
        super().__init__(ttl, most)
        self.finished = 0
        self._books = books
        self._pool = pool
        self._known: dict[Own, tuple[int, int | None] | None] = {}
        self._ending: list[tuple[int | str | float, ...]] = []

    def foresee(self, jobs: Iterable[Job]) -> None:
        """Look up the keys of jobs that are about to end, one query per tenant."""
        keys: dict[str, list[str]] = {}
        for job in jobs:
            if job.idempotency_key is not None:
                _, tenant, key = self._own(job)
                keys.setdefault(tenant, []).append(key)
        for tenant, some in keys.items():
            self._look_up(tenant, list(dict.fromkeys(some)))

    def find(self, job: Job, now: float) -> JobRow | None:
        if job.idempotency_key is None:
            return None
        self._forget(now)
        found = self._books.tables.execute(FIND, self._own(job)).fetchone()
        # A key whose job is missing (e.g. only some tables were restored) counts as unused.
        return None if found is None else self._books.find(found[0])

    def reserve(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is not None:
            self._books.tables.execute(WRITE, (*self._own(entry.job), 1, entry.seq))

    def release(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is not None:
            self._books.tables.execute(RELEASE, self._own(entry.job))

    def hold(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is None:
            return
        own = self._own(entry.job)
        self.write()
        before = self._owner(own)
        self.finished -= before is not None and before[1] is not None
        self._books.tables.execute(WRITE, (*own, 0, entry.seq))
        self._known[own] = (entry.seq, None)

    def finish(self, entry: JobRow, now: float) -> None:
        if entry.job.idempotency_key is None:
            return
        own = self._own(entry.job)
        owner = self._owner(own)
        if owner is None or owner[0] != entry.seq:
            return
        if entry.job.status is Status.REJECTED:
            self.write()
            self._books.tables.execute(DELETE, own)
            self._known[own] = None
            return
        ended = self._books.numbers.next(TURNS)
        self._ending.append((*own, 0, entry.seq, ended, now + self._ttl))
        self._known[own] = (entry.seq, ended)
        self.finished += 1

    def drop(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is None:
            return
        self.write()
        own = self._own(entry.job)
        owner = self._owner(own)
        if owner is not None and owner[0] == entry.seq and owner[1] is not None:
            self._books.tables.execute(DELETE, own)
            self._known[own] = None
            self.finished -= 1

    def forget(self, now: float) -> None:
        """Delete keys that have expired, and the oldest beyond the limit."""
        self._forget(now)

    def save(self, now: float) -> None:
        """Write the keys of jobs that have ended, then delete expired and surplus keys."""
        if self._ending:
            self._forget(now)

    def write(self) -> None:
        """Write the keys of jobs that have ended."""
        if self._ending:
            self._books.tables.insert(FINISH, self._ending)
            self._ending = []

    def _forget(self, now: float) -> None:
        self.write()
        tables, pool = self._books.tables, self._pool
        while self.finished:
            found = tables.execute(FIRST, (pool, FORGET_AT_ONCE)).fetchall()
            surplus = self.finished - self._most
            gone = 0
            while gone < len(found) and (found[gone][1] <= now or gone < surplus):
                gone += 1
            if not gone:
                return
            tables.execute(FORGET, (pool, found[gone - 1][0]))
            self._known.clear()
            self.finished -= gone
            if gone < len(found):
                return

    def _owner(self, own: Own) -> tuple[int, int | None] | None:
        """Return the seq of the job that a key stands for, and the number of its end."""
        if own not in self._known:
            self._look_up(own[1], [own[2]])
        return self._known[own]

    def _look_up(self, tenant: str, keys: list[str]) -> None:
        pool = self._pool
        unknown = [key for key in keys if (pool, tenant, key) not in self._known]
        self._known.update({(pool, tenant, key): None for key in unknown})
        for key, seq, ended in self._books.tables.among(OWNERS, unknown, (pool, tenant)):
            self._known[pool, tenant, key] = (seq, ended)

    def _own(self, job: Job) -> Own:
        tenant = "" if job.tenant is None else f"={job.tenant}"
        return self._pool, tenant, job.idempotency_key or ""
