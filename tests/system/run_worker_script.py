"""A script that submits without a loop, then works until it is stopped.

Its jobs end when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from poolhand import App

URL, *NAMES = sys.argv[1:]
DRAIN_TIMEOUT = float(os.environ.get("DRAIN_TIMEOUT", "30"))

app = App(URL)
released = asyncio.Event()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@app.task(name="hold")
async def hold() -> str:
    say("begun")
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), released.set)
    await released.wait()
    return "held"


@app.task(name="block")
async def block() -> None:
    say("begun")
    sys.stdin.read()


@app.task(name="think")
def think() -> None:
    say("begun")
    sys.stdin.read()


async def embed() -> None:
    async with app, app.worker(drain_timeout=DRAIN_TIMEOUT):
        say(f"pid {os.getpid()}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    tasks: dict[str, Any] = {"hold": hold, "block": block, "think": think}
    tickets = [tasks[name].submit_sync() for name in NAMES]
    if "EMBEDDED" in os.environ:
        asyncio.run(embed())
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    say(f"pid {os.getpid()}")
    report = app.run_worker(slots=5, drain_timeout=DRAIN_TIMEOUT)
    say(f"{report.completed} completed, {report.handed_back} handed back")
    say(" ".join(ticket.status.value for ticket in tickets))
    same = handlers == [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    say(f"handlers restored: {same}")
