"""What the jobs under test do: they write down, outside the system, that they began and ended.

Children import this module, and no more, to run a suspected job alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

from poolhand import Job, current_job, fencing_token, stop_requested
from tests.faults import outside
from tests.faults.marks import Marks

FOLDER = Path(os.environ["FAULTS_FOLDER"])
LIFE = os.environ["FAULTS_LIFE"]
LOOK = 0.01  # seconds between two looks of a job that waits for the harness

effects = outside.Lines(FOLDER / outside.EFFECTS)
marks: Marks | None = None  # of the process that runs the app; its children have none


@contextmanager
def effect(number: int) -> Iterator[Job]:
    """Write down that a job begins, and how its code ended."""
    job = current_job()
    assert job is not None
    about = {
        "job": job.id,
        "number": number,
        "attempt": job.attempts,
        "token": fencing_token(),
        "pid": os.getpid(),
        "life": LIFE,
    }
    how = "returned"
    with nullcontext() if marks is None else marks.during("run"):
        effects.write("begin", **about)
        try:
            yield job
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            effects.write("end", how=how, **about)


async def while_passing(seconds: float) -> None:
    """Work on the loop that takes a while."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def brief(number: int, seconds: float) -> int:
    with effect(number):
        await while_passing(seconds)
    return number


def threaded(number: int, seconds: float) -> int:
    with effect(number):
        Event().wait(seconds)
    return number


async def flaky(number: int, seconds: float) -> int:
    with effect(number) as job:
        await while_passing(seconds)
        if job.attempts < 2:
            raise ConnectionError("not yet")
    return number


async def hopeless(number: int, seconds: float) -> int:
    with effect(number):
        await while_passing(seconds)
        raise LookupError("never")


def held(number: int, seconds: float) -> int:
    """Work in a thread, deaf to all wishes, until the gate of its process is open."""
    with effect(number):
        pause = Event()
        while not (FOLDER / f"gate-{LIFE}").exists():
            pause.wait(LOOK)
    return number


def polite(number: int, seconds: float) -> int:
    """Work in a thread, but stop when asked to."""
    with effect(number):
        pause = Event()
        for _ in range(int(seconds / LOOK)):
            if stop_requested():
                raise asyncio.CancelledError
            pause.wait(LOOK)
    return number


def poison(number: int, seconds: float) -> int:
    with effect(number):
        os.kill(os.getpid(), signal.SIGKILL)
        Event().wait()
    return number


CODE: tuple[Callable[[int, float], Any], ...] = (
    brief,
    threaded,
    flaky,
    hopeless,
    held,
    polite,
    poison,
)
