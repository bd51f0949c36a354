"""Causes: the conditions, other than a time or a free slot, that parked jobs wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

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
