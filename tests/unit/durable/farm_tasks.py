"""Tasks that other processes find by name."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from poolhand import Retry, current_job, stop_requested
from poolhand.app import App
from poolhand.context import fencing_token

app = App(os.environ.get("FARM_TASKS_URL", "memory://"))


@app.task(run_in="process")
def where(text: str) -> tuple[str, int, int | None, str]:
    """Return what this process knows about its job."""
    job = current_job()
    assert job is not None
    return text, os.getpid(), fencing_token(), job.id


@app.task(run_in="process", retry=Retry(attempts=2))
def die(code: int) -> None:
    """Kill the process in the middle of the job."""
    os.kill(os.getpid(), signal.SIGKILL if code == 9 else code)


@app.task(run_in="process", retry=Retry(attempts=1))
def fail(text: str) -> None:
    raise LookupError(text)


@app.task
async def alone(path: str) -> tuple[int, int | None]:
    """An async task, which runs in its own process only when it is a suspect."""
    await asyncio.sleep(0)
    note(path, f"{os.getpid()}")
    return os.getpid(), fencing_token()


@app.task(run_in="process")
def patient() -> str:
    waited = 0
    while not stop_requested() and waited < 10_000:
        waited += 1
        signal.sigtimedwait([signal.SIGUSR1], 0.01)
    return "asked" if stop_requested() else "bored"


@app.task
async def hang(path: str) -> Any:
    """Record that it runs, and stay."""
    note(path, f"{os.getpid()} {fencing_token()}")
    await asyncio.Event().wait()


@app.task
async def count(path: str) -> int:
    """Record that it runs."""
    note(path, f"{os.getpid()} {fencing_token()}")
    return os.getpid()


def note(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")
