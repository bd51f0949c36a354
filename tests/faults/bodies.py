"""The code of jobs under test: they record their begin and end outside the system.

Children import only this module, to run a suspect job alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from poolhand import current_job, fencing_token, stop_requested
from poolhand.views import Job
from tests.faults import outside
from tests.faults.marks import Marks

FOLDER = Path(os.environ["FAULTS_FOLDER"])
LIFE = os.environ["FAULTS_LIFE"]
GATE = FOLDER / f"gate-{LIFE}"
LOOK = 0.01  # seconds between two checks of a job that waits for the harness

effects = outside.Lines(FOLDER / outside.EFFECTS)
marks: Marks | None = None  # of the process that runs the app; its children have none


@contextmanager
def effect(number: int) -> Iterator[Job]:
    """Record that a job begins, and how its code ended."""
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
    """Work on the loop for a while."""
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
    """Work in a thread and ignore requests to stop, until the gate of its process is open."""
    with effect(number):
        pause = Event()
        while not GATE.exists():
            pause.wait(LOOK)
    return number


async def gated(number: int, seconds: float) -> int:
    """Work on the loop until the gate of its process is open, or it is stopped."""
    with effect(number):
        while not GATE.exists():
            await while_passing(LOOK)
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


async def blocker(number: int, seconds: float) -> int:
    """Block its event loop."""
    with effect(number):
        Event().wait(seconds)
    return number


def hog(number: int, seconds: float) -> int:
    """Take every file descriptor that its process may have."""
    with effect(number), no_descriptors():
        Event().wait(seconds)
    return number


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Keep this process from opening files inside a block."""
    taken: list[int] = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for one in taken:
            os.close(one)


def bulky(number: int, seconds: float, data: str) -> int:
    """Check that its payload has arrived intact."""
    with effect(number):
        if data != blob(number, len(data)):
            raise LookupError("not what was submitted")
    return number


def blob(number: int, size: int) -> str:
    """Return so many characters that compress badly, the same for a number each time."""
    return Random(f"blob {number}").randbytes(size // 2).hex()


def garbled(number: int, seconds: float) -> int:
    """Never run: the stored request cannot be read."""
    with effect(number):
        return number


CODE: tuple[Callable[..., Any], ...] = (
    brief,
    threaded,
    flaky,
    hopeless,
    held,
    gated,
    polite,
    poison,
    blocker,
    hog,
    bulky,
    garbled,
)
