"""Log failures on the logger "poolhand" by default, without a subscriber.

Nothing is configured here: if the program does not configure logging, Python writes warnings and
errors to stderr. Lines that a subscriber such as `log_events` already logs are not repeated.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from weakref import finalize

from poolhand.observe.events import Event, Events, JobEnded, JobRetried, JobSetAside, LeaseLost
from poolhand.observe.throttle import HeldLines, Throttle
from poolhand.rules.causes import call_of, key_of, task_of
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import SELF_CANCELLED, is_self_cancelled
from poolhand.rules.values.escape import indented, safe

LOG = logging.getLogger("poolhand")
LONGEST_MESSAGE = 500
LONGEST_NAME = 200


def report(events: Events, kinds: tuple[type[Event], ...]) -> Callable[[], None]:
    """Record that a subscriber logs events of these types; return a function that undoes it."""
    events.reported = (*events.reported, kinds)

    def end() -> None:
        # By identity: another subscriber may log the same types.
        left = [one for one in events.reported if one is not kinds]
        events.reported = tuple(left)

    return end


def is_reported(events: Events, kind: type[Event]) -> bool:
    """Return whether a subscriber logs events of a type."""
    return any(issubclass(kind, kinds) for kinds in events.reported)


def warn(text: str, kind: type[Event] | None = None, events: Events | None = None) -> None:
    """Log a warning, escaped, unless a subscriber logs events of that type."""
    if kind is None or events is None or not is_reported(events, kind):
        LOG.warning("%s", safe(text))


class FailureLog:
    """Logs failed attempts, dead jobs and lost leases of one worker or pool, throttled.

    Used on one event loop, whose timer logs the summary of held lines. Without a loop the owner
    calls `look` periodically. Unless `throttled`, nothing is held back.
    """

    def __init__(
        self,
        loop: AbstractEventLoop | None,
        now: Callable[[], float],
        events: Events,
        throttled: bool = True,
    ) -> None:
        self._loop = loop
        self._throttled = throttled
        self._now = now
        self._events = events
        self._throttle = Throttle()
        self._timer: TimerHandle | None = None
        self._at_exit: finalize[..., FailureLog] | None = None

    def retried(self, job: Job, wait: float | None) -> None:
        """Log a failed attempt; the job runs again in `wait` seconds, or at once if None."""
        when = "is retried at once" if wait is None else f"is retried in {max(0.0, wait):.1f} s"
        text = f"job {job.id} of task {_name(job)} failed at attempt {job.attempts} and {when}"
        self._write(JobRetried, logging.WARNING, job, f"{text}: {error_line(job)}")

    def died(self, job: Job) -> None:
        """Log a job that has failed permanently, with its traceback."""
        attempts = f"{job.attempts} attempt{'' if job.attempts == 1 else 's'}"
        text = f"job {job.id} of task {_name(job)} is dead after {attempts}: {error_line(job)}"
        self._write(JobEnded, logging.ERROR, job, text + traceback_lines(job))

    def ended(self, job: Job, wait: float | None = None) -> None:
        """Log the consequence of a failed attempt."""
        if job.status is Status.FAILED:
            self.died(job)
        else:
            self.retried(job, wait)

    def never_awaited(self, job: Job) -> None:
        """Log a failure of an in-memory job whose ticket was collected before it was read."""
        if is_self_cancelled(job.status, job.error):
            self.self_cancelled(job)
            return
        text = f"job {job.id} of {_name(job)} in pool {job.pool!r} failed, and its ticket was never"
        line = f"{text} awaited: {error_line(job)}"
        self._write(JobEnded, logging.ERROR, job, line + traceback_lines(job))

    def self_cancelled(self, job: Job) -> None:
        """Log a job that ended as cancelled although no one cancelled it."""
        text = f"job {job.id} of task {_name(job)} ended as cancelled although no one cancelled it"
        line = f"{text}: {SELF_CANCELLED.message}"
        self._write(JobEnded, logging.WARNING, job, line)

    def lease_lost(self, job: Job) -> None:
        """Log a job whose result in this process no longer counts."""
        self._write(LeaseLost, logging.WARNING, job, lease_lost_line(job))

    def set_aside(self, job: Job, cause: str, hint: str = "", served: bool = False) -> None:
        """Log a job that this worker cannot run; the caller does so once for each cause.

        A job whose task is `served` by another worker gets no warning.
        """
        if not served:
            self._write(JobSetAside, logging.WARNING, job, set_aside_line(job, cause, hint))
        elif not is_reported(self._events, JobSetAside):
            LOG.info("%s", served_line(job, cause))

    def close(self) -> None:
        """Log all summaries of held lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._at_exit is not None:
            self._at_exit.detach()
            self._at_exit = None
        _flush(self._throttle, self._now)

    def _write(self, kind: type[Event], level: int, job: Job, text: str) -> None:
        if is_reported(self._events, kind) or not LOG.isEnabledFor(level):
            return
        dead = level == logging.ERROR
        if not self._throttled or self._throttle.allows(job.name, self._now(), dead):
            LOG.log(level, "%s", text)
            return
        if self._at_exit is None:
            # Tickets may be collected after the pool is closed: the counts must not be lost then.
            self._at_exit = finalize(self, _flush, self._throttle, self._now)
        if self._timer is None:
            self._set_timer()

    def _set_timer(self) -> None:
        at = self._throttle.next_at()
        if at is not None and self._loop is not None and not self._loop.is_closed():
            self._timer = self._loop.call_later(max(0.0, at - self._now()), self._ring)

    def look(self) -> None:
        """Log the summaries that are due."""
        _summarize(self._throttle.due(self._now()))

    def _ring(self) -> None:
        self._timer = None
        self.look()
        self._set_timer()


def _flush(throttle: Throttle, now: Callable[[], float]) -> None:
    _summarize(throttle.flush(now()))


def _summarize(held: list[HeldLines]) -> None:
    for one in held:
        LOG.log(logging.ERROR if one.dead else logging.WARNING, "%s", summary_line(one))


def summary_line(held: HeldLines) -> str:
    """Return the summary line of held lines."""
    failures = "failure" if held.count == 1 else "failures"
    name = repr(safe(held.name[:LONGEST_NAME]))
    dead = ""
    if held.dead:
        dead = f"; {held.dead:,} job{' is' if held.dead == 1 else 's are'} dead"
    seconds = max(1.0, held.seconds)
    return f"and {held.count:,} more {failures} of task {name} in the last {seconds:.0f} s{dead}"


def lease_lost_line(job: Job) -> str:
    """Describe the consequence of a lost lease."""
    text = f"the lease of job {job.id} of task {_name(job)} was lost: it is stopped here, its"
    return f"{text} result does not count, and another worker may run it"


def set_aside_line(job: Job, cause: str, hint: str = "") -> str:
    """Explain why a worker leaves a job to other workers; a `hint` replaces the cause."""
    what = f"job {job.id} in pool {job.pool!r} waits"
    if hint:
        return f"{what}: {safe(hint)}"
    task, key = task_of(cause), key_of(cause)
    if task is not None:
        return (
            f"{what}: this worker does not have the task {safe(task)!r}; start a worker whose code "
            "registers it (jobs of this task that come later are not logged)"
        )
    if key is not None:
        return (
            f"{what}: this worker does not have the key {safe(key)!r}, which signed it; add it to "
            "the key ring of the workers (jobs signed with it that come later are not logged)"
        )
    if call_of(cause) is not None:
        why = "" if job.error is None else f": {safe(job.error.message)}"
        return (
            f"{what}: this worker has another version of its task{why} (jobs of that version that "
            "come later are not logged)"
        )
    return f"{what} for {safe(cause)}: this worker cannot run it"


def served_line(job: Job, cause: str) -> str:
    """Report that a job is left to another worker which has its task."""
    return (
        f"job {job.id} in pool {job.pool!r} is left to another worker, which has the task "
        f"{safe(task_of(cause) or cause)!r} (jobs of this task that come later are not logged)"
    )


def error_line(job: Job) -> str:
    """Return the error of a job as one line."""
    fault = job.error
    if fault is None:
        return "no error was recorded"
    name = fault.type.removeprefix("builtins.")
    message = fault.message
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]}…"
    return safe(f"{name}: {message}" if message else name)


def traceback_lines(job: Job) -> str:
    """Return the traceback of a failed job, indented and escaped, to follow its log line.

    Each line is indented, so that text of a job cannot pass for a line of the log.
    """
    text = "" if job.error is None else job.error.traceback
    if not text.strip():
        return ""
    if text.startswith("  File "):
        # Records of older versions hold only the frames.
        text = f"Traceback (most recent call last):\n{text}"
    return indented(text.rstrip(), "    ")


def _name(job: Job) -> str:
    return repr(safe(job.name[:LONGEST_NAME]))
