"""Explanations: why a job waits, and for about how long."""

from __future__ import annotations

from msgspec import Struct

from poolhand.rules.causes import call_of, home_of, key_of, task_of
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import is_self_cancelled
from poolhand.rules.values.plain import PlainView


class Standing(Struct, frozen=True):
    """The facts that an explanation is made from.

    `ahead` counts the jobs that run before this one, `average` is the seconds one job takes, where
    known. For a running job, `ran` is the seconds it has run, `left` the seconds until its hard
    timeout.
    """

    job: Job
    slots: int | None
    paused: bool = False
    parked: bool = False
    ahead: int | None = None
    average: float | None = None
    due_in: float | None = None
    holder: str | None = None
    max_per_key: int | None = None
    stuck: int = 0
    ran: float | None = None
    left: float | None = None


class Explanation(PlainView, frozen=True):
    """Why a job is in its state: a word for programs, a sentence for people, an estimate."""

    reason: str
    text: str
    ahead: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return self.text


def explain(standing: Standing) -> Explanation:
    """Return why a job waits and for about how long."""
    job = standing.job
    if standing.parked:
        return _parked(standing)
    match job.status:
        case Status.SCHEDULED:
            return _scheduled(standing)
        case Status.BLOCKED if job.blocked_on == "session":
            return Explanation(
                "session_busy",
                f"session {job.session!r} is busy with job {standing.holder}, "
                f"{_others(standing.ahead)} of the session before it",
                standing.ahead,
                _times(standing.average, (standing.ahead or 0) + 1),
            )
        case Status.BLOCKED:
            return Explanation(
                "key_cap",
                f"key {job.key!r} has all of its {standing.max_per_key} places in use, "
                f"{_others(standing.ahead)} of the key before it",
                standing.ahead,
                _rounds(standing.average, standing.ahead, standing.max_per_key),
            )
        case Status.QUEUED:
            return _queued(standing)
        case Status.RUNNING:
            return _running(standing)
        case Status.CANCELLED if job.error and is_self_cancelled(job.status, job.error):
            why = f"although no one cancelled it: {job.error.message}"
            return Explanation("over", f"it is over: cancelled, {why}")
        case _:
            return Explanation("over", f"it is over: {job.status.value}")


def next_free(average: float | None, slots: int | None) -> float | None:
    """Estimate the seconds until a slot becomes free when all are busy."""
    return None if average is None else average / (slots or 1)


def _parked(standing: Standing) -> Explanation:
    ahead = standing.ahead or 0
    each = next_free(standing.average, standing.slots)
    seconds = None if standing.paused else _times(each, ahead + 1)
    return Explanation(
        "pool_full",
        f"its submitter waits: the pool is full, {_others(ahead)} before it{_about(seconds)}",
        ahead,
        seconds,
    )


def _running(standing: Standing) -> Explanation:
    ran = "" if standing.ran is None else f", for {standing.ran:.1f} s"
    left = "" if standing.left is None else f", {standing.left:.1f} s until its hard timeout"
    return Explanation("running", f"it runs: attempt {standing.job.attempts}{ran}{left}")


def _scheduled(standing: Standing) -> Explanation:
    job = standing.job
    if job.waits_for is not None:
        return _caused(job, job.waits_for, standing.due_in)
    why = "a retry" if job.attempts else "its time"
    seconds = None if standing.due_in is None else max(0.0, standing.due_in)
    when = "" if seconds is None else f" in {seconds:.1f} s"
    return Explanation("scheduled", f"it waits for {why}{when}", None, seconds)


def _caused(job: Job, cause: str, due_in: float | None) -> Explanation:
    task = task_of(cause)
    if task is not None:
        return Explanation(
            "unknown_task",
            f"it waits for a worker that has the task {task!r}: start one whose code registers it",
        )
    key = key_of(cause)
    if key is not None:
        return Explanation(
            "unknown_key",
            f"it waits for a worker that has the key {key!r}, which signed it: add it to the key "
            "ring of the workers",
        )
    called = call_of(cause)
    if called is not None:
        why = "" if job.error is None else f" ({job.error.message})"
        return Explanation(
            "other_version",
            f"it waits for a worker whose task {called!r} accepts its arguments; the workers that "
            f"claimed it have another version{why}; start a worker of the version that submitted "
            "it, or deploy one that accepts both",
        )
    home = home_of(cause)
    if home is not None:
        host, _, pid, _ = home
        text = f"it is a closure, and waits for a free slot of its process, {pid} on {host}"
        return Explanation("at_home", text)
    when = "" if due_in is None else f", for {max(0.0, due_in):.1f} s more at most"
    return Explanation("cause", f"it waits for {cause}{when}", None, due_in)


def _queued(standing: Standing) -> Explanation:
    if standing.paused:
        return Explanation("paused", "the pool is paused; resume it", standing.ahead)
    ahead = standing.ahead or 0
    # Exclude stuck slots: when they become free cannot be predicted.
    slots = None if standing.slots is None else standing.slots - standing.stuck
    seconds = _rounds(standing.average, ahead, slots)
    whom = "" if standing.slots is None else f" for one of {standing.slots} slots"
    stuck = f" ({standing.stuck} of them stuck)" if standing.stuck else ""
    return Explanation(
        "behind_others" if ahead else "pool_cap",
        f"it waits{whom}{stuck}, {_others(ahead)} before it{_about(seconds)}",
        ahead,
        seconds,
    )


def _about(seconds: float | None) -> str:
    return "" if seconds is None else f", about {seconds:.1f} s"


def _others(count: int | None) -> str:
    return "nobody" if not count else "1 other" if count == 1 else f"{count} others"


def _times(average: float | None, count: int) -> float | None:
    return None if average is None else average * count


def _rounds(average: float | None, ahead: int | None, width: int | None) -> float | None:
    """Estimate the wait behind `ahead` jobs when `width` run at a time."""
    if average is None or not width:
        return None
    return average * ((ahead or 0) // width + 1)
