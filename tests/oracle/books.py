"""The books of the memory store: its data, and the steps that all verbs consist of."""

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
    """Rows, pools, timers and the log. A verb begins, takes its steps and sends its `topics`.

    `now` and `at` are read once for everything that a verb does. The records of a step come before
    those of parked submitters that got a place through it.
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
        self._left: set[str] = set()  # runs of which a job was pruned

    def begin(self) -> None:
        """Read the clocks."""
        self._to_expire = EXPIRED_AT_ONCE
        self.now, self.at = self.runtime.monotonic(), self.runtime.wall()
        for row in self._parked_by_wall.values():
            self.set_by_wall(row)

    def news(self) -> list[str]:
        """Return the topics of the steps since the last time."""
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
        """Create a pool."""
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
        """Record an action on a pool."""
        self.note(audit.acted(kind, (pool.spec.id, pool.spec.name), by, detail, self.at))

    def declare(self, pool: Pool, spec: PoolSpec) -> None:
        """Continue a pool under other rules."""
        rows = [row for row in self.numbered.values() if row.pool is pool]
        occupied = [row.job.key for row in rows for _ in range(row.stuck + bool(row.token))]
        living = [row for row in rows if not row.job.status.terminal]
        pool.declare(spec, living, occupied, self.now)
        pool.desk.topics = self.topics
        self.freed.add(pool)
        self.welcome(pool)

    # Adding jobs

    def keep(self, row: Row) -> None:
        """Give a new row its number."""
        assert row.job.id not in self.rows, f"there is a job {row.job.id} already"
        self.numbers += 1
        row.number = self.numbers
        self.rows[row.job.id] = self.numbered[row.number] = row

    def accept(self, row: Row) -> None:
        """Record that a job has its place."""
        self.note(audit.submitted(row.job))
        if row.job.status is Status.QUEUED:
            self.topics.add("ready")
        if row.window is not None:
            self.wait(row, row.window.opens_at)

    def wait(self, row: Row, opens_at: float | None) -> None:
        """Set the timers of a waiting row."""
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
        """Make a row wait for its cause, without a time."""
        row.pool.desk.set_aside(row, self.now)
        self._aside[row] = None
        self.topics.add("ready")
        if row.window is not None and row.window.closes_at is not None:
            self._expiries.add(row.window.closes_at, row)

    def aside(self, pool: Pool) -> list[Row]:
        """Return the rows of a pool that are set aside, in order of arrival."""
        rows = (row for row in self._aside if row.pool is pool)
        return sorted(rows, key=lambda row: row.number)

    def take_aside(self, row: Row) -> bool:
        """Start a row that was set aside, if possible."""
        if not row.pool.desk.take_aside(row, self.now):
            return False
        del self._aside[row]
        self._expiries.remove(row)
        return True

    def waiting_for(self, cause: str) -> list[Row]:
        """Return the rows that wait for a cause, in order of arrival."""
        waiting = (row for row in self.numbered.values() if row.job.waits_for == cause)
        return [row for row in waiting if row.job.status is Status.SCHEDULED]

    def wake(self, cause: str, by: str, limit: int) -> int:
        """Promote the oldest rows that wait for a cause now."""
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
        """Return when, by the store's clock, the wall clock reaches the time of a row."""
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
        """Withdraw parked rows, all of them before another one gets a place."""
        for row in rows:
            row.pool.desk.dismiss(row)
            self._leave_parking(row)
            self._drop(row)
        for pool in dict.fromkeys(row.pool for row in rows):
            self.welcome(pool)

    def welcome(self, pool: Pool) -> None:
        """Record which parked rows have got a place."""
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

    # Running jobs

    def next(self, pool: Pool) -> Row | None:
        """Return the next row of a pool, after expired ones are removed."""
        if pool in self.overdue():
            return None
        row = pool.desk.next(self.now)
        if row is not None and row.window is not None:
            self._expiries.remove(row)
        return row

    def vacate(self, row: Row) -> None:
        """Release the slot of a row."""
        row.pool.desk.vacate(row.job.key, self.now)
        self.freed.add(row.pool)
        self.welcome(row.pool)

    # Ending jobs

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
        """End a waiting job; request the end of a running one."""
        job = row.job
        if not job.status.terminal and not row.cancel_requested:
            self.note(audit.acted_on(audit.CANCEL, job, by, "", self.at))
        if job.status.waiting:
            self.remove(row, lifecycle.cancel(job, self.at))
        elif job.status is Status.RUNNING and not row.cancel_requested:
            row.cancel_requested = True
            self.topics.add("wish")

    def prune(self, keep: Keep, limit: int) -> int:
        """Prune jobs that have been over for long; stuck jobs, and those of a live key, stay."""
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
        """Delete finished jobs, and their keys."""
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
        # A job that was never accepted has not run, so its run left nothing behind.
        del self.rows[row.job.id], self.numbered[row.number]
        self.log.forget([events_of(row.job.id), inbox_of(row.job.id)])

    def forgotten_runs(self) -> list[str]:
        """Return the runs whose last job was deleted; their journals are deleted."""
        kept = {row.job.run for row in self.rows.values()}
        gone = sorted(self._left - kept)
        self._left.clear()
        self.log.forget([journal_of(run) for run in gone])
        return gone

    # Time

    def promote(self, limit: int) -> int:
        """Promote due rows."""
        for count in range(limit):
            row = self._pop_due()
            if row is None:
                return count
            row.pool.desk.promote(row, self.now)
        return limit

    def overdue(self) -> set[Pool]:
        """Expire rows, up to a limit; return the pools in which more wait.

        Nothing may be claimed from those: the next row may be an expired one.
        """
        self._to_expire -= self.expire(self._to_expire)
        return set() if self._to_expire else {row.pool for row in self._expiries.until(self.now)}

    def expire(self, limit: int) -> int:
        """Expire rows."""
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
        """Remove the row that has been due for longest, by either clock."""
        found = []
        for moments, now in self._clocks():
            first = moments.first()
            if first is not None and first[0] <= now:
                found.append((first[0] - now, first[1], moments))
        return min(found, key=lambda one: one[:2])[2].pop() if found else None

    def _clocks(self) -> tuple[tuple[Moments, float], tuple[Moments, float]]:
        return (self._due, self.now), (self._due_by_wall, seconds(self.at))
