"""Events: the closed list of what poolhand tells, and the one way to hear it."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable

from msgspec import Struct

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
    before: int
    after: int


class PoolPaused(Event, frozen=True):
    """No further job starts until the pool is resumed."""


class PoolResumed(Event, frozen=True):
    pass


class DrainStarted(Event, frozen=True):
    waiting: int
    running: int
    timeout: float


class DrainSlow(Event, frozen=True):
    """More than 80 % of the drain's time is gone and work is left."""

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
    """A submit met its own idempotency key and got the job that is already there."""

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
    """A job that is over still occupies its slot: its code does not stop."""

    job: Job
    slot: str


class SlotFreed(Event, frozen=True):
    """A stuck slot is usable again."""

    slot: str


class DeadlockFound(Event, frozen=True):
    """A job waits for a job of its own pool that can never start."""

    job_id: str
    awaited_id: str


class CallbackFailed(Event, frozen=True):
    """The user's `on_dead` raised."""

    callback: str
    error: str


Subscriber = Callable[[Event], None]


class Events:
    """Hands every event to every subscriber; unless `live`, callers do not even build one."""

    __slots__ = ("_subscribers", "live")

    def __init__(self) -> None:
        self.live = False
        self._subscribers: tuple[tuple[object, Subscriber], ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with each event from now on; returns the way to end that."""
        mark = object()
        self._subscribers = (*self._subscribers, (mark, subscriber))
        self.live = True

        def unsubscribe() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one[0] is not mark)
            self.live = bool(self._subscribers)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for _, subscriber in self._subscribers:
            try:
                subscriber(event)
            except (Exception, CancelledError):
                # A listener that breaks must not break the work it listens to. The event is not
                # shown whole: what a job returned is not for logs.
                name = type(event).__name__
                logging.getLogger("poolhand").exception("a subscriber failed on %s", name)


EVENTS = Events()


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call `subscriber` with every event of every pool in this process."""
    return EVENTS.subscribe(subscriber)
