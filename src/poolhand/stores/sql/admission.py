"""Admission of batches to a SQL store: all jobs of a batch, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
from poolhand.rules.queue.entry import Window, arrival
from poolhand.rules.queue.gates import TURN, BusyAction, OnBusy
from poolhand.rules.queue.stored_desk import may_refuse, undeclared
from poolhand.rules.streams import inbox_of, rollbacks_of
from poolhand.stores.sql.log import ROW_LINES
from poolhand.stores.sql.pools import StoredPool
from poolhand.stores.sql.rows import QUEUED, JobRow, encode, terms_of
from poolhand.stores.sql.sessions import SessionUsers
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.unit_of_work import JOBS, NEW_JOB, NEW_QUEUED, TURNS, json

MANY = 250  # jobs from which rows are streamed in a statement of their own while they are generated
NOT_USER = "user"  # why a turn is refused whose session belongs to another user
NOT_CALL = "key"  # why a job is refused whose idempotency key stands for another call
CALL_RECORD = "SELECT brief FROM poolhand_jobs WHERE seq = ?"
REVIVE = "UPDATE poolhand_ends SET dead = 0 WHERE seq = ?"


class _Refused(Exception):
    """A job request was refused, and its batch with it."""

    def __init__(
        self, pool: str, reason: str, waiting: int | None = None, holder: Job | None = None
    ) -> None:
        self.pool = pool
        self.reason = reason
        self.waiting = waiting
        self.holder = holder


class _Alike(NamedTuple):
    """The encoded parts that jobs with the same terms share.

    `head` and `tail` surround the id of a job in its audit record of the submit.
    """

    terms: tuple[Any, ...]
    ordered: bytes
    head: bytes
    tail: bytes


def _alike(job: Job, terms: tuple[Any, ...]) -> _Alike:
    before, _, behind = json(audit.submitted(job)).partition(b'"task_id":' + json(job.id))
    return _Alike(terms, encode(terms), before + b'"task_id":', behind)


class StoredAdmission:
    """Passes job requests to the desks of their pools and carries out the verdicts."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._unit = steps.unit
        self._revived: set[str] = set()
        self._users = SessionUsers(steps.unit)
        self._alike = _Alike((), b"", b"", b"")

    def expect(self, jobs: Iterable[Job]) -> None:
        """Load what the admission of these jobs will need."""
        self._users.load(jobs)

    def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        """Admit batches, each independently."""
        self.expect(request.job for batch in batches for request in batch.requests)
        return [self.take(batch) for batch in batches]

    def take(self, batch: JobBatch) -> tuple[Added, ...] | Refusal:
        """Admit a batch; a blocked submitter waits under the lease of the batch's owner.

        A single request needs no savepoint: it is refused before anything is written for it.
        """
        requests = batch.requests
        free = self._taken_unasked(requests)
        if free is not None:
            return self._queue(requests, free)
        refusal = self._stranger(requests)
        if refusal is not None:
            return refusal
        self._revived.clear()
        owner = self._blocked_owner(batch)
        undo = len(requests) > 1 and self._may_fail(requests, owner is not None)
        execute = self._unit.tables.execute
        topics = set(self._unit.topics)
        if undo:
            self._unit.close()
            execute("SAVEPOINT batch")
        try:
            return tuple([self._enter(request, owner) for request in requests])
        except _Refused as refused:
            if undo:
                execute("ROLLBACK TO batch")
                self._steps.undo(topics)
                self._users.undo()
            return self._refusal(refused)
        finally:
            if undo:
                execute("RELEASE batch")

    def _stranger(self, requests: Sequence[JobRequest]) -> Refusal | None:
        """Return the refusal of a batch with a turn of another user's session."""
        jobs = [request.job for request in requests if request.job.session is not None]
        if not jobs:
            return None
        self._users.load(jobs)
        job = self._users.wrong_owner(jobs)
        return None if job is None else self._refusal(_Refused(job.pool, NOT_USER))

    def _blocked_owner(self, batch: JobBatch) -> int | None:
        """Return the number of the batch's owner if one of its pools may block submitters."""
        for request in batch.requests:
            pool = self._steps.pools.named(request.job.pool)
            policy = None if pool is None else pool.spec.backpressure
            if isinstance(policy, Bounded) and policy.on_full is OnFull.BLOCK_SUBMITTER:
                return self._steps.owner(batch.owner)
        return None

    def arrive(self, row: JobRow) -> None:
        """Admit a job that a user's transaction has written.

        The submitter's transaction has committed, so admit it even if the pool is full, unless the
        policy can evict.
        """
        steps, now = self._steps, self._unit.now
        pool = steps.pools.no(row.pool)
        rerun, row.by_wall = bool(row.rank), bool(row.turn)
        opens_at, closes_at = row.ready_at or None, row.closes_at
        row.window = None if opens_at is closes_at is None else Window(opens_at, closes_at)
        row.due_at = None
        row.job = lifecycle.place(row.job, Status.QUEUED)
        if self._users.wrong_owner([row.job]) is not None:
            self._turn_away(row, "its session belongs to another user", NOT_USER)
            return
        if row.job.idempotency_key is not None:
            (row.call_record,) = self._unit.tables.execute(CALL_RECORD, (row.seq,)).fetchone()
        verdict = pool.admit(row, now, rerun)
        match verdict:
            case Joined(entry=other):
                same = row.is_same_call(other)
                which = "job" if same else "another call, job"
                reason = f"its idempotency key stands for {which} {other.job.id}"
                self._turn_away(row, reason, "joined" if same else NOT_CALL)
            case Parked() | RefusedEntry():
                if isinstance(verdict, Parked):
                    pool.dismiss(row)
                pool.accept(row, now)
                steps.accept(row)
                self._users.begin(row.job)
            case _:
                self._carry_out(verdict, row, pool, None)

    def _turn_away(self, row: JobRow, reason: str, policy: str) -> None:
        """Reject a job that a user's transaction has written and that cannot be admitted."""
        self._unit.note(audit.submitted(row.job))
        job = lifecycle.reject(row.job, reason, policy, self._unit.at)
        self._steps.end(row, job, audit.ended(job))

    def _may_fail(self, requests: Sequence[JobRequest], may_block: bool) -> bool:
        for request in requests:
            if request.revives is not None or request.job.idempotency_key is not None:
                return True
            pool = self._steps.pools.named(request.job.pool)
            if pool is not None and may_refuse(pool.spec.backpressure, may_block):
                return True
        return False

    def _refusal(self, refused: _Refused) -> Refusal:
        pool = self._steps.pools.named(refused.pool)
        spec = undeclared(refused.pool) if pool is None else pool.spec
        policy, reason = spec.backpressure, refused.reason
        if reason == "full" and isinstance(policy, FailFast):
            reason = "no_slot"
        running, waiting = (0, 0) if pool is None else pool.counted()
        if refused.waiting is not None:
            waiting = refused.waiting
        return Refusal(reason, spec.name, str(policy), running, waiting, refused.holder)

    def _enter(self, request: JobRequest, owner: int | None) -> Added:
        if request.revives is not None:
            self._expect_dead(request)
        pool = self._steps.pools.named(request.job.pool)
        if pool is None:
            pool = self._steps.pools.open(undeclared(request.job.pool))
        turn = self._turn_of(request, pool)
        if isinstance(turn, Added):
            return turn
        row = self._row(request, pool)
        # Registered before the decision: the steps that admission triggers may look it up.
        self._unit.rows[row.seq] = row
        verdict = pool.admit(row, self._unit.now, request.rerun_failed)
        # A request that revives a dead job must not block: if it is withdrawn, no job is left.
        added = self._carry_out(verdict, row, pool, owner if request.revives is None else None)
        if request.revives is not None and added.entry in (Admission.ACCEPTED, Admission.JOINED):
            self._revive(request.revives, request.job.submitted_by, added.job.id)
        if request.triggers is not None and added.entry is not Admission.REJECTED:
            by, id, at = request.job.submitted_by, request.triggers, self._unit.at
            self._unit.note(audit.acted_on(audit.SCHEDULE_TRIGGER, added.job, by, id, at))
        if turn is not None and added.entry is Admission.ACCEPTED:
            self._unit.append_lines(ended_for(turn.job, request.on_busy))
            self._steps.cancel(turn.job.id, request.job.submitted_by)
        return added

    def _turn_of(self, request: JobRequest, pool: StoredPool) -> JobRow | Added | None:
        """Return the turn to end for a new job, the result if the job joins a turn, or None."""
        job, now = request.job, self._unit.now
        if (
            request.on_busy is OnBusy.ENQUEUE
            or pool.joined(job, request.rerun_failed, now) is not None
        ):
            return None
        busy = pool.resolve_busy(job, request.on_busy)
        match busy.action:
            case BusyAction.REFUSE:
                assert busy.turn is not None
                raise _Refused(pool.spec.name, "busy", holder=busy.turn.job)
            case BusyAction.JOIN:
                assert busy.turn is not None
                id = busy.turn.job.id
                self._unit.append_lines([LogLine(inbox_of(id), TURN, request.call_record)])
                return Added(busy.turn.job, Admission.JOINED)
            case _:
                return busy.turn

    def _taken_unasked(self, requests: Sequence[JobRequest]) -> StoredPool | None:
        """Return the pool that accepts all requests without a decision, or None."""
        name = requests[0].job.pool if requests else ""
        pool = self._steps.pools.named(name)
        if pool is None or not pool.takes_all:
            return None
        for request in requests:
            job = request.job
            if (
                job.pool != name
                or job.session is not None
                or job.idempotency_key is not None
                or job.run_at is not None
                or request.delay is not None
                or request.expires is not None
                or request.revives is not None
                or request.triggers is not None
            ):
                return None
        return pool

    def _queue(self, requests: Sequence[JobRequest], pool: StoredPool) -> tuple[Added, ...]:
        """Queue jobs that need no decision."""
        unit, count, added = self._unit, len(requests), list[Added]()
        seqs, turns = unit.numbers.take(JOBS, count), unit.numbers.take(TURNS, count)
        jobs = self._job_rows(zip(seqs, requests, strict=True), pool, added)
        waits = self._queue_rows(zip(seqs, turns, added, strict=True), pool)
        if count < MANY:
            unit.new_jobs += jobs
            unit.new_queued += waits
        else:
            unit.tables.stream(NEW_JOB, jobs)
            unit.tables.stream(NEW_QUEUED, waits)
        unit.topics.add("ready")
        pool.waiting += count
        pool.queue.size += count
        return tuple(added)

    def _job_rows(
        self, requests: Iterable[tuple[int, JobRequest]], pool: StoredPool, added: list[Added]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of jobs; append their audit records and results."""
        unit, no, pool_id = self._unit, pool.no, pool.spec.id
        at, lines, queued, taken = unit.at, unit.lines, Status.QUEUED, Admission.ACCEPTED
        stamp = unit.stamp
        known, ordered, head, tail = self._alike
        for seq, request in requests:
            job = replace(request.job, pool_id=pool_id, status=queued, submitted_at=at)
            id, terms = job.id, terms_of(job)
            if terms != known:
                known, ordered, head, tail = self._alike = _alike(job, terms)
            lines.append((audit.SUBMIT, b"%b%b%b" % (head, json(id), tail)))
            added.append(Added(job, taken))
            if len(added) % ROW_LINES == 0:
                lines.pack()
            line = (
                seq,
                id,
                no,
                job.name,
                job.key,
                None,
                job.tenant,
                None,
                ordered,
                request.call_record,
            )
            yield (*line, stamp, job.user)

    def _queue_rows(
        self, added: Iterable[tuple[int, int, Added]], pool: StoredPool
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the queue rows of jobs."""
        no, now, by_level = pool.no, self._unit.now, pool.by_level
        for seq, turn, one in added:
            rank = (-one.job.priority, turn) if by_level else pool.position(one.job, seq, turn)
            yield (seq, no, QUEUED, *rank, now)

    def _carry_out(
        self, verdict: Verdict[JobRow], row: JobRow, pool: StoredPool, owner: int | None
    ) -> Added:
        steps = self._steps
        match verdict:
            case Admitted(victim=victim):
                steps.accept(row)
                self._users.begin(row.job)
                if victim is not None:
                    self._reject(victim, pool, row.job.id)
                return Added(row.job, Admission.ACCEPTED)
            case Joined(entry=other):
                del self._unit.rows[row.seq]
                if not row.is_same_call(other):
                    raise _Refused(pool.spec.name, NOT_CALL, holder=other.job)
                return Added(
                    other.job,
                    Admission.BLOCKED_SUBMITTER if other.submitter_blocked else Admission.JOINED,
                )
            case Rejected():
                self._unit.note(audit.submitted(row.job))
                self._reject(row, pool, None)
                return Added(row.job, Admission.REJECTED)
            case Parked() if owner is not None:
                row.owner = owner
                self._users.begin(row.job)
                return Added(row.job, Admission.BLOCKED_SUBMITTER)
            case Parked():
                pool.turn_away(row)
                raise _Refused(pool.spec.name, "full", pool.waiting)
            case RefusedEntry():
                del self._unit.rows[row.seq]
                raise _Refused(pool.spec.name, "full", pool.waiting)

    def _reject(self, row: JobRow, pool: StoredPool, replacement: str | None) -> None:
        """Record that the policy of its pool rejected a job."""
        policy = pool.spec.backpressure
        job = lifecycle.reject(row.job, drop_reason(policy), drop_name(policy), self._unit.at)
        record = audit.dropped(job, replacement, pool.waiting, capacity(policy))
        self._steps.end(row, job, record)
        self._steps.welcome(pool)

    def _expect_dead(self, request: JobRequest) -> None:
        assert request.revives is not None
        dead = self._unit.row_named(request.revives)
        if dead is None or not dead.dead or request.revives in self._revived:
            raise _Refused(request.job.pool, "not_dead")
        self._revived.add(request.revives)

    def _revive(self, id: str, by: str, successor: str) -> None:
        """Record that another job replaces a dead one."""
        unit = self._unit
        dead = unit.row_named(id)
        assert dead is not None
        dead.dead = False
        unit.tables.execute(REVIVE, (dead.seq,))
        unit.note(audit.acted_on(audit.RERUN, dead.job, by, successor, unit.at))

    def _row(self, request: JobRequest, pool: StoredPool) -> JobRow:
        unit = self._unit
        job = replace(request.job, pool_id=pool.spec.id, status=Status.QUEUED)
        job, window, by_wall = arrival(job, request.delay, request.expires, unit.now, unit.at)
        row = JobRow(job, pool.no, unit.now, window)
        row.seq = unit.numbers.next(JOBS)
        row.call_record, row.by_wall, row.fresh = request.call_record, by_wall, True
        return row


def ended_for(turn: Job, on_busy: OnBusy) -> list[LogLine]:
    """Return the line that invalidates the writes of a turn that is rolled back."""
    if on_busy is not OnBusy.ROLLBACK or turn.session is None:
        return []
    return [LogLine(rollbacks_of(turn.tenant, turn.session), TURN, turn.id.encode())]
