"""Failures of in-memory jobs that are never read: each is logged when its ticket is collected."""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop
from threading import get_ident
from types import TracebackType

from poolhand.observe.failures import FailureLog
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import is_self_cancelled


class Failure:
    """The error of a job and its traceback; `asked` is called when the failure is read."""

    __slots__ = ("error", "trace")

    def __init__(self, error: BaseException, trace: TracebackType | None) -> None:
        self.error = error
        self.trace = trace

    def asked(self) -> None:
        pass


class UnheardFailure(Failure):
    """The failure that a ticket holds: if the ticket is collected unread, the failure is logged.

    Only the ticket may reference it. Records of the pool hold a separate `Failure`.
    """

    __slots__ = ("_job", "_unheard")

    def __init__(
        self, error: BaseException, trace: TracebackType | None, job: Job, unheard: Unheard
    ) -> None:
        super().__init__(error, trace)
        self._job: Job | None = job
        self._unheard = unheard

    def asked(self) -> None:
        self._job = None

    def __del__(self) -> None:
        job = self._job
        if job is not None:
            self._unheard.collected(job)


def is_to_be_heard(job: Job) -> bool:
    """Return whether the end of a job is logged unless its ticket is asked for it."""
    return job.status is Status.FAILED or is_self_cancelled(job.status, job.error)


class Unheard:
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
