"""The steps that the verbs of a SQL store share: accept, end, expire, cancel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poolhand.contract import Stored
from poolhand.rules import audit, lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.stored_desk import PoolSpec, undeclared
from poolhand.stores.sql import sessions as sql_sessions
from poolhand.stores.sql.pools import Pools, StoredPool
from poolhand.stores.sql.rows import (
    BLOCKED_SUBMITTER,
    END_OF,
    FAILED,
    KEY,
    OVER,
    SESSION,
    JobRow,
    encode_course,
    sought,
)
from poolhand.stores.sql.tables import EXPIRED_AT_ONCE
from poolhand.stores.sql.unit_of_work import UnitOfWork

EXPIRED = """
SELECT seq FROM poolhand_waits WHERE closes_at IS NOT NULL AND closes_at <= ?
ORDER BY closes_at, seq LIMIT 1
"""
OVERDUE = """
SELECT DISTINCT pool FROM poolhand_waits WHERE closes_at IS NOT NULL AND closes_at <= ?
"""
OWNER = "SELECT no FROM poolhand_owners WHERE id = ? AND buried = 0 /*pg FOR SHARE */"
REQUEST_CANCEL = "UPDATE poolhand_claims SET wished = 1 WHERE token IN (?*)"
FORGET_OWNERS = """
DELETE FROM poolhand_owners WHERE buried = 1
    AND NOT EXISTS (SELECT 1 FROM poolhand_claims WHERE owner = poolhand_owners.no)
    AND NOT EXISTS (SELECT 1 FROM poolhand_waits WHERE place = 0 AND owner = poolhand_owners.no)
"""


class Steps:
    """One write: its unit of work, its pools, and what can be done to a job.

    The audit records of a step come before those of the blocked submitters that it admits.
    """

    def __init__(self, unit: UnitOfWork, pools: Pools) -> None:
        self.unit = unit
        self.pools = pools
        self.freed: set[int] = set()
        self._to_expire = EXPIRED_AT_ONCE
        self._cancel_requests: list[int] = []

    def close(self) -> set[str]:
        """Write everything; return the topics to publish."""
        topics = self.unit.topics
        for no in self.freed:
            pool = self.pools.no(no)
            if pool.has_slot and pool.queued > 0 and not pool.paused:
                topics.add("ready")
        self.unit.close()
        return topics

    def undo(self, topics: set[str]) -> None:
        """Start again after a rollback to the last `close`; keep only the topics in `topics`."""
        self.unit.reopen()
        self.unit.topics &= topics
        self.pools = self.pools.anew()

    def owner(self, id: str | None) -> int | None:
        """Return the number of an owner that may hold leases, None for any other."""
        if id is None:
            return None
        row = self.unit.tables.execute(OWNER, (sought(id),)).fetchone()
        return None if row is None else int(row[0])

    def forget_owners(self) -> None:
        """Delete expired owners that hold nothing any more."""
        self.unit.write()
        self.unit.tables.execute(FORGET_OWNERS)

    def act(self, kind: str, pool: StoredPool, by: str, detail: str) -> None:
        """Audit an action on a pool."""
        of = (pool.spec.id, pool.spec.name)
        self.unit.note(audit.acted(kind, of, by, detail, self.unit.at))

    # Pools

    def declare(self, spec: PoolSpec) -> None:
        """Create a pool, or apply its new spec."""
        pool = self.pools.named(spec.name)
        if pool is None:
            self.act(audit.CREATE, self.pools.open(spec), "", "")
        elif pool.spec != spec:
            self._start_waiting_jobs(self.pools.declare(pool, spec))

    def know(self, name: str) -> None:
        """Create a pool unless there is one of that name."""
        if self.pools.named(name) is None:
            self.pools.open(undeclared(name))

    def set_pool(
        self, name: str, by: str, paused: bool | None, slots: int | None, declared: bool
    ) -> None:
        """Pause or resume claims from a pool; override its slots, or restore the declared ones."""
        pool = self.pools.known(name)
        if paused is not None:
            self.act(audit.PAUSE if paused else audit.RESUME, pool, by, "")
            self.pools.pause(pool, paused)
        if slots is not None or declared:
            self.act(audit.RESIZE, pool, by, "" if slots is None else str(slots))
            self.pools.resize(pool, slots)
        self._start_waiting_jobs(pool)

    def _start_waiting_jobs(self, pool: StoredPool) -> None:
        self.freed.add(pool.no)
        self.welcome(pool)

    # Admission

    def accept(self, row: JobRow) -> None:
        """Audit that a job was admitted."""
        self.unit.note(audit.submitted(row.job))
        if row.job.status is Status.QUEUED:
            self.unit.topics.add("ready")

    def withdraw(self, ids: Sequence[str]) -> list[Stored | None]:
        """Withdraw jobs of blocked submitters; return those already admitted, for others None."""
        rows = [self.unit.row_named(id) for id in ids]
        blocked = [row for row in rows if row is not None and row.submitter_blocked]
        found = [None if row is None or row in blocked else row.stored() for row in rows]
        self.withdraw_rows(*dict.fromkeys(blocked))
        return found

    def withdraw_rows(self, *rows: JobRow) -> None:
        """Withdraw jobs of blocked submitters, all of them before any other job is admitted."""
        for row in rows:
            self.pools.no(row.pool).dismiss(row)
            self.unit.forget(row)
        whose = [(row.job.tenant, row.job.session) for row in rows if row.job.session is not None]
        if whose:
            sql_sessions.forget_unkept(self.unit.tables, whose)
        for no in dict.fromkeys(row.pool for row in rows):
            self.welcome(self.pools.no(no))

    def welcome(self, pool: StoredPool) -> None:
        """Accept the jobs of blocked submitters that the desk has now admitted."""
        if pool.blocked_submitters.size or pool.admitted:
            for row in pool.welcome(self.unit.now):
                self.accept(row)
                self.unit.topics.add("entered")

    # Ends

    def vacate(self, pool: StoredPool, key: str) -> None:
        """Free a slot."""
        pool.vacate(key, self.unit.now)
        self.freed.add(pool.no)
        self.welcome(pool)

    def remove(self, row: JobRow, job: Job) -> None:
        """End a waiting job."""
        pool = self.pools.no(row.pool)
        pool.remove(row, self.unit.now)
        self.end(row, job, audit.ended(job))
        self.welcome(pool)

    def end(self, row: JobRow, job: Job, record: audit.Audit) -> None:
        """Record the end of a job that has left its place."""
        unit, pool = self.unit, self.pools.no(row.pool)
        unit.note(record)
        row.job = job
        row.dead = job.status is Status.FAILED
        if job.session is not None or job.idempotency_key is not None:
            pool.finish(row, unit.now)
        unit.put(row, OVER)
        self.record_end(pool, row.seq, job, END_OF[job.status], row.cancel_requested)

    def record_end(
        self, pool: StoredPool, seq: int, job: Job, end: int, cancel_requested: bool
    ) -> None:
        """Write the outcome of a job."""
        unit = self.unit
        unit.topics.add("over")
        self.pools.tally(pool.no, end, 1)
        times = (unit.now, encode_course(job))
        unit.new_ends.append((seq, pool.no, end, end == FAILED, cancel_requested, *times))

    def overdue(self) -> set[int]:
        """Expire overdue jobs up to a limit; return the pools where some are left.

        Nothing may be claimed from those pools: the next job may be an overdue one.
        """
        self._to_expire -= self.expire(self._to_expire)
        if self._to_expire:
            return set()
        return {no for (no,) in self.unit.query(OVERDUE, (self.unit.now,))}

    def expire(self, limit: int) -> int:
        """Expire up to `limit` overdue jobs; return how many."""
        count = 0
        while count != limit and (rows := self.unit.query(EXPIRED, (self.unit.now,))):
            row = self.unit.row(rows[0][0])
            self.remove(row, lifecycle.expire(row.job, self.unit.at))
            count += 1
        return count

    def cancel(self, id: str, by: str) -> JobRow | None:
        """Cancel a waiting job, request it of a running one, or withdraw a blocked submitter's."""
        row = self.unit.row_named(id)
        found = None if row is None else self._cancel(row, by)
        self._write_cancel_requests()
        return found

    def cancel_all(self, asked: Sequence[tuple[str, str]]) -> list[Stored | None]:
        """Cancel waiting jobs and request it of running ones; `asked` pairs ids and requesters.

        Jobs that wait for their session or key go first, so that neither is handed on to a job that
        is about to be cancelled. The lookups that the ends of the others need are made for all at
        once.
        """
        # If several callers cancel the same job, the first is recorded.
        whose: dict[str, str] = {}
        for id, by in asked:
            whose.setdefault(id, by)
        found = self.unit.load_named(list(whose))
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
        self._write_cancel_requests()
        cancelled = {id: row.stored() for id, row in kept.items()}
        return [cancelled.get(id) for id, _ in asked]

    def _foresee_ends(self, rows: Iterable[JobRow]) -> None:
        jobs: dict[int, list[Job]] = {}
        for row in rows:
            if row.job.status.waiting and row.where != BLOCKED_SUBMITTER:
                jobs.setdefault(row.pool, []).append(row.job)
        for no, some in jobs.items():
            pool = self.pools.no(no)
            pool.keys.foresee(some)
            pool.sessions.foresee(some, ending=True)

    def _cancel(self, row: JobRow, by: str) -> JobRow | None:
        unit = self.unit
        if row.where == BLOCKED_SUBMITTER:
            self.withdraw_rows(row)
            return None
        job = row.job
        if not job.status.terminal and not row.cancel_requested:
            unit.note(audit.acted_on(audit.CANCEL, job, by, "", unit.at))
        if row.newcomer:
            unit.note(audit.submitted(job))
            job = lifecycle.cancel(job, unit.at)
            self.end(row, job, audit.ended(job))
        elif job.status.waiting:
            self.remove(row, lifecycle.cancel(job, unit.at))
        elif job.status is Status.RUNNING and not row.cancel_requested:
            row.cancel_requested = True
            self._cancel_requests.append(row.token)
            unit.topics.add("wish")
        return row

    def _write_cancel_requests(self) -> None:
        # `among` is a generator: consume it, or nothing is updated.
        list(self.unit.tables.among(REQUEST_CANCEL, self._cancel_requests))
        self._cancel_requests.clear()
