"""What a pool in memory reports: its events, its audit, and the counters of its jobs."""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from heapq import nlargest
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from poolhand.observe.events import Event, Events
from poolhand.observe.failures import FailureLog
from poolhand.pool.slots.attempt import PoolClock
from poolhand.rules import audit, lifecycle
from poolhand.rules.audit import Audit, AuditLine
from poolhand.rules.job import Job, Status, full_id
from poolhand.rules.outcome import is_self_cancelled
from poolhand.rules.queue.desk import Desk

if TYPE_CHECKING:
    from poolhand.pool.engine.work import Work


class Outbox:
    """Emits events in order, never in the middle of a change.

    A subscriber may inspect or use the pool: it sees a consistent state, and the events it causes
    are emitted after the event it received.
    """

    __slots__ = ("_events", "_flushing", "waiting")

    def __init__(self, events: Events) -> None:
        self.waiting: deque[Event] = deque()
        self._events = events
        self._flushing = False

    @property
    def live(self) -> bool:
        return self._events.live

    def put(self, event: Event) -> None:
        self.waiting.append(event)

    def flush(self) -> None:
        if self._flushing:
            return
        self._flushing = True
        try:
            while self.waiting:
                self._events.emit(self.waiting.popleft())
        finally:
            self._flushing = False


class Failure:
    """The error of a job and its traceback; `asked` is called when the failure is read."""

    __slots__ = ("error", "trace")

    def __init__(self, error: BaseException, trace: TracebackType | None) -> None:
        self.error = error
        self.trace = trace

    def asked(self) -> None:
        pass


class UnreadFailure(Failure):
    """The failure that a ticket holds: if the ticket is collected unread, the failure is logged.

    Only the ticket may reference it. Records of the pool hold a separate `Failure`.
    """

    __slots__ = ("_job", "_unread")

    def __init__(
        self, error: BaseException, trace: TracebackType | None, job: Job, unread: UnreadFailures
    ) -> None:
        super().__init__(error, trace)
        self._job: Job | None = job
        self._unread = unread

    def asked(self) -> None:
        self._job = None

    def __del__(self) -> None:
        job = self._job
        if job is not None:
            self._unread.collected(job)


def is_logged_unread(job: Job) -> bool:
    """Return whether the end of a job is logged unless its ticket is asked for it."""
    return job.status is Status.FAILED or is_self_cancelled(job.status, job.error)


class UnreadFailures:
    """Logs failures of collected tickets on the pool's thread: any thread can collect them."""

    def __init__(self, log: FailureLog, loop: AbstractEventLoop, thread: int) -> None:
        self.log = log
        self._loop = loop
        self._thread = thread

    def collected(self, job: Job) -> None:
        """Log a failure: directly on the pool's thread, else by a callback to its loop."""
        if sys.is_finalizing():
            return
        if get_ident() == self._thread:
            self.log.never_awaited(job)
            return
        try:
            self._loop.call_soon_threadsafe(self.log.never_awaited, job)
        except RuntimeError:
            self.log.never_awaited(job)


MOST_RECORDS = 10_000
CLOCK_SET = 0.001  # seconds by which the wall clock must differ to count as changed

Key = tuple[str, int]  # the head and the number of a job's id
FIRST, LAST = ("", 0), ("~", 0)  # before and after all ids


class AuditRun(Struct, frozen=True, gc=False):
    """The values needed to write the records of a successful attempt, as nearly all are.

    It holds plain values and the job record, which is the draft shared by its terms, but not the
    work: that would keep the job's result alive.
    """

    job: Job
    head: str
    number: int
    since: float
    began: float
    ended: float
    slot: int


class AuditFact(Struct, frozen=True, gc=False):
    """A record written at once; for a start, `key` is the job and `began` the attempt's start."""

    moment: float
    at: datetime
    record: Audit
    key: Key | None = None
    began: float | None = None

    @property
    def order(self) -> tuple[float, Key]:
        """The sort key: submits come first at their moment; other records keep their order."""
        if self.key is not None and type(self.record) is audit.Submitted:
            return self.moment, self.key
        return self.moment, FIRST if self.record.schema == CREATED else LAST


CREATED = f"poolhand.{audit.CREATE}.v1"


class AuditLog:
    """Collects facts and writes records when they are read: most jobs leave one `note`.

    The submit and the start of a job are noted with the end of its first attempt; for jobs that
    wait or run they are derived from the work. Sorting by moment puts all records in order.

    At the last read, ids up to `_until` had been assigned, and the submits of all those jobs but
    the `_parked` ones had been reported; for the jobs in `_running`, the start as well.
    """

    __slots__ = (
        "_clock",
        "_lines",
        "_notes",
        "_origin",
        "_parked",
        "_pool",
        "_running",
        "_until",
        "_written",
        "note",
    )

    def __init__(self, pool: tuple[str, str], clock: PoolClock) -> None:
        self._pool = pool
        self._clock = clock
        self._notes: deque[AuditRun | AuditFact] = deque(maxlen=MOST_RECORDS)
        self._lines: list[AuditLine] = []
        self._until = FIRST
        self._parked: frozenset[Key] = frozenset()
        self._running: dict[Key, float] = {}
        self._written = 0
        self._origin = clock.wall(), clock.now()
        self.note: Callable[[AuditRun | AuditFact], None] = self._notes.append

    def act(self, kind: str, by: str, detail: str = "") -> None:
        """Record an operation on the pool."""
        at = self._clock.wall()
        self._write(audit.acted(kind, self._pool, by, detail, at), at, self._clock.now())

    def act_on(self, kind: str, job: Job, now: float, by: str, detail: str = "") -> None:
        """Record an operation on a job."""
        at = self._clock.wall()
        self._write(audit.acted_on(kind, job, by, detail, at), at, now)

    def tried(self, work: Work, slot: int) -> None:
        """Record the start of an attempt that did not succeed; its outcome follows."""
        job = work.snapshot()
        assert job.started_at is not None
        if job.ran is None:
            self.note(_submit(work))
        record, key = audit.dequeued(job, slot), (work.head, work.number)
        self._written += 1
        self.note(AuditFact(work.began, job.started_at, record, key, work.began))

    def retried(self, job: Job, at: datetime, now: float) -> None:
        """Record that a job waits for its next attempt."""
        self._write(audit.retried(job, at), at, now)

    def ended(
        self, work: Work, now: float, replacement: str | None, depth: int, most: int | None
    ) -> None:
        """Record that a job is over without a value; if rejected, also the state of the queue."""
        job = work.job
        assert job.finished_at is not None
        if job.ran is None:
            self.note(_submit(work))
        rejected = job.status is Status.REJECTED
        record = audit.dropped(job, replacement, depth, most) if rejected else audit.ended(job)
        self._write(record, job.finished_at, now)

    def _write(self, record: Audit, at: datetime, now: float) -> None:
        self._written += 1
        self.note(AuditFact(now, at, record))

    def read(
        self, tally: Tally, desk: Desk[Work], running: Iterable[tuple[Work, int]], until: Key
    ) -> list[AuditLine]:
        """Return the latest records, given the running jobs with their slots and the last id."""
        self._look_at_clock()
        begun = list(running)
        found = [one for note in self._notes for one in self._expanded(note)]
        found += map(self._waiting, nlargest(MOST_RECORDS, self._unread(desk), key=_arrival))
        found += [one for work, slot in begun for one in self._begun(work, slot)]
        fresh = [one for one in found if not self._is_recorded(one)]
        fresh.sort(key=lambda one: one.order)
        # Every job has a submit, every success a start and an outcome.
        last = tally.submitted + 2 * tally.completed + self._written + len(begun)
        self._add(fresh, last)
        self._notes.clear()
        self._until = until
        self._parked = frozenset((work.head, work.number) for work in desk.blocked_submitters)
        self._running = {(work.head, work.number): work.began for work, _ in begun}
        return self._lines

    def _unread(self, waiting: Iterable[Work]) -> Iterator[Work]:
        """Yield the waiting jobs that have never run and whose submit was not reported."""
        for work in waiting:
            if work.job.ran is None and not self._is_known((work.head, work.number)):
                yield work

    def _add(self, fresh: list[AuditFact], last: int) -> None:
        """Number the new records; repeated reads return the same lines while they are kept."""
        fresh = fresh[-MOST_RECORDS:]
        first = last - len(fresh) + 1
        lines = [
            AuditLine(first + place, one.at, audit.kind_of(one.record), one.record)
            for place, one in enumerate(fresh)
        ]
        self._lines = (self._lines + lines)[-MOST_RECORDS:]

    def _is_recorded(self, one: AuditFact) -> bool:
        if one.key is None:
            return False
        if one.began is None:
            return self._is_known(one.key)
        return self._running.get(one.key) == one.began

    def _is_known(self, key: Key) -> bool:
        return key <= self._until and key not in self._parked

    def _expanded(self, note: AuditRun | AuditFact) -> Iterator[AuditFact]:
        if isinstance(note, AuditFact):
            yield note
            return
        job, key = self._named(note), (note.head, note.number)
        if job.ran is None:
            yield AuditFact(note.since, job.submitted_at, audit.submitted(job), key)
        if job.status is not Status.RUNNING:
            job = lifecycle.start(job, self._wall_at(note.began), note.began - note.since)
        assert job.started_at is not None
        start = audit.dequeued(job, note.slot)
        yield AuditFact(note.began, job.started_at, start, key, note.began)
        at = self._wall_at(note.ended)
        end = audit.ended(lifecycle.complete(job, None, at, note.ended - note.began))
        yield AuditFact(note.ended, at, end)

    def _waiting(self, work: Work) -> AuditFact:
        # Do not write the job's own record for this: many jobs may wait.
        job = self._named(work)
        record = audit.submitted(job)
        return AuditFact(work.since, job.submitted_at, record, (work.head, work.number))

    def _named(self, of: AuditRun | Work) -> Job:
        """Return the record with its id and the time of its submit."""
        if of.job.id:
            return of.job
        id, at = full_id(of.head, of.number), self._wall_at(of.since)
        return replace(of.job, id=id, submitted_at=at)

    def _begun(self, work: Work, slot: int) -> Iterator[AuditFact]:
        job = work.snapshot()
        assert job.started_at is not None
        if job.ran is None:
            yield _submit(work)
        key, start = (work.head, work.number), audit.dequeued(job, slot)
        yield AuditFact(work.began, job.started_at, start, key, work.began)

    def _wall_at(self, moment: float) -> datetime:
        wall, now = self._origin
        return wall + timedelta(seconds=moment - now)

    def _look_at_clock(self) -> None:
        """Keep the wall-clock origin unless the clock was set: equal moments give equal times."""
        wall, now = self._clock.wall(), self._clock.now()
        if abs((wall - self._wall_at(now)).total_seconds()) > CLOCK_SET:
            self._origin = wall, now


def _arrival(work: Work) -> tuple[float, Key]:
    return work.since, (work.head, work.number)


def _submit(work: Work) -> AuditFact:
    job = work.snapshot()
    return AuditFact(work.since, job.submitted_at, audit.submitted(job), (work.head, work.number))


class Tally:
    """Counts jobs; `submitted` counts every job that was given an id and a record."""

    __slots__ = ("cancelled", "completed", "expired", "failed", "rejected", "submitted")

    def __init__(self) -> None:
        self.submitted = self.completed = self.failed = 0
        self.cancelled = self.expired = self.rejected = 0

    def count(self, status: Status) -> None:
        """Count a job that ended so."""
        setattr(self, status.value, getattr(self, status.value) + 1)
