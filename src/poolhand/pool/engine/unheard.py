"""Failures of a pool in memory that are never asked for: each is logged when its ticket is gone."""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop
from threading import get_ident
from types import TracebackType

from poolhand.observe.failures import FailureLog
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import is_self_cancelled


class Failure:
    """What a job raised, and where; `asked` is called when somebody gets to know it."""

    __slots__ = ("error", "trace")

    def __init__(self, error: BaseException, trace: TracebackType | None) -> None:
        self.error = error
        self.trace = trace

    def asked(self) -> None:
        pass


class UnheardFailure(Failure):
    """The failure that a ticket holds: if it goes with the ticket unasked, it is logged.

    So the ticket must be all that holds it. Records of the pool hold a `Failure` of their own.
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
    """Tell whether the end of a job is logged unless its ticket is asked for it."""
    return job.status is Status.FAILED or is_self_cancelled(job.status, job.error)


class Unheard:
    """Logs failures whose tickets are gone, on the thread of the pool: objects end on any."""

    def __init__(self, log: FailureLog, loop: AbstractEventLoop, thread: int) -> None:
        self.log = log
        self._loop = loop
        self._thread = thread

    def collected(self, job: Job) -> None:
        """Log a failure; at once, unless this is another thread than that of the pool."""
        if sys.is_finalizing():
            return
        if get_ident() == self._thread:
            self.log.never_awaited(job)
            return
        try:
            self._loop.call_soon_threadsafe(self.log.never_awaited, job)
        except RuntimeError:
            self.log.never_awaited(job)
