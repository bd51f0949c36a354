"""What a step leaves to report: events wait until it is done, failures until they are read."""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop
from collections import deque
from threading import get_ident
from types import TracebackType

from poolhand.observe.events import Event, Events
from poolhand.observe.failures import FailureLog
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import is_self_cancelled


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
