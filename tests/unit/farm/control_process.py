"""A worker process with a control thread and nothing else.

A post ends its process, so it is not for the process of a test. What it is told goes to stdout. The
words behind the descriptor say how it is: `starting`, `wedged`, `spent`, `blocked`, `busy`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from datetime import UTC, datetime
from threading import Event, Thread

from poolhand.farm.control_thread import ControlThread
from poolhand.farm.history import finished
from poolhand.farm.protocol import Stop
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime

AT = datetime(2030, 1, 2, tzinfo=UTC)


class Still:
    """A worker in which nothing changes."""

    stuck = 0
    attempts = (3, 1)

    def __init__(self, words: list[str]) -> None:
        self.wedged = "wedged" in words
        self.spent = "spent" in words
        self._jobs = [job(f"j-{number}") for number in range(60 if "busy" in words else 0)]

    @property
    def running(self) -> int:
        return len(self._jobs)

    def jobs(self) -> list[Job]:
        return self._jobs


def job(id: str) -> Job:
    return Job(
        id=id,
        pool="web",
        pool_id="p",
        status=Status.COMPLETED,
        submitted_at=AT,
        started_at=AT,
        finished_at=AT,
    )


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def hear(stop: Stop) -> None:
    say("stop", stop.grace, stop.why)


def main(descriptor: int, words: list[str]) -> None:
    post = ControlThread(socket.socket(fileno=descriptor), Runtime())
    post.start()
    for number in range(4):
        told = finished(job(f"done-{number}"), post.employ.worker)
        assert told is not None
        post.history.add(told)
    if "blocked" in words:
        loop = asyncio.new_event_loop()
        Thread(target=loop.run_forever, daemon=True).start()
        loop.call_soon_threadsafe(Event().wait)
        post.watch(loop)
    if "starting" not in words:
        post.ready(Still(words), hear, lambda within: say("farewell"))
    Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
