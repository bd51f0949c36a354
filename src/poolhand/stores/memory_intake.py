"""How batches come into the memory store: all of one, or nothing."""

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
from poolhand.rules.kept import Trial, may_refuse
from poolhand.rules.spec import undeclared
from poolhand.stores.memory_books import Books
from poolhand.stores.memory_rows import Holder, Pool, Row


class Intake:
    """Brings orders to the desks of their pools and carries out the verdicts."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def take(self, batch: Batch, holder: Holder | None) -> tuple[Added, ...] | Refusal:
        """Take a batch in; where a submitter has to wait, it does so under the lease of `holder`.

        A desk cannot take back what it has taken, so that a batch in which something could be
        refused is tried before.
        """
        orders = batch.orders
        if len(orders) != 1 or orders[0].revives is not None:
            refusal = self.refusal(orders, holder is not None)
            if refusal is not None:
                return refusal
        added: list[Added] = []
        for order in orders:
            answer = self._enter(order, holder)
            if isinstance(answer, Refusal):
                assert len(orders) == 1
                return answer
            if order.revives is not None and answer.entry in (Entry.TAKEN, Entry.JOINED):
                self._revive(order.revives, order.job.submitted_by, answer.job.id)
            added.append(answer)
        return tuple(added)

    def standing_for(self, order: Order) -> Job | None:
        """Return the job that the key of an order already stands for."""
        self._books.begin()
        pool = self._books.pools.get(order.job.pool)
        if pool is None:
            return None
        owner = pool.desk.joined(order.job, order.rerun_failed, self._books.now)
        return None if owner is None else owner.job

    def refusal(self, orders: Sequence[Order], may_park: bool) -> Refusal | None:
        """Return why a batch would be refused now; nothing is changed."""
        books = self._books
        books.begin()
        trials: dict[Pool, Trial[Row]] = {}
        revived: set[str] = set()
        for order in orders:
            name = order.job.pool
            pool = books.pools.get(name) or Pool(undeclared(name))
            if order.revives is not None:
                dead = books.rows.get(order.revives)
                if dead is None or not dead.dead or order.revives in revived:
                    return _refusal(pool, "not_dead", pool.desk.waiting)
                revived.add(order.revives)
            if may_refuse(pool.spec.backpressure, may_park and order.revives is None):
                trial = trials.get(pool)
                if trial is None:
                    trial = trials[pool] = Trial(pool.desk, books.now)
                if trial.refuses(self._row(order, pool), order.rerun_failed):
                    return _refusal(pool, "full", trial.waiting)
        return None

    def _enter(self, order: Order, holder: Holder | None) -> Added | Refusal:
        books = self._books
        pool = books.pools.get(order.job.pool)
        if pool is None:
            pool = books.open(undeclared(order.job.pool))
        row = self._row(order, pool)
        desk = pool.desk
        verdict = desk.admit(row, books.now, order.rerun_failed)
        if verdict is not desk.taken:
            # Who revives a job has to come in now: should it give up, nobody would be left.
            return self._carry_out(verdict, row, holder if order.revives is None else None)
        books.keep(row)
        books.accept(row)
        return Added(row.job, Entry.TAKEN)

    def _carry_out(self, verdict: Verdict[Row], row: Row, holder: Holder | None) -> Added | Refusal:
        books, desk = self._books, row.pool.desk
        match verdict:
            case Admitted(victim=victim):
                books.keep(row)
                books.accept(row)
                if victim is not None:
                    self._reject(victim, row.job.id)
                return Added(row.job, Entry.TAKEN)
            case Joined(entry=owner):
                return Added(owner.job, Entry.PARKED if owner.parked else Entry.JOINED)
            case Rejected():
                books.keep(row)
                books.note(audit.submitted(row.job))
                self._reject(row, None)
                return Added(row.job, Entry.REJECTED)
            case Parked() if holder is not None:
                books.park(row)
                row.holder = holder
                holder.parked[row.job.id] = row
                return Added(row.job, Entry.PARKED)
            case Parked():
                desk.dismiss(row)
                return _refusal(row.pool, "full", desk.waiting)
            case RefusedEntry():
                return _refusal(row.pool, "full", desk.waiting)

    def _reject(self, row: Row, replacement: str | None) -> None:
        """Record that the policy of its pool turned a job away."""
        books, pool = self._books, row.pool
        policy = pool.spec.backpressure
        job = lifecycle.reject(row.job, drop_reason(policy), drop_name(policy), books.at)
        depth, most = pool.desk.waiting, capacity(policy)
        books.end(row, job, audit.dropped(job, replacement, depth, most))
        books.welcome(pool)

    def _revive(self, id: str, by: str, heir: str) -> None:
        """Note that another job has the place of a dead one."""
        books = self._books
        dead = books.rows[id]
        dead.dead = False
        books.note(audit.acted_on(audit.RERUN, dead.job, by, heir, books.at))

    def _row(self, order: Order, pool: Pool) -> Row:
        now, at, job = self._books.now, self._books.at, order.job
        if order.delay is None and order.expires is None and job.run_at is None:
            job = replace(job, pool_id=pool.spec.id, status=Status.QUEUED, submitted_at=at)
            return Row(job, order.brief, pool, now)
        by_wall = order.delay is None and job.run_at is not None
        run_at = job.run_at if order.delay is None else at + timedelta(seconds=order.delay)
        job = replace(
            job,
            pool_id=pool.spec.id,
            status=Status.QUEUED,
            submitted_at=at,
            run_at=run_at,
            expires_at=None if order.expires is None else at + timedelta(seconds=order.expires),
        )
        opens_at = None if order.delay is None else now + order.delay
        closes_at = None if order.expires is None else now + order.expires
        row = Row(job, order.brief, pool, now, Window(opens_at, closes_at))
        if by_wall:
            row.by_wall = True
            self._books.set_by_wall(row)
        return row


def _refusal(pool: Pool, reason: str, waiting: int) -> Refusal:
    policy = pool.spec.backpressure
    if reason == "full" and isinstance(policy, FailFast):
        reason = "no_slot"
    return Refusal(reason, pool.spec.name, str(policy), pool.desk.running, waiting)
