"""Causes: what a job waits for that is neither a time nor a slot."""

from __future__ import annotations

from hashlib import sha256

LONGEST = 200  # characters
DIGEST = 8  # characters of a hash that tell long causes apart
TASK = "task:"
KEY = "key:"
HOME = "home:"

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


def _fitting(cause: str) -> str:
    """Return a cause that fits; of one that is too long the end becomes a hash of the whole."""
    if len(cause) <= LONGEST:
        return cause
    digest = sha256(cause.encode(errors="surrogatepass")).hexdigest()[:DIGEST]
    return f"{cause[: LONGEST - DIGEST - 1]}~{digest}"
