"""The app under test: tasks that write down, outside the system, that they began and ended.

Children import this module to run a suspected job alone; all they need stands in the environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

from poolhand import App, Job, Task, current_job, fair_round_robin, fencing_token, stop_requested
from poolhand.runtime import Runtime
from tests.faults import outside
from tests.faults.load import Plan
from tests.faults.marks import Marks

FOLDER = Path(os.environ["FAULTS_FOLDER"])
LIFE = os.environ["FAULTS_LIFE"]
WALL = FOLDER / "wall"
LOOK = 0.01  # seconds between two looks of a job that waits for the harness

effects = outside.Lines(FOLDER / outside.EFFECTS)
marks: Marks | None = None  # of the process that runs the app; its children have none


class ShiftedRuntime(Runtime):
    """A machine whose wall clock is moved by a file outside, in seconds."""

    def wall(self) -> datetime:
        return super().wall() + timedelta(seconds=shift())


def shift() -> float:
    try:
        return float(WALL.read_text())
    except (FileNotFoundError, ValueError):
        return 0.0


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


def make_app(plan: Plan) -> tuple[App, dict[tuple[str, str], Task[[int, float], Any, Any]]]:
    """Return an app with the pools of a plan, and its tasks by pool and name."""
    made = App(f"sqlite:///{FOLDER / outside.STORE}", runtime=ShiftedRuntime())
    for pool, cap in plan.caps.items():
        if pool in plan.fair:
            most = plan.key_caps.get(pool)
            made.pool(pool, max_concurrent=cap, queue=fair_round_robin(), max_per_key=most)
        else:
            made.pool(pool, max_concurrent=cap)
    pools = {item.pool for item in plan.items}
    tasks = {
        (pool, code.__name__): made.task(pool=pool, name=f"{pool}.{code.__name__}")(code)
        for pool in sorted(pools)
        for code in CODE
    }
    return made, tasks
