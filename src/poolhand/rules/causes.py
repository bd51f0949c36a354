"""Causes: what a job waits for that is neither a time nor a slot."""

from __future__ import annotations

LONGEST = 200  # characters
TASK = "task:"


def task_cause(name: str) -> str:
    """Return the cause of a job whose task the worker that claimed it does not have."""
    return f"{TASK}{name}"[:LONGEST]


def task_of(cause: str | None) -> str | None:
    """Return the name of the task that a cause is about."""
    return cause.removeprefix(TASK) if cause is not None and cause.startswith(TASK) else None
