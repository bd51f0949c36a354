"""Causes: what a job waits for that is neither a time nor a slot."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

LONGEST = 200  # characters
DIGEST = 8  # characters of a hash that tell long causes apart
TASK = "task:"
KEY = "key:"
HOME = "home:"
CALL = "call:"
ANY_VERSION = "*"
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


def wanted(found: Iterable[str], causes: frozenset[str], refused: frozenset[str]) -> set[str]:
    """Return the causes, of those found, that a worker claims from.

    It claims any version of the calls it has the task of, until it has refused that version once.
    """
    return {
        cause
        for cause in found
        if cause in causes or (cause not in refused and _any_version(cause) in causes)
    }


def _any_version(cause: str) -> str | None:
    task = call_of(cause)
    return None if task is None else f"{CALL}{ANY_VERSION}/{task}"


def _fitting(text: str, longest: int = LONGEST) -> str:
    """Return a text that fits; of one that is too long the end becomes a hash of the whole."""
    if len(text) <= longest:
        return text
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST]
    return f"{text[: longest - DIGEST - 1]}~{digest}"
