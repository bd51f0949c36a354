"""Causes: what a job waits for that is neither a time nor a slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

LONGEST = 200  # characters
DIGEST = 8  # characters of a hash that tell long causes apart
TASK = "task:"
KEY = "key:"
HOME = "home:"
ANY_PACKAGE = "*."  # before a name: the same name in any package

# Host, boot, number and start of a process.
Process = tuple[str, str, int, str]


def task_cause(name: str) -> str:
    """Return the cause of a job whose task the worker that claimed it does not have."""
    return _fitting(f"{TASK}{name}")


def task_of(cause: str | None) -> str | None:
    """Return the name of the task that a cause is about."""
    return cause.removeprefix(TASK) if cause is not None and cause.startswith(TASK) else None


def key_cause(key_id: str, task: str) -> str:
    """Return the cause of a job whose call is signed with a key that its worker does not have."""
    return _fitting(f"{KEY}{key_id}/{task}")


def key_of(cause: str | None) -> str | None:
    """Return the id of the key that a cause is about."""
    if cause is None or not cause.startswith(KEY):
        return None
    return cause.removeprefix(KEY).partition("/")[0]


def home_cause(home: Process) -> str:
    """Return the cause of a closure that lives in another process than the one that claimed it."""
    host, boot, pid, started = home
    return _fitting(f"{HOME}{host}/{pid}/{started}/{boot}")


def home_of(cause: str | None) -> Process | None:
    """Return the process that a cause is about, unless its name was too long."""
    if cause is None or not cause.startswith(HOME):
        return None
    try:
        host, pid, started, boot = cause.removeprefix(HOME).rsplit("/", 3)
        return host, boot, int(pid), started
    except ValueError:
        return None


def short_names(name: str) -> Iterator[str]:
    """Return the shorter names that may mean the same task: its dotted ends, the longest first.

    The last one is a module and a function: a function alone says too little.
    """
    rest = name.partition(".")[2]
    while "." in rest:
        if not rest.startswith("<"):
            yield rest
        rest = rest.partition(".")[2]


def is_same_task(one: str, other: str) -> bool:
    """Tell whether two names may mean one task: the same, or one is the dotted end of the other."""
    return one == other or one in short_names(other) or other in short_names(one)


def in_any_package(cause: str) -> str:
    """Return what a worker offers to claim a cause by, whatever package its task is said to be in.

    That is how `proj.agents.f` is claimed by a worker that knows it as `agents.f`.
    """
    kind, name = _parted(cause)
    return f"{kind}{ANY_PACKAGE}{name}"


def claimable(offered: frozenset[str], waiting: Iterable[str]) -> frozenset[str]:
    """Return which of the causes that jobs wait for are met by what a worker offers."""
    return frozenset(
        cause
        for cause in waiting
        if cause in offered or not offered.isdisjoint(_in_shorter_packages(cause))
    )


def _in_shorter_packages(cause: str) -> Iterator[str]:
    kind, name = _parted(cause)
    return (f"{kind}{ANY_PACKAGE}{short}" for short in short_names(name))


def _parted(cause: str) -> tuple[str, str]:
    """Return a cause as what it is about and the name of a task; the name is empty if it has none.

    A task's name may hold any character, so it stands last.
    """
    if cause.startswith(TASK):
        return TASK, cause.removeprefix(TASK)
    key, slash, task = cause.partition("/")
    return (f"{key}{slash}", task) if cause.startswith(KEY) else (cause, "")


def _fitting(cause: str) -> str:
    """Return a cause that fits; of one that is too long the end becomes a hash of the whole."""
    if len(cause) <= LONGEST:
        return cause
    digest = sha256(cause.encode(errors="surrogatepass")).hexdigest()[:DIGEST]
    return f"{cause[: LONGEST - DIGEST - 1]}~{digest}"
