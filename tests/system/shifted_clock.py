"""A worker that joins a store for a few seconds; run in its own time namespace."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from poolhand import App

STAY = 2.5  # seconds: it checks for dead owners and due jobs more than once


class Crew:
    """An app whose jobs record that they were started, and where."""

    def __init__(self, url: str, story: Path) -> None:
        self.app = App(url)
        self.gate = asyncio.Event()

        @self.app.task(name="hold")
        async def hold(number: int) -> int:
            with story.open("a") as file:
                file.write(f"{number} {os.getpid()}\n")
            await self.gate.wait()
            return number

        @self.app.task(name="leave")
        async def leave() -> None:
            pass

        self.hold, self.leave = hold, leave


async def visit(url: str, story: Path) -> None:
    crew = Crew(url, story)
    crew.gate.set()
    async with crew.app as app, app.worker(8):
        await (await crew.leave.with_options(delay=STAY).submit())


if __name__ == "__main__":
    asyncio.run(visit(sys.argv[1], Path(sys.argv[2])))
