"""An app with warm-ups; its tasks return what was warmed up in the process that runs them."""

from __future__ import annotations

import os
from multiprocessing import parent_process
from threading import Event

from poolhand.app import App

WARMED: list[str] = []
SLOW = 2.0

app = App("memory://")


@app.warm_up
def load() -> None:
    """Load something; in a child that takes longer than its jobs may."""
    if parent_process() is not None:
        Event().wait(SLOW)
    WARMED.append("loaded")


@app.warm_up
async def connect() -> None:
    WARMED.append("connected")


app.warm_up(lambda: WARMED.append("unnamed"))


@app.task(run_in="process", timeout=SLOW * 0.75)
def warmed(number: int) -> tuple[int, list[str]]:
    return os.getpid(), list(WARMED)


@app.task
async def suspected() -> tuple[int, list[str]]:
    """Run in a process of its own only after crashes."""
    return os.getpid(), list(WARMED)


def fail_apart() -> None:
    """Warm up a worker, and no child."""
    if parent_process() is not None:
        raise LookupError("no coal")
