"""Explanations: what a job waits for, and why, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

from msgspec import Struct

from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import is_self_cancelled
from poolhand.rules.plain import PlainView

LONGEST = 200  # characters
DIGEST = 8  # characters of the hash that distinguishes shortened causes
TASK = "task:"
KEY = "key:"
HOME = "home:"
CALL = "call:"
ANY_VERSION = "*"
ANY_PACKAGE = "*."  # prefix of a name: matches that name in any package
LONGEST_TASK = 150  # characters of a task's name; the rest is for its version

# Host, boot id, process id and start time of a process.
Process = tuple[str, str, int, str]


def task_cause(name: str) -> str:
    """Return the cause for a job whose task the claiming worker has not registered."""
    return _fitting(f"{TASK}{name}")


def task_of(cause: str | None) -> str | None:
    """Return the task name in a cause, None if the cause is of another kind."""
    return cause.removeprefix(TASK) if cause is not None and cause.startswith(TASK) else None


def key_cause(key_id: str, task: str) -> str:
    """Return the cause for a job signed with a key that the claiming worker does not have."""
    return _fitting(f"{KEY}{key_id}/{task}")


def key_of(cause: str | None) -> str | None:
    """Return the key id in a cause, None if the cause is of another kind."""
    if cause is None or not cause.startswith(KEY):
        return None
    return cause.removeprefix(KEY).partition("/")[0]


def home_cause(home: Process) -> str:
    """Return the cause for a closure that was claimed by a process other than its own."""
    host, boot, pid, started = home
    return _fitting(f"{HOME}{host}/{pid}/{started}/{boot}")


def home_of(cause: str | None) -> Process | None:
    """Return the process in a cause, None if its name was shortened or is of another kind."""
    if cause is None or not cause.startswith(HOME):
        return None
    try:
        host, pid, started, boot = cause.removeprefix(HOME).rsplit("/", 3)
        return host, boot, int(pid), started
    except ValueError:
        return None


def call_cause(version: str, task: str) -> str:
    """Return the cause for a job whose arguments the claiming worker's code does not accept.

    `version` is the task's version when the job was submitted; ANY_VERSION matches all versions.
    """
    return f"{CALL}{version}/{_fitting(task, LONGEST_TASK)}"


def call_of(cause: str | None) -> str | None:
    """Return the task name in a cause about arguments, None if the cause is of another kind."""
    if cause is None or not cause.startswith(CALL):
        return None
    return cause.removeprefix(CALL).partition("/")[2]


def short_names(name: str) -> Iterator[str]:
    """Return the shorter names that may mean the same task: its dotted suffixes, longest first.

    The last one is module and function: a bare function name is too ambiguous.
    """
    rest = name.partition(".")[2]
    while "." in rest:
        if not rest.startswith("<"):
            yield rest
        rest = rest.partition(".")[2]


def is_same_task(one: str, other: str) -> bool:
    """Return whether two names may mean one task: equal, or one is a dotted suffix of the other."""
    return one == other or one in short_names(other) or other in short_names(one)


def meant(name: str, names: Collection[str]) -> list[str]:
    """Return the names that `name` may refer to: one, several if ambiguous, or none."""
    if name in names:
        return [name]
    near = [one for one in names if is_same_task(one, name)]
    if len(near) == 1 and len(near[0]) < len(name):
        # A shorter registered name matches any package, so it must be the only candidate.
        near += [one for one in names if one != near[0] and is_same_task(one, near[0])]
    return sorted(near)


def in_any_package(cause: str) -> str:
    """Return the offer by which a worker claims a cause in any package.

    This is how a worker that registered `agents.f` claims a job of `proj.agents.f`.
    """
    kind, name = _parted(cause)
    return f"{kind}{ANY_PACKAGE}{name}"


def claimable(
    offered: frozenset[str], waiting: Iterable[str], refused: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the causes among `waiting` that a worker's offers satisfy.

    A worker offers every version of the calls of its tasks until it has refused that version once.
    """
    return frozenset(
        cause
        for cause in waiting
        if cause not in refused and not offered.isdisjoint(_offers(cause))
    )


def _offers(cause: str) -> Iterator[str]:
    """Return the offers that satisfy a cause: its task by any name, its call in any version."""
    kind, name = _parted(cause)
    yield f"{kind}{name}"
    for short in short_names(name):
        yield f"{kind}{ANY_PACKAGE}{short}"


def _parted(cause: str) -> tuple[str, str]:
    """Split a cause into its kind and the name of its task; the name is empty if it has none.

    The task's name comes last because it may contain any character.
    """
    if cause.startswith(TASK):
        return TASK, cause.removeprefix(TASK)
    kind, slash, task = cause.partition("/")
    if cause.startswith(CALL):
        return f"{CALL}{ANY_VERSION}/", task
    return (f"{kind}{slash}", task) if cause.startswith(KEY) else (cause, "")


def _fitting(text: str, longest: int = LONGEST) -> str:
    """Return a text cut to `longest` characters; a cut text ends with a hash of the whole."""
    if len(text) <= longest:
        return text
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST]
    return f"{text[: longest - DIGEST - 1]}~{digest}"


class Standing(Struct, frozen=True):
    """The facts that an explanation is made from.

    `ahead` counts the jobs that run before this one, `average` is the seconds one job takes, where
    known. For a running job, `ran` is the seconds it has run, `left` the seconds until its hard
    timeout.
    """

    job: Job
    slots: int | None
    paused: bool = False
    submitter_blocked: bool = False
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
    if standing.submitter_blocked:
        return _submitter_blocked(standing)
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


def _submitter_blocked(standing: Standing) -> Explanation:
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
    return "no other" if not count else "1 other" if count == 1 else f"{count} others"


def _times(average: float | None, count: int) -> float | None:
    return None if average is None else average * count


def _rounds(average: float | None, ahead: int | None, width: int | None) -> float | None:
    """Estimate the wait behind `ahead` jobs when `width` run at a time."""
    if average is None or not width:
        return None
    return average * ((ahead or 0) // width + 1)
