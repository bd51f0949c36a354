"""A script that submits without a loop, then works until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from poolhand import App

URL, FOLDER, *NAMES = sys.argv[1:]

app = App(URL)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def is_released() -> bool:
    return (Path(FOLDER) / "release").exists()


@app.task(name="hold")
async def hold() -> str:
    say("begun")
    while not is_released():  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(0.02)
    return "held"


@app.task(name="block")
async def block() -> None:
    say("begun")
    while not is_released():
        pass


if __name__ == "__main__":
    tasks: dict[str, Any] = {"hold": hold, "block": block}
    tickets = [tasks[name].submit_sync() for name in NAMES]
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    say(f"pid {os.getpid()}")
    report = app.run_worker(slots=5, drain_timeout=30)
    say(f"{report.completed} completed, {report.handed_back} handed back")
    say(" ".join(ticket.status.value for ticket in tickets))
    same = handlers == [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    say(f"handlers restored: {same}")
