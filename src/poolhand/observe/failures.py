"""Log failures, blocked event loops and stuck slots on the logger "poolhand", without a subscriber.

Nothing is configured here: if the program does not configure logging, Python writes warnings and
errors to stderr. Lines that a subscriber such as `log_events` already logs are not repeated.
"""

from __future__ import annotations

import logging
import os
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from weakref import finalize

from msgspec import Struct

from poolhand.observe.events import (
    Event,
    Events,
    JobEnded,
    JobRetried,
    JobSetAside,
    LeaseLost,
    LoopBlocked,
    SlotStuck,
)
from poolhand.rules.explain import call_of, key_of, task_of
from poolhand.rules.job import HARD_TIMEOUT, Job, Status
from poolhand.rules.outcome import SELF_CANCELLED, is_self_cancelled
from poolhand.rules.plain import indented, safe

MOST_LINES = 10
WINDOW = 1.0
REPORT_AFTER = 10.0  # seconds that one summary of held lines covers
MOST_NAMES = 1_000  # names without held lines that are remembered


class HeldLines(Struct, frozen=True):
    """Lines of one name held back in the last `seconds`; `dead` of them report dead jobs."""

    name: str
    count: int
    dead: int
    seconds: float


class _Counter:
    """Counters of one name: lines written since `opened_at`, lines held since `held_at`."""

    __slots__ = ("dead", "held", "held_at", "opened_at", "written")

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.written = self.held = self.dead = 0
        self.held_at = now


class Throttle:
    """Allows up to 10 lines per name and second; beyond that, lines are held back and counted.

    A summary is due 10 s after the first held line. After it, lines are allowed again.
    """

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}

    def allows(self, name: str, now: float, dead: bool = False) -> bool:
        """Return whether a line may be written; otherwise count it."""
        counter = self._counters.get(name)
        if counter is None:
            self._forget_old(now)
            counter = self._counters[name] = _Counter(now)
        if not counter.held:
            if now - counter.opened_at >= WINDOW:
                counter.opened_at, counter.written = now, 0
            if counter.written < MOST_LINES:
                counter.written += 1
                return True
            counter.held_at = now
        counter.held += 1
        counter.dead += dead
        return False

    def next_at(self) -> float | None:
        """Return when the next summary is due, or None while no line is held."""
        held = [one.held_at for one in self._counters.values() if one.held]
        return min(held) + REPORT_AFTER if held else None

    def due(self, now: float) -> list[HeldLines]:
        """Return the summaries that are due; their names may be written again."""
        return self._take(now, now - REPORT_AFTER)

    def flush(self, now: float) -> list[HeldLines]:
        """Return the summaries of all held lines."""
        return self._take(now, now)

    def _take(self, now: float, held_by: float) -> list[HeldLines]:
        found = []
        for name, one in list(self._counters.items()):
            if one.held and one.held_at <= held_by:
                found.append(HeldLines(name, one.held, one.dead, now - one.held_at))
                del self._counters[name]
        return found

    def _forget_old(self, now: float) -> None:
        if len(self._counters) < MOST_NAMES:
            return
        for name, one in list(self._counters.items()):
            if not one.held and now - one.opened_at >= WINDOW:
                del self._counters[name]


LOG = logging.getLogger("poolhand")
LONGEST_MESSAGE = 500
LONGEST_NAME = 200
LOGGED_AFTER = 1.0  # seconds; shorter blocks are only emitted as events


def report(events: Events, kinds: tuple[type[Event], ...]) -> Callable[[], None]:
    """Record that a subscriber logs events of these types; return a function that undoes it."""
    events.reported = (*events.reported, kinds)

    def end() -> None:
        # By identity: another subscriber may log the same types.
        events.reported = tuple(one for one in events.reported if one is not kinds)

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
        self._write(JobEnded, logging.WARNING, job, f"{text}: {SELF_CANCELLED.message}")

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
        if self._at_exit is not None:
            self._at_exit.detach()
        self._timer = self._at_exit = None
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
    text = f"and {held.count:,} more {failures} of task {safe(held.name[:LONGEST_NAME])!r} in the"
    dead = f"; {held.dead:,} job{' is' if held.dead == 1 else 's are'} dead" if held.dead else ""
    return f"{text} last {max(1.0, held.seconds):.0f} s{dead}"


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


def logs_blocks(events: Events) -> bool:
    """Return whether a blocked loop is logged by default."""
    return LOG.isEnabledFor(logging.WARNING) and not is_reported(events, LoopBlocked)


def warn_blocked(
    blocks: Sequence[LoopBlocked], channels: Sequence[Events], timeout: float | None = None
) -> None:
    """Log a blocked event loop once: `blocks` are the same block for several pools.

    `timeout` is the hard timeout of the job that blocks it.
    """
    for block, events in zip(blocks, channels, strict=True):
        if logs_blocks(events):
            LOG.warning("%s", blocked_text(block, timeout))
            return


def blocked_text(block: LoopBlocked, timeout: float | None = None) -> str:
    """Describe what blocks a loop, where, and what to do; the indented stack follows."""
    what = f"code outside of any job, in the process of pool {block.pool!r},"
    if block.job is not None:
        what = _named(block.job)
    own = "" if timeout is None else f"its timeout of {timeout:g} s cannot take effect, and "
    return (
        f"{what} has blocked the event loop for {block.seconds:.1f} s; {own}no other job, timeout "
        "or cancellation goes on meanwhile: use await, or make the call with asyncio.to_thread, or "
        "in a task that is a plain function"
        + indented(f"Blocked here (most recent call last):\n{block.stack.rstrip()}", "    ")
    )


def warn_stuck(job: Job, slot: str, events: Events) -> None:
    """Log that the code of a finished job does not stop."""
    late = HARD_TIMEOUT in job.marks
    why = "ran past its timeout" if late else "was cancelled"
    warn(
        f"{_named(job)} {why}, and its code does not stop: slot {slot} is stuck and takes no other "
        "job until that code ends; let CancelledError pass, ask stop_requested() in threads, or "
        'use run_in="process", which can be killed',
        SlotStuck,
        events,
    )


def warn_overran(job: Job, ran: float, timeout: float) -> None:
    """Log that a job has completed after its hard timeout, which the blocked loop did not see."""
    warn(
        f"{_named(job)} ran for {ran:.1f} s, and its timeout of {timeout:g} s had no effect: the "
        "event loop was blocked meanwhile, so the job could not be stopped, and its result counts; "
        'make it a plain function (def), which runs in a thread, or use run_in="process", which '
        "can be killed"
    )


def warn_forked(job: object, did: str, exit_code: int) -> None:
    """Log that a process forked by a job ends, as it came back to the code that runs jobs."""
    what = _named(job) if isinstance(job, Job) else "a job"
    warn(
        f"{what} called os.fork(), and the new process {os.getpid()} {did}: it ends here with "
        f"exit code {exit_code}, and only the job in its parent counts; "
        'use run_in="process", subprocess, or multiprocessing with the start method spawn, or end '
        "the new process with os._exit()"
    )


def _named(job: Job) -> str:
    return f"job {job.id} of task {_name(job)} in pool {safe(job.pool)!r}"
