"""One of several processes with the same schedules; each run is a line in a file.

Its wall clock is that of the machine plus the seconds in a file, which a test may change at any
time. A `mortal` process kills itself between the submit of a moment and its record.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from poolhand import App, current_job
from poolhand.contract import LogLine, Put, Store
from poolhand.durable.scheduled_call import DOCUMENTS
from poolhand.runtime import Runtime

URL, FOLDER, EXPRESSION, MISSED, FATE = sys.argv[1:6]
LINES, OFFSET = Path(FOLDER) / "lines", Path(FOLDER) / "offset"


class Moved(Runtime):
    """A runtime whose wall clock the test moves."""

    def wall(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(OFFSET.read_text()))


def mortal(make: Callable[[], Store]) -> Store:
    """Make a store on which the process dies before it records what a schedule has submitted."""
    store = make()
    put = store.put

    async def die(
        puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        if puts[0].key.startswith(DOCUMENTS) and puts[0].expect:
            os.kill(os.getpid(), signal.SIGKILL)
        return await put(puts, token, log)

    store.put = die  # type: ignore[method-assign]
    return store


app = App(URL, runtime=Moved())
if FATE == "mortal":
    app.core.make_store = partial(mortal, app.core.make_store)
story = os.open(LINES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def tell(name: str) -> None:
    job = current_job()
    assert job is not None
    moment = (job.idempotency_key or "").rpartition(" s:" if name == "beat" else f"{ZONE}:")[2]
    os.write(story, f"{name} {moment} {job.id}\n".encode())


ZONE = "Europe/Berlin"


@app.every(1, missed=MISSED)
@app.task(name="beat")
async def beat() -> None:
    tell("beat")


@app.cron(EXPRESSION, tz=ZONE, missed=MISSED)
@app.task(name="cron")
async def cron() -> None:
    tell("cron")


async def work() -> None:
    async with app, app.worker():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work())
