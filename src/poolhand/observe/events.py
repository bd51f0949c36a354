"""Events: the complete list of events that poolhand emits, and how to subscribe to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import Context
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Protocol

from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.rules.job import Job


class Event(Struct, frozen=True, tag=True, tag_field="event"):
    """The root of all events; `pool` is the name of the pool it happened in."""

    pool: str


class PoolStarted(Event, frozen=True):
    pool_id: str
    max_concurrent: int
    queue: str
    backpressure: str


class PoolResized(Event, frozen=True):
    """The number of slots changed; `why` is "asked", or the observation of the autoscaler."""

    before: int
    after: int
    why: str = "asked"


class PoolPaused(Event, frozen=True):
    """No further job starts until the pool is resumed."""


class PoolResumed(Event, frozen=True):
    pass


class DrainStarted(Event, frozen=True):
    waiting: int
    running: int
    timeout: float


class DrainSlow(Event, frozen=True):
    """More than 80 % of the drain's time has passed and work is left."""

    waiting: int
    running: int
    seconds_left: float


class PoolDrained(Event, frozen=True):
    """The figures of the drain's report."""

    submitted: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    expired: int
    stuck: int
    seconds: float


class StatsTaken(Event, frozen=True):
    """The figures of `pool.stats()`, every ten seconds."""

    queue_depth: int
    submitted: int
    completed: int
    failed: int
    in_flight: int


class JobSubmitted(Event, frozen=True):
    job: Job


class JobJoined(Event, frozen=True):
    """A submit with a known idempotency key returned the existing job."""

    job: Job


class JobStarted(Event, frozen=True):
    job: Job
    slot: str


class JobMarked(Event, frozen=True):
    """A running job was asked to stop: soft_timeout, hard_timeout or cancel."""

    job: Job
    mark: str


class JobRetried(Event, frozen=True):
    """An attempt is over and the job will run again at `job.run_at`."""

    job: Job


class JobEnded(Event, frozen=True):
    """A job reached its final state, whichever it is."""

    job: Job


class SubmitterParked(Event, frozen=True):
    """A submitter waits because the pool is full."""

    job: Job
    blocked_submitters: int


class SubmitRefused(Event, frozen=True):
    """A submit raised; nothing was recorded."""

    code: str
    policy: str


class SlotStuck(Event, frozen=True):
    """A finished job still occupies its slot: its code does not stop."""

    job: Job
    slot: str


class SlotFreed(Event, frozen=True):
    """A stuck slot is usable again."""

    slot: str


class DeadlockFound(Event, frozen=True):
    """A job waits for a job that can never start."""

    job_id: str
    awaited_id: str
    text: str = ""


class WorkerBound(Event, frozen=True):
    """All slots are busy and the backlog grows: more slots would help, a longer queue would not."""

    workers: int
    backlog: int


class PoisonSuspected(Event, frozen=True):
    """Attempts keep failing and none completes."""

    completed: int
    failed: int


class QueueHigh(Event, frozen=True):
    """A bounded queue stays more than 80 % full."""

    waiting: int
    capacity: int


class ExecutorSmall(Event, frozen=True):
    """Calls of busy jobs wait for a thread: the loop's default executor is too small."""

    threads: int
    waiting: int
    running: int


class WorkerVanished(Event, frozen=True):
    """The process or task that ran a job is gone without having ended the job."""

    job: Job
    slot: str
    why: str


class LoopBlocked(Event, frozen=True):
    """The event loop has not turned for `seconds` and is still blocked.

    Emitted at once, by the thread that watches the loop. `job` is the job whose code blocks it,
    None if it is no job's code; `stack` is where that code is, innermost call last.
    """

    job: Job | None
    seconds: float
    stack: str


class CallbackFailed(Event, frozen=True):
    """The user's `on_dead` raised."""

    callback: str
    error: str


class JobSetAside(Event, frozen=True):
    """A worker leaves a job to others because it lacks what `cause` names; once per cause."""

    job: Job
    cause: str
    hint: str = ""
    served: bool = False  # another connected worker has its task, so this is no problem


class LeaseLost(Event, frozen=True):
    """This process lost the lease of a running job: the job is stopped, its result ignored."""

    job: Job


class OwnerReaped(Event, frozen=True):
    """A process that held leases is dead; its jobs run again or have failed."""

    host: str
    pid: int
    job_ids: tuple[str, ...]


class SessionFreed(Event, frozen=True):
    """A session was blocked although no job held it; it was released and its next turn can run."""

    session: str


class StoreTrouble(Event, frozen=True):
    """An operation that stored jobs depend on fails for now; it is retried."""

    what: str
    error: str


class FarmStarted(Event, frozen=True):
    """A supervisor starts; `pool` is empty, as in all events of a farm."""

    farm: str
    app: str
    minimum: int
    maximum: int
    slots: int


class FarmScaled(Event, frozen=True):
    """The target number of worker processes changed."""

    before: int
    after: int
    why: str


class FarmTrouble(Event, frozen=True):
    """A problem in a farm, in one line, with the worker or job concerned, if any."""

    text: str
    worker: str | None = None
    job_id: str | None = None


class FarmStopping(Event, frozen=True):
    """The farm claims no more jobs; running jobs have `grace` seconds to end, None: no limit."""

    farm: str
    grace: float | None


class FarmStopped(Event, frozen=True):
    farm: str
    completed: int
    failed: int
    handed_back: tuple[str, ...] = ()  # jobs that its workers did not finish in time


class ProcessStarted(Event, frozen=True):
    """A worker process starts."""

    worker: str
    pid: int


class ProcessReady(Event, frozen=True):
    """A worker process is ready to claim jobs, that many seconds after its start."""

    worker: str
    seconds: float


class ProcessLeaving(Event, frozen=True):
    """A worker process claims no more jobs and ends when its running jobs are over."""

    worker: str
    why: str


class ProcessEnded(Event, frozen=True):
    """A worker process ended as requested."""

    worker: str
    completed: int
    failed: int
    handed_back: int


Subscriber = Callable[[Event], None]


class Tracer(Protocol):
    """The hooks that tracing needs besides events: the contexts of submitters and of runs.

    Contexts are not entered. `submitted` is called for every job with a record, `started` for every
    attempt before its code begins; `trace_context`: for another process.
    """

    def submitted(self, job: Job, context: Context, at: datetime, blocked: bool) -> None: ...

    def refused(self, pool: str, pool_id: str, code: str) -> None: ...

    def started(self, job: Job, slot_index: int, context: Context) -> None: ...

    def trace_context(self, context: Context) -> Callable[[], object] | None: ...


class Events:
    """Calls every subscriber with every event; unless `live`, callers do not build events."""

    __slots__ = ("_subscribers", "live", "reported", "tracer")

    def __init__(self) -> None:
        self.live = False
        self.tracer: Tracer | None = None
        self.reported: tuple[tuple[type[Event], ...], ...] = ()  # types that subscribers log
        self._subscribers: tuple[tuple[object, Subscriber], ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with each event from now on; return a function that ends this."""
        _check(subscriber)
        mark = object()
        self._subscribers = (*self._subscribers, (mark, subscriber))
        self.live = True

        def unsubscribe() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one[0] is not mark)
            self._look()

        return unsubscribe

    def trace(self, tracer: Tracer) -> Callable[[], None]:
        """Pass the contexts of jobs to `tracer` from now on; return a function that ends this."""
        if self.tracer is not None:
            raise UsageError("these events are already traced; end that first")
        self.tracer = tracer
        self._look()

        def untrace() -> None:
            if self.tracer is tracer:
                self.tracer = None
                self._look()

        return untrace

    def _look(self) -> None:
        self.live = bool(self._subscribers) or self.tracer is not None

    def emit(self, event: Event) -> None:
        for _, subscriber in self._subscribers:
            try:
                subscriber(event)
            except KeyboardInterrupt:
                raise
            except BaseException:
                # A failing subscriber must not break the work it observes. The event is not logged
                # in full: the results of jobs do not belong in logs.
                name = type(event).__name__
                logging.getLogger("poolhand").exception("a subscriber failed on %s", name)


def _check(subscriber: object) -> None:
    if not callable(subscriber) or iscoroutinefunction(subscriber):
        raise UsageError(
            f"subscribe({subscriber!r}) is not allowed; give a plain function of one event"
        )


EVENTS = Events()


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call `subscriber` with every event of every pool in this process."""
    return EVENTS.subscribe(subscriber)
