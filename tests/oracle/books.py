"""The books of the memory store: what is kept, and the steps that all verbs are made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from poolhand.errors import Conflict
from poolhand.rules import audit, lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.entry import EPOCH, Window, seconds
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.rules.streams import events_of, inbox_of, journal_of
from poolhand.runtime import Runtime
from poolhand.stores.sql.tables import EXPIRED_AT_ONCE
from tests.oracle.log import MemoryLog
from tests.oracle.rows import Moments, Pool, Row


class Books:
    """Rows, pools, moments and the log. A verb begins, takes its steps and tells the `topics`.

    `now` and `at` are read once for everything that a verb does. The records of a step come before
    those of the parked that got a place through it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.now = 0.0
        self.at = EPOCH
        self.rows: dict[str, Row] = {}
        self.numbered: dict[int, Row] = {}
        self.numbers = 0
        self.pools: dict[str, Pool] = {}
        self.log = MemoryLog()
        self.topics: set[str] = set()
        self.freed: set[Pool] = set()
        self._due = Moments()
        self._due_by_wall = Moments()
        self._expiries = Moments()
        self._aside: dict[Row, None] = {}
        self._parked_by_wall: dict[str, Row] = {}
        self._over: deque[Row] = deque()
        self._to_expire = EXPIRED_AT_ONCE
        self._left: set[str] = set()  # runs of which a job was forgotten

    def begin(self) -> None:
        """Look at the clocks."""
        self._to_expire = EXPIRED_AT_ONCE
        self.now, self.at = self.runtime.monotonic(), self.runtime.wall()
        for row in self._parked_by_wall.values():
            self.set_by_wall(row)

    def news(self) -> list[str]:
        """Return what there is to tell of the steps since the last time."""
        topics = self.topics
        if self.freed:
            for pool in self.freed:
                desk = pool.desk
                if desk.has_slot and desk.queued and not desk.paused:
                    topics.add("ready")
            self.freed.clear()
        if not topics:
            return []
        news = sorted(topics)
        topics.clear()
        return news

    def note(self, record: audit.Audit) -> None:
        self.log.audit(record, self.at)

    # Pools

    def open(self, pool: Pool) -> Pool:
        """Let a pool come into being."""
        self.pools[pool.spec.name] = pool
        pool.desk.topics = self.topics
        return pool

    def known(self, name: str) -> Pool:
        """Return a pool that an operator names."""
        pool = self.pools.get(name)
        if pool is None:
            known = ", ".join(map(repr, self.pools)) or "none"
            raise Conflict(f"pool={name!r} is not known to this store; it knows: {known}")
        return pool

    def act(self, kind: str, pool: Pool, by: str, detail: str) -> None:
        """Note what somebody did to a pool."""
        self.note(audit.acted(kind, (pool.spec.id, pool.spec.name), by, detail, self.at))

    def declare(self, pool: Pool, spec: PoolSpec) -> None:
        """Let a pool go on under other rules."""
        rows = [row for row in self.numbered.values() if row.pool is pool]
        occupied = [row.job.key for row in rows for _ in range(row.stuck + bool(row.token))]
        living = [row for row in rows if not row.job.status.terminal]
        pool.declare(spec, living, occupied, self.now)
        pool.desk.topics = self.topics
        self.freed.add(pool)
        self.welcome(pool)

    # Coming in

    def keep(self, row: Row) -> None:
        """Give a new row its number."""
        assert row.job.id not in self.rows, f"there is a job {row.job.id} already"
        self.numbers += 1
        row.number = self.numbers
        self.rows[row.job.id] = self.numbered[row.number] = row

    def accept(self, row: Row) -> None:
        """Note that a job has its place."""
        self.note(audit.submitted(row.job))
        if row.job.status is Status.QUEUED:
            self.topics.add("ready")
        if row.window is not None:
            self.wait(row, row.window.opens_at)

    def wait(self, row: Row, opens_at: float | None) -> None:
        """Note the moments that a waiting row waits for."""
        if row.job.status is Status.SCHEDULED:
            if row.by_wall:
                assert row.job.run_at is not None
                self._due_by_wall.add(seconds(row.job.run_at), row)
            else:
                assert opens_at is not None
                self._due.add(opens_at, row)
        if row.window is not None and row.window.closes_at is not None:
            self._expiries.add(row.window.closes_at, row)

    def set_aside(self, row: Row) -> None:
        """Let a row wait for its cause, at no time."""
        row.pool.desk.set_aside(row, self.now)
        self._aside[row] = None
        self.topics.add("ready")
        if row.window is not None and row.window.closes_at is not None:
            self._expiries.add(row.window.closes_at, row)

    def aside(self, pool: Pool) -> list[Row]:
        """Return what is set aside in a pool, in the order it came."""
        rows = (row for row in self._aside if row.pool is pool)
        return sorted(rows, key=lambda row: row.number)

    def take_aside(self, row: Row) -> bool:
        """Start a row that was set aside, if it can be."""
        if not row.pool.desk.take_aside(row, self.now):
            return False
        del self._aside[row]
        self._expiries.remove(row)
        return True

    def waiting_for(self, cause: str) -> list[Row]:
        """Return the rows that wait for a cause, in the order they came."""
        waiting = (row for row in self.numbered.values() if row.job.waits_for == cause)
        return [row for row in waiting if row.job.status is Status.SCHEDULED]

    def wake(self, cause: str, by: str, limit: int) -> int:
        """Let the oldest rows that wait for a cause be promoted now."""
        rows = self.waiting_for(cause)[:limit]
        for pool in self.pools.values():
            mine = [row for row in rows if row.pool is pool]
            for row in mine:
                self._aside.pop(row, None)
                self._due_by_wall.remove(row)
                row.by_wall = False
                self._due.add(self.now, row)
            if mine:
                self.act(audit.WAKE, pool, by, f"{cause}: {len(mine)}")
        if rows:
            self.topics.add("due")
        return len(rows)

    def set_by_wall(self, row: Row) -> None:
        """Say by the clock of the store when the calendar will have come to a row's time."""
        assert row.window is not None
        assert row.job.run_at is not None
        opens_at = self.now + (seconds(row.job.run_at) - seconds(self.at))
        row.window = Window(opens_at, row.window.closes_at)

    def park(self, row: Row) -> None:
        self.keep(row)
        row.submitter_blocked = True
        if row.by_wall:
            self._parked_by_wall[row.job.id] = row

    def withdraw(self, *rows: Row) -> None:
        """Let parked rows go, all of them before anybody else gets a place."""
        for row in rows:
            row.pool.desk.dismiss(row)
            self._leave_parking(row)
            self._drop(row)
        for pool in dict.fromkeys(row.pool for row in rows):
            self.welcome(pool)

    def welcome(self, pool: Pool) -> None:
        """Note who of the parked has got a place."""
        desk = pool.desk
        if desk.blocked_submitters.size or desk.admitted:
            for row in desk.welcome(self.now):
                self._leave_parking(row)
                self.accept(row)
                self.topics.add("entered")

    def _leave_parking(self, row: Row) -> None:
        assert row.holder is not None
        del row.holder.parked[row.job.id]
        self._parked_by_wall.pop(row.job.id, None)
        row.submitter_blocked, row.holder = False, None

    # Being run

    def next(self, pool: Pool) -> Row | None:
        """Return what a pool runs next, after what has expired is out of the way."""
        if pool in self.overdue():
            return None
        row = pool.desk.next(self.now)
        if row is not None and row.window is not None:
            self._expiries.remove(row)
        return row

    def vacate(self, row: Row) -> None:
        """Take back the slot in which a row was."""
        row.pool.desk.vacate(row.job.key, self.now)
        self.freed.add(row.pool)
        self.welcome(row.pool)

    # Being over

    def remove(self, row: Row, job: Job) -> None:
        """End a waiting job."""
        row.pool.desk.remove(row, self.now)
        self.end(row, job, audit.ended(job))
        self.welcome(row.pool)

    def end(self, row: Row, job: Job, record: audit.Audit) -> None:
        """Write the last record of a job that has no place any more."""
        self.note(record)
        if row.window is not None or row.job.status is Status.SCHEDULED:
            self._due.remove(row)
            self._due_by_wall.remove(row)
            self._expiries.remove(row)
            self._aside.pop(row, None)
        row.job = job
        row.dead = job.status is Status.FAILED
        row.over_at = self.now
        self._over.append(row)
        self.topics.add("over")
        if job.session is not None or job.idempotency_key is not None:
            row.pool.desk.finish(row, self.now)

    def cancel(self, row: Row, by: str) -> None:
        """End a job that waits, wish the end of one that runs."""
        job = row.job
        if not job.status.terminal and not row.cancel_requested:
            self.note(audit.acted_on(audit.CANCEL, job, by, "", self.at))
        if job.status.waiting:
            self.remove(row, lifecycle.cancel(job, self.at))
        elif job.status is Status.RUNNING and not row.cancel_requested:
            row.cancel_requested = True
            self.topics.add("wish")

    def prune(self, keep: Keep, limit: int) -> int:
        """Forget what has been over for long; what is stuck, or what a key stands for, stays."""
        count = 0
        for dead, age in ((False, keep.results), (True, keep.dead)):
            for row in [row for row in self._over if row.dead is dead]:
                if count >= limit or row.over_at + age > self.now:
                    break
                if not (row.stuck or row.pool.keys.stands_for(row, self.now)):
                    self._over.remove(row)
                    self._forget(row)
                    count += 1
        return count

    def erase(self, ids: Sequence[str], by: str) -> list[str]:
        """Forget jobs that are over, and their keys."""
        rows = [self.rows[id] for id in dict.fromkeys(ids) if id in self.rows]
        gone = [row for row in rows if row.job.status.terminal and not row.stuck]
        for row in gone:
            self.note(audit.acted_on(audit.ERASE, row.job, by, "", self.at))
            row.pool.keys.drop(row)
            self._over.remove(row)
            self._forget(row)
        return [row.job.id for row in gone]

    def _forget(self, row: Row) -> None:
        self._drop(row)
        self._left.add(row.job.run)

    def _drop(self, row: Row) -> None:
        # One that was never accepted has not run, and left nothing of its run behind.
        del self.rows[row.job.id], self.numbered[row.number]
        self.log.forget([events_of(row.job.id), inbox_of(row.job.id)])

    def forgotten_runs(self) -> list[str]:
        """Return the runs whose last job was forgotten; their journals are gone."""
        kept = {row.job.run for row in self.rows.values()}
        gone = sorted(self._left - kept)
        self._left.clear()
        self.log.forget([journal_of(run) for run in gone])
        return gone

    # Time

    def promote(self, limit: int) -> int:
        """Place what is due."""
        for count in range(limit):
            row = self._pop_due()
            if row is None:
                return count
            row.pool.desk.promote(row, self.now)
        return limit

    def overdue(self) -> set[Pool]:
        """End what has waited too long, if not too many; return the pools where some still wait.

        Nothing may be claimed from those: what is next may be one of them.
        """
        self._to_expire -= self.expire(self._to_expire)
        return set() if self._to_expire else {row.pool for row in self._expiries.until(self.now)}

    def expire(self, limit: int) -> int:
        """End what has waited too long."""
        count = 0
        while count != limit and (first := self._expiries.first()) is not None:
            if first[0] > self.now:
                break
            row = self._expiries.pop()
            self.remove(row, lifecycle.expire(row.job, self.at))
            count += 1
        return count

    def next_in(self) -> float | None:
        """Return the seconds until something is due or expires."""
        clocks = [*self._clocks(), (self._expiries, self.now)]
        found = [(moments.first(), now) for moments, now in clocks]
        return min((max(0.0, first[0] - now) for first, now in found if first), default=None)

    def _pop_due(self) -> Row | None:
        """Take off the row that has been due for longest, by whichever clock."""
        found = []
        for moments, now in self._clocks():
            first = moments.first()
            if first is not None and first[0] <= now:
                found.append((first[0] - now, first[1], moments))
        return min(found, key=lambda one: one[:2])[2].pop() if found else None

    def _clocks(self) -> tuple[tuple[Moments, float], tuple[Moments, float]]:
        return (self._due, self.now), (self._due_by_wall, seconds(self.at))
