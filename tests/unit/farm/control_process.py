"""A worker process with a control thread and nothing else.

The control thread ends its process, so it cannot run in the process of a test. It prints the orders
it receives. The words after the descriptor choose its state: `starting`, `wedged`, `spent`,
`blocked`, `busy`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from datetime import UTC, datetime
from threading import Event, Thread

from poolhand.farm.control_thread import ControlThread
from poolhand.farm.protocol import Stop
from poolhand.farm.records import finished
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime

AT = datetime(2030, 1, 2, tzinfo=UTC)


class Still:
    """A worker whose state never changes."""

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
    control = ControlThread(socket.socket(fileno=descriptor), Runtime())
    control.start()
    for number in range(4):
        record = finished(job(f"done-{number}"), control.start_message.worker)
        assert record is not None
        control.history.add(record)
    if "blocked" in words:
        loop = asyncio.new_event_loop()
        Thread(target=loop.run_forever, daemon=True).start()
        loop.call_soon_threadsafe(Event().wait)
        control.watch(loop)
    if "starting" not in words:
        control.ready(Still(words), hear, lambda within: say("clean exit"))
    Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
