"""Causes: what a job waits for that is neither a time nor a slot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

LONGEST = 200  # characters
DIGEST = 8  # characters of a hash that tell long causes apart
TASK = "task:"
KEY = "key:"
HOME = "home:"
CALL = "call:"
ANY_VERSION = "*"
ANY_PACKAGE = "*."  # before a name: the same name in any package
LONGEST_TASK = 150  # characters of a task's name beside its version

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


def call_cause(version: str, task: str) -> str:
    """Return the cause of a job whose arguments the code of its claimer does not accept.

    `version` is that of the task when the job was submitted; ANY_VERSION stands for all of them.
    """
    return f"{CALL}{version}/{_fitting(task, LONGEST_TASK)}"


def call_of(cause: str | None) -> str | None:
    """Return the name of the task whose arguments a cause is about."""
    if cause is None or not cause.startswith(CALL):
        return None
    return cause.removeprefix(CALL).partition("/")[2]


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


def meant(name: str, names: Collection[str]) -> list[str]:
    """Return which of some names a name means: one, several if it does not decide, or none."""
    if name in names:
        return [name]
    near = [one for one in names if is_same_task(one, name)]
    if len(near) == 1 and len(near[0]) < len(name):
        # It stands for whatever package: then it must be the only one to be meant.
        near += [one for one in names if one != near[0] and is_same_task(one, near[0])]
    return sorted(near)


def in_any_package(cause: str) -> str:
    """Return what a worker offers to claim a cause by, whatever package its task is said to be in.

    That is how `proj.agents.f` is claimed by a worker that knows it as `agents.f`.
    """
    kind, name = _parted(cause)
    return f"{kind}{ANY_PACKAGE}{name}"


def claimable(
    offered: frozenset[str], waiting: Iterable[str], refused: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return which of the causes that jobs wait for are met by what a worker offers.

    It offers any version of the calls of its tasks, until it has refused that version once.
    """
    return frozenset(
        cause
        for cause in waiting
        if cause not in refused and not offered.isdisjoint(_offers(cause))
    )


def _offers(cause: str) -> Iterator[str]:
    """Return the offers that meet a cause: its task by any name, its call in any version."""
    kind, name = _parted(cause)
    yield f"{kind}{name}"
    for short in short_names(name):
        yield f"{kind}{ANY_PACKAGE}{short}"


def _parted(cause: str) -> tuple[str, str]:
    """Return a cause as what it is about and the name of a task; the name is empty if it has none.

    A task's name may hold any character, so it stands last.
    """
    if cause.startswith(TASK):
        return TASK, cause.removeprefix(TASK)
    kind, slash, task = cause.partition("/")
    if cause.startswith(CALL):
        return f"{CALL}{ANY_VERSION}/", task
    return (f"{kind}{slash}", task) if cause.startswith(KEY) else (cause, "")


def _fitting(text: str, longest: int = LONGEST) -> str:
    """Return a text that fits; of one that is too long the end becomes a hash of the whole."""
    if len(text) <= longest:
        return text
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST]
    return f"{text[: longest - DIGEST - 1]}~{digest}"
