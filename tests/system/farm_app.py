"""The app of the farms in tests; its jobs report to a file, line by line.

`FARM_STORE` is the URL of the store, `FARM_STORY` that file, `FARM_WARM_UP` the warm-up of a
worker, and `FARM_GATE` a file that the warm-up waits for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from poolhand import App, Retry, current_job

LATER = 0.02  # seconds between two checks for a file
HELD: list[bytearray] = []


def tell(what: str, *more: object) -> None:
    """Append a line to the file; lines of many processes do not mix."""
    line = " ".join(map(str, (what, os.getpid(), *more)))
    story = os.open(os.environ["FARM_STORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(story, f"{line}\n".encode())
    os.close(story)


def begin(name: str) -> None:
    job = current_job()
    assert job is not None
    tell("begin", name, job.id, job.attempts)


def end(name: str) -> None:
    job = current_job()
    assert job is not None
    tell("end", name, job.id, job.attempts)


async def pause(seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


# The jobs


async def note(number: int) -> int:
    begin(f"note-{number}")
    return number


async def fail(text: str) -> None:
    raise ValueError(text)


async def spill() -> object:
    """Return a value that no store can keep."""
    return object()


async def nap(seconds: float) -> None:
    begin("nap")
    await pause(seconds)
    end("nap")


async def hold(gate: str) -> None:
    """Run until a file exists."""
    begin("hold")
    while not Path(gate).exists():  # noqa: ASYNC240 - another process makes it
        await pause(LATER)
    end("hold")


async def cling(gate: str) -> None:
    """Run until a file exists, and ignore cancellations."""
    begin("cling")
    while not Path(gate).exists():  # noqa: ASYNC240
        with suppress(asyncio.CancelledError):
            await pause(LATER)
    end("cling")


def occupy(gate: str) -> None:
    """Hold a thread until a file exists."""
    begin("occupy")
    while not Path(gate).exists():
        Event().wait(LATER)
    end("occupy")


def compute(gate: str) -> None:
    """Hold a process until a file exists."""
    begin("compute")
    while not Path(gate).exists():
        Event().wait(LATER)
    end("compute")


async def block(gate: str) -> None:
    """Block the event loop until a file exists."""
    begin("block")
    while not Path(gate).exists():  # noqa: ASYNC240
        Event().wait(LATER)
    end("block")


async def hold_interpreter() -> None:
    """Hold the GIL, so that no other thread of this process runs; first attempt only."""
    begin("interpreter")
    job = current_job()
    if job is not None and job.attempts == 1 and not job.crashes:
        sum(range(10**12))
    end("interpreter")


async def crash() -> None:
    """Kill its whole process."""
    begin("crash")
    os._exit(7)


async def keep_company(gate: str) -> None:
    """Run until a file exists; before, fork a process that has all open files of this one."""
    begin("company")
    company = os.fork()
    if not company:
        signal.pause()
    tell("forked", company)
    while not Path(gate).exists():  # noqa: ASYNC240
        await pause(LATER)
    end("company")


async def babble() -> None:
    """Write an invalid message to the supervisor, the first time."""
    begin("babble")
    job = current_job()
    if job is not None and not job.crashes:
        os.write(int(sys.argv[1]), b"\0\0\0\4junk")
        await asyncio.Event().wait()


async def eat(megabytes: int) -> None:
    """Use more memory for as long as the process lives."""
    begin("eat")
    HELD.append(bytearray(os.urandom(1024)) * (1024 * megabytes))


async def shout(text: str) -> None:
    begin("shout")
    print(f"{text} printed")  # noqa: T201
    sys.stdout.write(f"{text} written\n")
    print(f"{text} complained", file=sys.stderr)  # noqa: T201
    logging.getLogger("shop").warning("%s logged", text)
    await asyncio.sleep(0)
    print(f"{text} again")  # noqa: T201


async def shout_when(gate: str) -> None:
    """Wait for a file, and write much output."""
    begin("shout")
    while not Path(gate).exists():  # noqa: ASYNC240
        await pause(LATER)
    for number in range(100):
        print("shouted", number)  # noqa: T201
        logging.getLogger("shop").warning("logged %s", number)


def paint(text: str) -> None:
    """Write control characters and forged lines, in every way there is."""
    begin("paint")
    print(f"\x1b[2J{text} printed\n2026-01-01 00:00:00,000 INFO farm stopped farm=forged")  # noqa: T201
    sys.stdout.buffer.write(f"\x1b[3J{text} in bytes\n".encode())
    logging.getLogger("shop").warning("\x1b[4J%s logged\nin two lines", text)
    os.write(1, f"\x1b[5J{text} below\n".encode())
    subprocess.run(["printf", f"\\033[6J{text} beside\\n"], check=True)
    print(f"{text} long " + "x" * 40_000)  # noqa: T201
    print(f"{text} without an end", end="")  # noqa: T201


async def enter_app(number: int) -> None:
    """Enter and leave the app of this worker, as code outside of it does."""
    begin(f"enter-{number}")
    async with app:
        await app.submit("tests.system.farm_app.note", number)


async def close_beside() -> None:
    """Close the app once, in a thread that does not belong to the job; then end."""
    begin("close")
    gate = Path(os.environ["FARM_GATE"])
    if not gate.exists():  # noqa: ASYNC240
        gate.touch()  # noqa: ASYNC240
        Thread(target=lambda: asyncio.run(app.close())).start()


def add_to(app: App) -> dict[str, Any]:
    """Register all jobs as tasks."""
    for pool in ("default", "other"):
        app.pool(pool, max_concurrent=1000)
    tasks: dict[str, Any] = {
        fn.__name__: app.task(fn)
        for fn in (
            note,
            spill,
            nap,
            hold,
            block,
            crash,
            keep_company,
            babble,
            eat,
            shout,
            shout_when,
            hold_interpreter,
            enter_app,
            close_beside,
        )
    }
    tasks["cling"] = app.task(retry=Retry(attempts=1))(cling)
    tasks["fail"] = app.task(retry=Retry(attempts=2, first=0.05))(fail)
    tasks["occupy"] = app.task(retry=Retry(attempts=1))(occupy)
    tasks["compute"] = app.task(run_in="process", retry=Retry(attempts=1))(compute)
    tasks["paint"] = app.task(paint)
    tasks["paint_apart"] = app.task(name="paint_apart", run_in="process")(paint)
    tasks["crash_once"] = app.task(name="crash_once", retry=None)(crash)
    tasks["elsewhere"] = app.task(pool="other", name="elsewhere")(note)
    return tasks


async def come_up() -> None:
    """Be ready when a file exists."""
    tell("warming")
    while not Path(os.environ["FARM_GATE"]).exists():  # noqa: ASYNC240
        await pause(LATER)
    tell("warm")


def come_up_blocking() -> None:
    """Be ready when a file exists, and block the process until then."""
    tell("warming")
    while not Path(os.environ["FARM_GATE"]).exists():
        Event().wait(LATER)
    tell("warm")


def insist() -> None:
    """Be ready if a file exists."""
    tell("warming")
    if not Path(os.environ["FARM_GATE"]).exists():
        raise LookupError("the larder is empty")


def refuse() -> None:
    """Exit before any worker is ready, unless a file exists."""
    tell("warming")
    if not Path(os.environ["FARM_GATE"]).exists():
        os._exit(9)


WARM_UPS: dict[str, Callable[[], Any]] = {
    "async": come_up,
    "plain": come_up_blocking,
    "failing": insist,
    "dying": refuse,
}

app = App(os.environ.get("FARM_STORE", "memory://"))
add_to(app)
if "FARM_WARM_UP" in os.environ:
    app.warm_up(WARM_UPS[os.environ["FARM_WARM_UP"]])
if "FARM_IMPORT" in os.environ and not Path(os.environ["FARM_IMPORT"]).exists():
    raise ImportError("a part of the shop is missing")
