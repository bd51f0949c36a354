"""An agent that kills its process twice, so that it runs in a process of its own, then works.

Its requests and events go through the parent process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from poolhand import App, Session, emit, progress, step, tool, tool_context

URL, TRIES = sys.argv[1], Path(sys.argv[2])
CHUNKS = 2000

app = App(URL)


@tool(effect="idempotent")
async def look(number: int) -> dict[str, Any]:
    return {"number": number, "key": tool_context().idempotency_key, "pid": os.getpid()}


async def add(number: int) -> int:
    return number + 1


def die_twice() -> None:
    tries = len(TRIES.read_text()) if TRIES.exists() else 0
    TRIES.write_text("x" * (tries + 1))
    if tries < 2:
        os.kill(os.getpid(), signal.SIGKILL)


@app.agent
async def agent(session: Session, message: str) -> dict[str, Any]:
    first = await step("before", add, 0)
    die_twice()
    session.state["messages"].append(message)
    await session.save()
    others = await asyncio.gather(step("side", add, 1), step("by side", add, 2))
    await progress("working")
    sys.stdout.write("from its own process\n")
    for number in range(CHUNKS):
        await emit(number)
    return {"sum": first + sum(others), **await look(5)}


async def main() -> None:
    async with app, app.worker(capture=True):
        talk = agent.session("s", tenant="acme")
        ticket = await talk.with_options(idempotency_key="once").submit("hello")
        found = await ticket
        events = [event async for event in ticket.events()]
        record = await talk.record()
        assert record is not None
        told = {
            "found": found,
            "own": found.pop("pid") != os.getpid(),
            "numbers": [event.number for event in events],
            "chunks": [event.data for event in events if event.kind == "chunk"],
            "log": [event.data["text"] for event in events if event.kind == "log"],
            "messages": record.state["messages"],
        }
    sys.stderr.write(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
