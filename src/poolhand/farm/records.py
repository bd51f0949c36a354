"""The roster: what a farm writes down of itself in the store, and what others wish of it.

A supervisor writes its record as a document that is gone soon after it: every face reads the same
counts. Who wants something of a farm leaves a wish; a signal says that there is one.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec import Struct

from poolhand.rules.job import Fault, Status
from poolhand.rules.values.plain import PlainView

FARMS = "farm/"  # the record of each, by its id
WISHES = "farm-wish/"  # what is wished of each, by the id of the farm, then of the wish
ANSWERS = "farm-answer/"  # by the id of the wish
TOPIC = "farm"  # the signal that something is wished, or answered
KEEP = 15.0  # seconds that a record stays without being written again
WRITE_EVERY = KEEP / 5  # at most that long after the last time a supervisor writes it again
SILENT_AFTER = 2.5 * WRITE_EVERY  # a record that is older has probably lost its supervisor
KEEP_WISH = 60.0
MOST_JOBS = 50  # of a worker that stand in a record; the rest is only counted
MOST_TROUBLES = 20
LONGEST_TEXT = 2_000


class WorkerState(StrEnum):
    """Where a worker process is in its life; a leaving one takes no more jobs."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    HUNG = "hung"


class FarmState(StrEnum):
    """Where a farm is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class RunningJob(PlainView, frozen=True, gc=False):
    """A job that runs in a worker."""

    id: str
    name: str
    pool: str
    since: datetime
    mark: str | None = None


class FinishedJob(PlainView, frozen=True, gc=False):
    """A job as its worker saw it end: over, or to be tried again."""

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

    `heard` is how many seconds ago it last showed life, `blocked` for how many its event loop has
    not turned. `memory` is in bytes. `completed` and `failed` count attempts. `leaving_at` is since
    when it takes no more jobs, or has been found hung.
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
    """Something that went wrong in a farm, in one line; a job may be to blame."""

    at: datetime
    text: str
    worker: str | None = None
    job: str | None = None


class FarmRecord(PlainView, frozen=True):
    """A farm: its bounds, its load and its workers.

    `demand` is how many jobs could run now, those that do included; `capacity` how many its ready
    workers can run at once. `wanted` is the number of workers that follows, which an `external`
    farm only tells. `completed` and `failed` count the attempts of all workers it ever had.
    `surge` is how many processes it may have beyond the maximum, `held` how many wanted workers
    it cannot start until leaving ones have ended.
    `pools` are those it serves; None: a record of an older version, which does not say.
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
        """Whether its supervisor has not written for so long that it is probably gone."""
        return self.age >= SILENT_AFTER


class ControlKind(StrEnum):
    """What can be wished of a farm; of one worker, if it is named: drain and snapshot."""

    DRAIN = "drain"  # finish what runs, then end; a worker is replaced
    RESTART = "restart"  # put a new worker in the place of each, one after the other
    BOUNDS = "bounds"  # other numbers of workers, at least and at most
    SNAPSHOT = "snapshot"  # tell what runs and what has lately ended


class ControlRequest(Struct, frozen=True):
    """What somebody wants of a farm."""

    id: str
    kind: ControlKind
    by: str
    worker: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    after: int = 0
    limit: int = 100


class Snapshot(PlainView, frozen=True):
    """What a farm, or one of its workers, runs and has lately finished, newest first.

    `finished` is a page; `after` goes on behind it, None at the end.
    """

    farm: str
    worker: str | None
    running: tuple[RunningJob, ...]
    finished: tuple[FinishedJob, ...]
    after: int | None = None


class ControlAnswer(PlainView, frozen=True):
    """What came of a wish: a sentence, and what was asked for."""

    done: bool
    text: str
    snapshot: Snapshot | None = None


T = TypeVar("T")


def write(record: FarmRecord | ControlRequest | ControlAnswer) -> bytes:
    return msgspec.json.encode(record)


def read(data: bytes, kind: type[T]) -> T | None:
    """Return what was written, None for what a newer version wrote that cannot be read here."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        return None
