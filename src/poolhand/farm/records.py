"""The records of a farm in the store: its state, control requests to it, and their answers.

A supervisor writes its state as a document that expires soon after the supervisor ends: every
interface reads the same counts. An operator controls a farm by writing a control request; a signal
announces it. A worker keeps a history of its recently finished jobs for snapshots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec import Struct

from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.plain import PlainView

FARMS = "farm/"  # farm records, by the id of the farm
REQUESTS = "farm-wish/"  # control requests, by the id of the farm, then of the request
ANSWERS = "farm-answer/"  # answers, by the id of the request
TOPIC = "farm"  # the signal for a new request or answer
KEEP = 15.0  # seconds until a record expires that is not written again
WRITE_EVERY = KEEP / 5  # most seconds between two writes of a supervisor's record
SILENT_AFTER = 2.5 * WRITE_EVERY  # the supervisor of an older record has probably died
KEEP_REQUEST = 60.0
MOST_JOBS = 50  # running jobs listed per worker in a record; the rest is only counted
MOST_TROUBLES = 20
LONGEST_TEXT = 2_000


class WorkerState(StrEnum):
    """The state of a worker process; a leaving one claims no more jobs."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    HUNG = "hung"


class FarmState(StrEnum):
    """The state of a farm."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class RunningJob(PlainView, frozen=True, gc=False):
    """A job running in a worker."""

    id: str
    name: str
    pool: str
    since: datetime
    mark: str | None = None


class FinishedJob(PlainView, frozen=True, gc=False):
    """A job whose attempt ended in a worker: finished, or to be retried."""

    id: str
    name: str
    pool: str
    status: Status
    attempts: int
    at: datetime
    ran: float | None
    worker: str = ""
    error: Fault | None = None


class WorkerRecord(PlainView, frozen=True):
    """A worker process as its supervisor knows it.

    `heard` is the seconds since its last message, `blocked` the seconds for which its event loop
    has been blocked. `memory` is in bytes. `completed` and `failed` count attempts. `leaving_at` is
    when it stopped claiming, or was found hung.
    """

    id: str
    pid: int
    state: WorkerState
    slots: int
    active: int
    stuck: int
    completed: int
    failed: int
    started_at: datetime
    heard: float
    memory: int
    blocked: float
    jobs: tuple[RunningJob, ...] = ()
    leaving_at: datetime | None = None
    leaving_why: str | None = None


class Trouble(PlainView, frozen=True):
    """A problem of a farm, in one line, with the job that may have caused it."""

    at: datetime
    text: str
    worker: str | None = None
    job: str | None = None


class FarmRecord(PlainView, frozen=True):
    """A farm: its bounds, its load and its workers.

    `demand` is how many jobs could run now, running ones included; `capacity` how many its ready
    workers can run at once. `wanted` is the resulting number of workers, which an `external` farm
    only reports. `completed` and `failed` count the attempts of all its workers since its start.
    `surge` is how many processes it may have beyond the maximum, `held` how many wanted workers
    it cannot start until leaving ones have ended.
    `pools` are those it serves; None in a record of an older version, which lacks the field.
    `age` is how many seconds ago the record was written, by the store's clock; its reader sets it.
    """

    id: str
    host: str
    pid: int
    app: str
    state: FarmState
    started_at: datetime
    written_at: datetime
    minimum: int
    maximum: int
    prefetch: int
    external: bool
    wanted: int
    demand: int
    capacity: int
    queued: int
    completed: int
    failed: int
    workers: tuple[WorkerRecord, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    surge: int = 1
    held: int = 0
    pools: tuple[str, ...] | None = None
    age: float = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the record is so old that its supervisor has probably died."""
        return self.age >= SILENT_AFTER


class ControlKind(StrEnum):
    """The kinds of control requests; drain and snapshot may name one worker."""

    DRAIN = "drain"  # finish the running jobs, then end; a single worker is replaced
    RESTART = "restart"  # replace every worker by a new one, one after the other
    BOUNDS = "bounds"  # set the minimum and maximum number of workers
    SNAPSHOT = "snapshot"  # return the running and recently finished jobs


class ControlRequest(Struct, frozen=True):
    """A request of an operator to a farm."""

    id: str
    kind: ControlKind
    by: str
    worker: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    after: int = 0
    limit: int = 100


class Snapshot(PlainView, frozen=True):
    """The running and recently finished jobs of a farm or of one worker, newest first.

    `finished` is a page; `after` is the cursor of the next one, None at the end.
    """

    farm: str
    worker: str | None
    running: tuple[RunningJob, ...]
    finished: tuple[FinishedJob, ...]
    after: int | None = None


class ControlAnswer(PlainView, frozen=True):
    """The answer to a control request: a sentence, and the snapshot if one was requested."""

    done: bool
    text: str
    snapshot: Snapshot | None = None


T = TypeVar("T")


def write(record: FarmRecord | ControlRequest | ControlAnswer) -> bytes:
    return msgspec.json.encode(record)


MOST_BYTES = 256 * 1024  # of one page


class History:
    """The jobs that ended last; pages are newest first, numbers are never reused."""

    def __init__(self, most: int) -> None:
        self._jobs: deque[tuple[int, FinishedJob]] = deque(maxlen=most)
        self.count = 0

    def add(self, job: FinishedJob) -> None:
        self.count += 1
        self._jobs.append((self.count, job))

    def newest(self, since: int, most: int) -> tuple[tuple[FinishedJob, ...], int]:
        """Return the newest jobs after a number, oldest first, and the last number."""
        # Copy into a list in one step: another thread adds jobs meanwhile.
        kept = list(self._jobs)
        found = tuple(job for number, job in kept if number > since)
        return found[-most:], kept[-1][0] if kept else since

    def page(self, after: int, limit: int) -> tuple[tuple[FinishedJob, ...], int | None]:
        """Return a page, newest first, of jobs below the number `after` (0: from the newest)."""
        found: list[FinishedJob] = []
        size, last = 0, 0
        for number, job in reversed(list(self._jobs)):
            if after and number >= after:
                continue
            size += len(msgspec.json.encode(job))
            if found and (size > MOST_BYTES or len(found) >= limit):
                return tuple(found), last
            found.append(job)
            last = number
        return tuple(found), None

    def snapshot(
        self, farm: str, worker: str | None, running: Iterable[RunningJob], after: int, limit: int
    ) -> Snapshot:
        finished, following = self.page(after, limit)
        return Snapshot(farm, worker, tuple(running), finished, following)


def finished(job: Job, worker: str) -> FinishedJob | None:
    """Return the record of a job that has ended; None if it has not."""
    if job.finished_at is None:
        return None
    error = None if job.error is None else _short(job.error)
    end = (job.status, job.attempts, job.finished_at, job.ran)
    return FinishedJob(job.id, job.name, job.pool, *end, worker, error)


def running(jobs: Sequence[Job]) -> tuple[RunningJob, ...]:
    """Return the records of running jobs."""
    return tuple(
        RunningJob(job.id, job.name, job.pool, job.started_at, job.marks[-1] if job.marks else None)
        for job in jobs
        if job.started_at is not None
    )


def _short(fault: Fault) -> Fault:
    texts = (fault.type, fault.message, fault.traceback)
    return Fault(*(text[-LONGEST_TEXT:] for text in texts))
