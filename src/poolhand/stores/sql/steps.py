"""The steps that the verbs of a SQL store share: accept, end, expire, cancel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from poolhand.rules import audit, lifecycle
from poolhand.rules.job import Job, Status
from poolhand.stores.sql import users as sql_users
from poolhand.stores.sql.bounds import EXPIRED_AT_ONCE
from poolhand.stores.sql.queue.pools import Pools, StoredPool
from poolhand.stores.sql.rows import (
    END_OF,
    FAILED,
    KEY,
    OVER,
    PARKED,
    SESSION,
    JobRow,
    encode_course,
    sought,
)
from poolhand.stores.sql.unit_of_work import UnitOfWork

EXPIRED = """
SELECT seq FROM poolhand_waits WHERE closes_at IS NOT NULL AND closes_at <= ?
ORDER BY closes_at, seq LIMIT 1
"""
OVERDUE = """
SELECT DISTINCT pool FROM poolhand_waits WHERE closes_at IS NOT NULL AND closes_at <= ?
"""
OWNER = "SELECT no FROM poolhand_owners WHERE id = ? AND buried = 0 /*pg FOR SHARE */"
WISH = "UPDATE poolhand_claims SET wished = 1 WHERE token IN (?*)"
FORGET_OWNERS = """
DELETE FROM poolhand_owners WHERE buried = 1
    AND NOT EXISTS (SELECT 1 FROM poolhand_claims WHERE owner = poolhand_owners.no)
    AND NOT EXISTS (SELECT 1 FROM poolhand_waits WHERE place = 0 AND owner = poolhand_owners.no)
"""


class Steps:
    """One write: its unit of work, its pools, and what can be done to a job.

    The audit records of a step come before those of the blocked submitters that it admits.
    """

    def __init__(self, books: UnitOfWork, pools: Pools) -> None:
        self.books = books
        self.pools = pools
        self.freed: set[int] = set()
        self._to_expire = EXPIRED_AT_ONCE
        self._wishes: list[int] = []

    def close(self) -> set[str]:
        """Write everything; return the topics to publish."""
        topics = self.books.topics
        for no in self.freed:
            pool = self.pools.no(no)
            if pool.has_slot and pool.queued > 0 and not pool.paused:
                topics.add("ready")
        self.books.close()
        return topics

    def undo(self, told: set[str]) -> None:
        """Start again after a rollback to the last `close`; keep only the topics in `told`."""
        self.books.reopen()
        self.books.topics &= told
        self.pools = self.pools.anew()

    def owner(self, id: str | None) -> int | None:
        """Return the number of an owner that may hold leases, None for any other."""
        if id is None:
            return None
        row = self.books.tables.execute(OWNER, (sought(id),)).fetchone()
        return None if row is None else int(row[0])

    def forget_owners(self) -> None:
        """Delete expired owners that hold nothing any more."""
        self.books.write()
        self.books.tables.execute(FORGET_OWNERS)

    def act(self, kind: str, pool: StoredPool, by: str, detail: str) -> None:
        """Audit an action on a pool."""
        of = (pool.spec.id, pool.spec.name)
        self.books.note(audit.acted(kind, of, by, detail, self.books.at))

    # Admission

    def accept(self, row: JobRow) -> None:
        """Audit that a job was admitted."""
        self.books.note(audit.submitted(row.job))
        if row.job.status is Status.QUEUED:
            self.books.topics.add("ready")

    def unpark(self, *rows: JobRow) -> None:
        """Withdraw jobs of blocked submitters, all of them before any other job is admitted."""
        for row in rows:
            self.pools.no(row.pool).dismiss(row)
            self.books.forget(row)
        whose = [(row.job.tenant, row.job.session) for row in rows if row.job.session is not None]
        if whose:
            sql_users.forget_unkept(self.books.tables, whose)
        for no in dict.fromkeys(row.pool for row in rows):
            self.welcome(self.pools.no(no))

    def welcome(self, pool: StoredPool) -> None:
        """Accept the jobs of blocked submitters that the desk has now admitted."""
        if pool.parked.size or pool.admitted:
            for row in pool.welcome(self.books.now):
                self.accept(row)
                self.books.topics.add("entered")

    # Ends

    def vacate(self, pool: StoredPool, key: str) -> None:
        """Free a slot."""
        pool.vacate(key, self.books.now)
        self.freed.add(pool.no)
        self.welcome(pool)

    def remove(self, row: JobRow, job: Job) -> None:
        """End a waiting job."""
        pool = self.pools.no(row.pool)
        pool.remove(row, self.books.now)
        self.end(row, job, audit.ended(job))
        self.welcome(pool)

    def end(self, row: JobRow, job: Job, record: audit.Audit) -> None:
        """Record the end of a job that has left its place."""
        books, pool = self.books, self.pools.no(row.pool)
        books.note(record)
        row.job = job
        row.dead = job.status is Status.FAILED
        if job.session is not None or job.idempotency_key is not None:
            pool.finish(row, books.now)
        books.put(row, OVER)
        self.tell_end(pool, row.seq, job, END_OF[job.status], row.wished)

    def tell_end(self, pool: StoredPool, seq: int, job: Job, end: int, wished: bool) -> None:
        """Write the outcome of a job."""
        books = self.books
        books.topics.add("over")
        self.pools.tally(pool.no, end, 1)
        times = (books.now, encode_course(job))
        books.new_ends.append((seq, pool.no, end, end == FAILED, wished, *times))

    def overdue(self) -> set[int]:
        """Expire overdue jobs up to a limit; return the pools where some are left.

        Nothing may be claimed from those pools: the next job may be an overdue one.
        """
        self._to_expire -= self.expire(self._to_expire)
        if self._to_expire:
            return set()
        return {no for (no,) in self.books.query(OVERDUE, (self.books.now,))}

    def expire(self, limit: int) -> int:
        """Expire up to `limit` overdue jobs; return how many."""
        count = 0
        while count != limit and (rows := self.books.query(EXPIRED, (self.books.now,))):
            row = self.books.row(rows[0][0])
            self.remove(row, lifecycle.expire(row.job, self.books.at))
            count += 1
        return count

    def cancel(self, id: str, by: str) -> JobRow | None:
        """Cancel a waiting job, request it of a running one, or withdraw a blocked submitter's."""
        row = self.books.row_named(id)
        found = None if row is None else self._cancel(row, by)
        self._write_wishes()
        return found

    def cancel_all(self, whose: Mapping[str, str]) -> dict[str, JobRow]:
        """Cancel jobs by id, each for its requester; return those that are still stored.

        Jobs that wait for their session or key go first, so that neither is handed on to a job that
        is about to be cancelled. The lookups that the ends of the others need are made for all at
        once.
        """
        found = self.books.load_named(list(whose))
        rows = [found[id] for id in whose if id in found]
        kept: dict[str, JobRow] = {}
        blocked = [row for row in rows if row.where in (SESSION, KEY)]
        others = [row for row in rows if row.where not in (SESSION, KEY)]
        for some in (blocked, others):
            if len(some) > 1:
                self._foresee_ends(some)
            for row in some:
                left = self._cancel(row, whose[row.job.id])
                if left is not None:
                    kept[row.job.id] = left
        self._write_wishes()
        return kept

    def _foresee_ends(self, rows: Iterable[JobRow]) -> None:
        jobs: dict[int, list[Job]] = {}
        for row in rows:
            if row.job.status.waiting and row.where != PARKED:
                jobs.setdefault(row.pool, []).append(row.job)
        for no, some in jobs.items():
            pool = self.pools.no(no)
            pool.keys.foresee(some)
            pool.sessions.foresee(some, ending=True)

    def _cancel(self, row: JobRow, by: str) -> JobRow | None:
        books = self.books
        if row.where == PARKED:
            self.unpark(row)
            return None
        job = row.job
        if not job.status.terminal and not row.wished:
            books.note(audit.acted_on(audit.CANCEL, job, by, "", books.at))
        if row.newcomer:
            books.note(audit.submitted(job))
            job = lifecycle.cancel(job, books.at)
            self.end(row, job, audit.ended(job))
        elif job.status.waiting:
            self.remove(row, lifecycle.cancel(job, books.at))
        elif job.status is Status.RUNNING and not row.wished:
            row.wished = True
            self._wishes.append(row.token)
            books.topics.add("wish")
        return row

    def _write_wishes(self) -> None:
        # `among` is a generator: consume it, or nothing is updated.
        list(self.books.tables.among(WISH, self._wishes))
        self._wishes.clear()
