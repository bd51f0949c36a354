"""Adding batches to the memory store: all of a batch, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from poolhand.contract import Added, Admission, JobBatch, JobRequest, LogLine, Refusal
from poolhand.rules import audit, lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import (
    Bounded,
    FailFast,
    OnFull,
    capacity,
    drop_name,
    drop_reason,
)
from poolhand.rules.queue.desk import Admitted, Joined, Parked, RefusedEntry, Rejected, Verdict
from poolhand.rules.queue.entry import arrival
from poolhand.rules.queue.gates import TURN, BusyAction, OnBusy
from poolhand.rules.queue.stored_desk import may_refuse, undeclared
from poolhand.rules.streams import inbox_of
from poolhand.stores.sql.admission import ended_for
from poolhand.stores.sql.tables import cannot_be_kept, known_already
from tests.oracle.books import Books
from tests.oracle.rows import Holder, Pool, Row
from tests.oracle.trial import Trial

Key = tuple[str, str | None, str]  # pool, tenant and idempotency key


class Intake:
    """Brings job requests to the desks of their pools and carries out the verdicts."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def take(
        self, batches: Sequence[tuple[JobBatch, Holder | None]]
    ) -> list[tuple[Added, ...] | Refusal]:
        """Add batches; a submitter that has to wait does so under the lease of a holder.

        All rows are made before the first one is added: a row that cannot be stored leaves no
        trace.
        """
        if len(batches) == 1:
            ((batch, holder),) = batches
            return [self._take(batch.requests, self._rows(batch.requests), holder)]
        rows = iter(self._rows([order for batch, _ in batches for order in batch.requests]))
        return [
            self._take(batch.requests, list(islice(rows, len(batch.requests))), holder)
            for batch, holder in batches
        ]

    def foresee(self, orders: Sequence[JobRequest]) -> tuple[Added, ...] | Refusal:
        """Return the present verdicts for requests whose submitter does not wait."""
        self._books.begin()
        rows = self._rows(orders)
        refusal = self._refusal(orders, rows, may_block=False)
        if refusal is not None:
            return refusal
        trials: dict[Pool, Trial[Row]] = {}
        taken: dict[Key, Job] = {}
        added: list[Added] = []
        for order, row in zip(orders, rows, strict=True):
            key = _key(order)
            if key in taken:
                added.append(Added(taken[key], Admission.JOINED))
                continue
            answer = self._foresee(order, row, trials)
            if key is not None and answer.entry is Admission.ACCEPTED:
                taken[key] = answer.job
            added.append(answer)
        return tuple(added)

    def _foresee(self, order: JobRequest, row: Row, trials: dict[Pool, Trial[Row]]) -> Added:
        now, policy = self._books.now, row.pool.spec.backpressure
        owner = row.pool.desk.joined(row.job, order.rerun_failed, now)
        if owner is not None:
            return Added(
                owner.job,
                Admission.BLOCKED_SUBMITTER if owner.submitter_blocked else Admission.JOINED,
            )
        drops = isinstance(policy, Bounded) and policy.on_full is OnFull.DROP_NEWEST
        if drops and _trial(trials, row, now).refuses(row, order.rerun_failed):
            return Added(self._rejected(row), Admission.REJECTED)
        return Added(row.job, Admission.ACCEPTED)

    def _take(
        self, orders: Sequence[JobRequest], rows: Sequence[Row], holder: Holder | None
    ) -> tuple[Added, ...] | Refusal:
        """Add a batch.

        A desk cannot take back an accepted entry, so a batch that could be refused is tried before.
        """
        if len(orders) != 1 or orders[0].revives is not None:
            refusal = self._refusal(orders, rows, holder is not None)
            if refusal is not None:
                return refusal
        added: list[Added] = []
        for order, row in zip(orders, rows, strict=True):
            answer = self._enter(order, row, holder)
            if isinstance(answer, Refusal):
                assert len(orders) == 1
                return answer
            if order.revives is not None and answer.entry in (Admission.ACCEPTED, Admission.JOINED):
                self._revive(order.revives, order.job.submitted_by, answer.job.id)
            if order.triggers is not None and answer.entry is not Admission.REJECTED:
                by, id, at = order.job.submitted_by, order.triggers, self._books.at
                kind = audit.SCHEDULE_TRIGGER
                self._books.note(audit.acted_on(kind, answer.job, by, id, at))
            added.append(answer)
        return tuple(added)

    def _refusal(
        self, orders: Sequence[JobRequest], rows: Sequence[Row], may_block: bool
    ) -> Refusal | None:
        """Return why a batch would be refused now; changes nothing."""
        books = self._books
        trials: dict[Pool, Trial[Row]] = {}
        revived: set[str] = set()
        keyed: dict[Key, Row] = {}
        for order, row in zip(orders, rows, strict=True):
            pool = row.pool
            if order.revives is not None:
                dead = books.rows.get(order.revives)
                if dead is None or not dead.dead or order.revives in revived:
                    return _refusal(pool, "not_dead", pool.desk.waiting)
                revived.add(order.revives)
            key = _key(order)
            kept = pool.desk.joined(row.job, False, books.now)
            if kept is None and key is not None:
                kept = keyed.setdefault(key, row)
            if kept is not None and not row.is_same_call(kept):
                return replace(_refusal(pool, "key", pool.desk.waiting), holder=kept.job)
            if may_refuse(pool.spec.backpressure, may_block and order.revives is None):
                trial = _trial(trials, row, books.now)
                if trial.refuses(row, order.rerun_failed):
                    return _refusal(pool, "full", trial.waiting)
        return None

    def _enter(self, order: JobRequest, row: Row, holder: Holder | None) -> Added | Refusal:
        books, pool = self._books, row.pool
        turn = self._turn_of(order, pool)
        if isinstance(turn, Added | Refusal):
            return turn
        if pool.spec.name not in books.pools:
            books.open(pool)
        desk = pool.desk
        verdict = desk.admit(row, books.now, order.rerun_failed)
        if verdict is not desk.taken:
            # A submit that revives a job must be admitted now: a blocked one could give up.
            answer = self._carry_out(verdict, row, holder if order.revives is None else None)
        else:
            books.keep(row)
            books.accept(row)
            answer = Added(row.job, Admission.ACCEPTED)
        if turn is not None and isinstance(answer, Added) and answer.entry is Admission.ACCEPTED:
            books.log.append(ended_for(turn.job, order.on_busy), books.at)
            books.cancel(turn, order.job.submitted_by)
        return answer

    def _turn_of(self, order: JobRequest, pool: Pool) -> Row | Added | Refusal | None:
        """Return the turn that ends for a new one, or the verdict for it in a busy session."""
        books, desk, job = self._books, pool.desk, order.job
        if order.on_busy is OnBusy.ENQUEUE or desk.joined(job, order.rerun_failed, books.now):
            return None
        busy = desk.resolve_busy(job, order.on_busy)
        match busy.action:
            case BusyAction.REFUSE:
                assert busy.turn is not None
                return replace(_refusal(pool, "busy", desk.waiting), holder=busy.turn.job)
            case BusyAction.JOIN:
                assert busy.turn is not None
                id = busy.turn.job.id
                books.log.append([LogLine(inbox_of(id), TURN, order.call_record)], books.at)
                return Added(busy.turn.job, Admission.JOINED)
            case _:
                return busy.turn

    def _carry_out(self, verdict: Verdict[Row], row: Row, holder: Holder | None) -> Added | Refusal:
        books, desk = self._books, row.pool.desk
        match verdict:
            case Admitted(victim=victim):
                books.keep(row)
                books.accept(row)
                if victim is not None:
                    self._reject(victim, row.job.id)
                return Added(row.job, Admission.ACCEPTED)
            case Joined(entry=owner) if not row.is_same_call(owner):
                refusal = _refusal(row.pool, "key", desk.waiting)
                return replace(refusal, holder=owner.job)
            case Joined(entry=owner):
                return Added(
                    owner.job,
                    Admission.BLOCKED_SUBMITTER if owner.submitter_blocked else Admission.JOINED,
                )
            case Rejected():
                books.keep(row)
                books.note(audit.submitted(row.job))
                self._reject(row, None)
                return Added(row.job, Admission.REJECTED)
            case Parked() if holder is not None:
                books.park(row)
                row.holder = holder
                holder.parked[row.job.id] = row
                return Added(row.job, Admission.BLOCKED_SUBMITTER)
            case Parked():
                desk.dismiss(row)
                return _refusal(row.pool, "full", desk.waiting)
            case RefusedEntry():
                return _refusal(row.pool, "full", desk.waiting)

    def _reject(self, row: Row, replacement: str | None) -> None:
        """Record that the policy of its pool rejected a job."""
        books, pool = self._books, row.pool
        job = self._rejected(row)
        depth, most = pool.desk.waiting, capacity(pool.spec.backpressure)
        books.end(row, job, audit.dropped(job, replacement, depth, most))
        books.welcome(pool)

    def _rejected(self, row: Row) -> Job:
        policy = row.pool.spec.backpressure
        return lifecycle.reject(row.job, drop_reason(policy), drop_name(policy), self._books.at)

    def _revive(self, id: str, by: str, heir: str) -> None:
        """Record that another job replaces a dead one."""
        books = self._books
        dead = books.rows[id]
        dead.dead = False
        books.note(audit.acted_on(audit.RERUN, dead.job, by, heir, books.at))

    def _rows(self, orders: Sequence[JobRequest]) -> list[Row]:
        """Return the rows of requests, not stored yet."""
        pools, rows = self._books.pools, []
        new: dict[str, Pool] = {}
        try:
            for order in orders:
                name = order.job.pool
                pool = pools.get(name) or new.get(name)
                if pool is None:
                    pool = new[name] = Pool(undeclared(name))
                rows.append(self._row(order, pool))
        except (OverflowError, ValueError) as error:
            raise cannot_be_kept(error) from error
        self._expect_new(orders, rows)
        return rows

    def _expect_new(self, orders: Sequence[JobRequest], rows: Sequence[Row]) -> None:
        """Refuse known ids, unless the request's key belongs to a job anyway."""
        known = self._books.rows
        if len(rows) == 1 and rows[0].job.id not in known:
            return
        ids = {row.job.id for row in rows}
        if len(ids) == len(rows) and known.keys().isdisjoint(ids):
            return
        seen: set[str] = set()
        keys: set[Key] = set()
        for order, row in zip(orders, rows, strict=True):
            id, key = row.job.id, _key(order)
            owner = row.pool.desk.joined(row.job, order.rerun_failed, self._books.now)
            if (id in seen or id in known) and owner is None and key not in keys:
                raise known_already(id)
            seen.add(id)
            if key is not None:
                keys.add(key)

    def _row(self, order: JobRequest, pool: Pool) -> Row:
        now, at, job = self._books.now, self._books.at, order.job
        if order.delay is None and order.expires is None and job.run_at is None:
            job = replace(job, pool_id=pool.spec.id, status=Status.QUEUED, submitted_at=at)
            return Row(job, order.call_record, pool, now)
        job = replace(job, pool_id=pool.spec.id, status=Status.QUEUED)
        job, window, by_wall = arrival(job, order.delay, order.expires, now, at)
        row = Row(job, order.call_record, pool, now, window)
        row.by_wall = by_wall
        return row


def _refusal(pool: Pool, reason: str, waiting: int) -> Refusal:
    policy = pool.spec.backpressure
    if reason == "full" and isinstance(policy, FailFast):
        reason = "no_slot"
    return Refusal(reason, pool.spec.name, str(policy), pool.desk.running, waiting)


def _trial(trials: dict[Pool, Trial[Row]], row: Row, now: float) -> Trial[Row]:
    trial = trials.get(row.pool)
    if trial is None:
        trial = trials[row.pool] = Trial(row.pool.desk, now)
    return trial


def _key(order: JobRequest) -> Key | None:
    job = order.job
    return None if job.idempotency_key is None else (job.pool, job.tenant, job.idempotency_key)
