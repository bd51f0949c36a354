"""A job that streams, and a reader, each in a process of its own.

The reader writes one line of fixed length for each event, so the size of its file is its position;
the job does not run far ahead of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from threading import Event

from poolhand import App, emit

ROLE, URL, READ = sys.argv[1], sys.argv[2], Path(sys.argv[3])
LINE = 10
AHEAD = 400

app = App(URL)


def read() -> int:
    return READ.stat().st_size // LINE


@app.task(name="stream")
async def stream(count: int) -> None:
    already, beat = read(), Event()
    for number in range(count):
        while number > read() - already + AHEAD:
            await asyncio.to_thread(beat.wait, 0.005)
        await emit(number)


async def work() -> None:
    async with app, app.worker():
        ticket = await stream.with_options(idempotency_key="one").submit(int(sys.argv[4]))
        new = READ.with_suffix(".new")
        new.write_text(ticket.id)
        new.replace(READ.with_suffix(".id"))
        await ticket


async def follow() -> None:
    async with app:
        ticket = await app.get(sys.argv[4])
        assert ticket is not None
        fd = os.open(READ, os.O_WRONLY | os.O_APPEND)
        async for event in ticket.events(after=read()):
            os.write(fd, f"{event.number:07} {event.kind[0]}\n".encode())


if __name__ == "__main__":
    asyncio.run(work() if ROLE == "work" else follow())
