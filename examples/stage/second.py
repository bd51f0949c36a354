"""Another worker process: it claims jobs from the same file, and prints its events as JSON lines.

The demo kills it. It drains on SIGTERM, and when its standard input is closed: then the demo itself
is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import msgspec

from poolhand import UsageError, Worker, subscribe
from poolhand.views import Event
from stage.agents import keep_log_quiet
from stage.flags import Flags
from stage.kept import POOL, Kept
from stage.process import READY, TOLD

DRAIN_SECONDS = 5.0


def tell(event: Event) -> None:
    """Write an event for the process that watches."""
    if isinstance(event, TOLD):
        _write(msgspec.json.encode(event).decode())


def _write(line: str) -> None:
    with suppress(OSError):
        # One write per line: events come from several threads. If the reader is gone, standard
        # input is closed, too, which the loop notices.
        os.write(1, f"{line}\n".encode())


async def work(flags: Flags) -> None:
    """Run jobs until stopped; waiting and unfinished jobs stay in the file."""
    over = asyncio.Event()
    kept = Kept(flags)
    loop = asyncio.get_running_loop()
    worker = kept.app.worker(flags.second_slots, pools=[POOL], drain_timeout=DRAIN_SECONDS)
    drains: list[asyncio.Task[object]] = []

    def stop() -> None:
        if over.is_set():
            drains.append(loop.create_task(_stop_now(worker)))
        over.set()

    def end() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            over.set()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_reader(0, end)
    async with kept.app, worker:
        _write(READY)
        await over.wait()
    for drain in drains:
        await drain


async def _stop_now(worker: Worker) -> None:
    with suppress(UsageError):
        # It may not have begun yet: then there is nothing to stop.
        await worker.drain(0)


# Child processes of jobs import this file as well.
if __name__ == "__main__":
    keep_log_quiet()
    unsubscribe = subscribe(tell)
    asyncio.run(work(msgspec.json.decode(sys.argv[1], type=Flags)))
