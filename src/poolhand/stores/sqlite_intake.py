"""How batches come into a SQLite store: all of one, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from poolhand.contract import Added, Batch, Entry, Order, Refusal
from poolhand.rules import audit, lifecycle
from poolhand.rules.backpressure import FailFast, capacity, drop_name, drop_reason
from poolhand.rules.desk import Admitted, Joined, Parked, RefusedEntry, Rejected, Verdict
from poolhand.rules.entry import Window
from poolhand.rules.job import Job, Status
from poolhand.rules.kept import may_refuse
from poolhand.rules.spec import undeclared
from poolhand.stores.sqlite_books import json
from poolhand.stores.sqlite_pools import StoredPool
from poolhand.stores.sqlite_rows import Row, encode, seconds
from poolhand.stores.sqlite_steps import Steps

REVIVE = "UPDATE ends SET dead = 0 WHERE seq = ?"


class _Refused(Exception):
    """An order was refused, and its batch with it."""

    def __init__(self, pool: str, reason: str, waiting: int | None = None) -> None:
        self.pool = pool
        self.reason = reason
        self.waiting = waiting


class Intake:
    """Brings orders to the desks of their pools and carries out the verdicts."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._books = steps.books

    def take(self, batch: Batch, owner: int | None) -> tuple[Added, ...] | Refusal:
        """Take a batch in; where a submitter has to wait, it does so under the lease of `owner`.

        One order alone is refused before anything is written for it.
        """
        orders = batch.orders
        undo = len(orders) > 1 and self._may_fail(orders, owner is not None)
        execute = self._books.connection.execute
        if undo:
            self._books.close()
            execute("SAVEPOINT batch")
        try:
            return tuple([self._enter(order, owner) for order in orders])
        except _Refused as refused:
            if undo:
                execute("ROLLBACK TO batch")
                self._steps.undo()
            return self._refusal(refused)
        finally:
            if undo:
                execute("RELEASE batch")

    def _may_fail(self, orders: Sequence[Order], may_park: bool) -> bool:
        for order in orders:
            if order.revives is not None:
                return True
            pool = self._steps.pools.named(order.job.pool)
            if pool is not None and may_refuse(pool.spec.backpressure, may_park):
                return True
        return False

    def _refusal(self, refused: _Refused) -> Refusal:
        pool = self._steps.pools.named(refused.pool)
        spec = undeclared(refused.pool) if pool is None else pool.spec
        policy, reason = spec.backpressure, refused.reason
        if reason == "full" and isinstance(policy, FailFast):
            reason = "no_slot"
        running, waiting = (0, 0) if pool is None else (pool.running, pool.waiting)
        if refused.waiting is not None:
            waiting = refused.waiting
        return Refusal(reason, spec.name, str(policy), running, waiting)

    def _enter(self, order: Order, owner: int | None) -> Added:
        if order.revives is not None:
            self._expect_dead(order)
        pool = self._steps.pools.named(order.job.pool)
        if pool is None:
            pool = self._steps.pools.open(undeclared(order.job.pool))
        if pool.takes_all and _has_no_terms(order):
            return self._queue(order, pool)
        row = self._row(order, pool)
        # Known before it is decided about: what its coming sets off may come back to it.
        self._books.rows[row.seq] = row
        verdict = pool.admit(row, self._books.now, order.rerun_failed)
        added = self._carry_out(verdict, row, pool, owner)
        if order.revives is not None:
            self._revive(order.revives, order.job)
        return added

    def _queue(self, order: Order, pool: StoredPool) -> Added:
        """Queue a job about which there is nothing to decide."""
        books = self._books
        job = replace(order.job, pool_id=pool.spec.id, status=Status.QUEUED, submitted_at=books.at)
        books.jobs = seq = books.jobs + 1
        books.turns += 1
        rank, turn = pool.position(job, seq, books.turns)
        terms = (job.name, job.key, None, job.tenant, None)
        books.new_jobs.append((seq, job.id, pool.no, *terms, encode(job), order.brief))
        books.new_queued.append((seq, pool.no, rank, turn, books.now))
        books.lines.append((audit.SUBMIT, json(audit.submitted(job))))
        books.topics.add("ready")
        pool.waiting += 1
        pool.queue.size += 1
        return Added(job, Entry.TAKEN)

    def _carry_out(
        self, verdict: Verdict[Row], row: Row, pool: StoredPool, owner: int | None
    ) -> Added:
        steps = self._steps
        match verdict:
            case Admitted(victim=victim):
                self._books.jobs = row.seq
                steps.accept(row)
                if victim is not None:
                    self._reject(victim, pool, row.job.id)
                return Added(row.job, Entry.TAKEN)
            case Joined(entry=other):
                del self._books.rows[row.seq]
                return Added(other.job, Entry.PARKED if other.parked else Entry.JOINED)
            case Rejected():
                self._books.jobs = row.seq
                self._books.note(audit.submitted(row.job))
                self._reject(row, pool, None)
                return Added(row.job, Entry.REJECTED)
            case Parked() if owner is not None:
                self._books.jobs = row.seq
                row.owner = owner
                return Added(row.job, Entry.PARKED)
            case Parked():
                pool.turn_away(row)
                raise _Refused(pool.spec.name, "full", pool.waiting)
            case RefusedEntry():
                del self._books.rows[row.seq]
                raise _Refused(pool.spec.name, "full", pool.waiting)

    def _reject(self, row: Row, pool: StoredPool, replacement: str | None) -> None:
        """Record that the policy of its pool turned a job away."""
        policy = pool.spec.backpressure
        job = lifecycle.reject(row.job, drop_reason(policy), drop_name(policy), self._books.at)
        record = audit.dropped(job, replacement, pool.waiting, capacity(policy))
        self._steps.end(row, job, record)
        self._steps.welcome(pool)

    def _expect_dead(self, order: Order) -> None:
        assert order.revives is not None
        dead = self._books.row_named(order.revives)
        if dead is None or not dead.dead:
            raise _Refused(order.job.pool, "not_dead")

    def _revive(self, id: str, job: Job) -> None:
        """Note that a dead job is run again as another one."""
        books = self._books
        dead = books.row_named(id)
        assert dead is not None
        dead.dead = False
        books.connection.execute(REVIVE, (dead.seq,))
        books.note(audit.acted_on(audit.RERUN, dead.job, job.submitted_by, job.id, books.at))

    def _row(self, order: Order, pool: StoredPool) -> Row:
        books, job = self._books, order.job
        now, at = books.now, books.at
        by_wall = order.delay is None and job.run_at is not None
        opens_at = closes_at = None
        run_at, expires_at = job.run_at, job.expires_at
        if order.delay is not None:
            opens_at, run_at = now + order.delay, at + timedelta(seconds=order.delay)
        elif run_at is not None:
            opens_at = now + (seconds(run_at) - seconds(at))
        if order.expires is not None:
            closes_at, expires_at = now + order.expires, at + timedelta(seconds=order.expires)
        job = replace(
            job,
            pool_id=pool.spec.id,
            status=Status.QUEUED,
            submitted_at=at,
            run_at=run_at,
            expires_at=expires_at,
        )
        window = None if opens_at is closes_at is None else Window(opens_at, closes_at)
        row = Row(job, pool.no, now, window)
        row.seq = books.jobs + 1
        row.brief, row.by_wall, row.fresh = order.brief, by_wall, True
        return row


def _has_no_terms(order: Order) -> bool:
    """Tell whether an order asks for nothing but to be run."""
    job = order.job
    return (
        job.session is job.idempotency_key is None
        and order.delay is order.expires is None
        and job.run_at is None
        and order.revives is None
    )
