"""A process of one of two services that share a store; each has a task that the other lacks.

python -c "from tests.faults.services_runner import run; run()" '{"service": "a", …}'

It submits so many jobs of its own task, then works until it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from poolhand import App
from tests.faults import bodies, outside

SLOTS = 10
AT_ONCE = 200
LOOK = 0.1


async def main(service: str, pool: str, numbers: tuple[int, int], works: bool) -> None:
    acks = outside.Lines(bodies.FOLDER / outside.ACKS)
    harness = int(os.environ["FAULTS_HARNESS"])
    app = App(os.environ["FAULTS_URL"])

    @app.task(name=f"{service}.act", pool=pool)
    async def act(number: int) -> int:
        bodies.effects.write("effect", service=service, number=number)
        return number

    async with app:
        first, last = numbers
        for start in range(first, last, AT_ONCE):
            calls = [(number,) for number in range(start, min(start + AT_ONCE, last))]
            for ticket, (number,) in zip(await act.submit_many(calls), calls, strict=True):
                acks.write("ack", service=service, number=number, job=ticket.id)
        if works:
            told = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
            async with app.worker(SLOTS):
                while os.getppid() == harness and not told.is_set():
                    await bodies.while_passing(LOOK)


def run() -> None:
    role = json.loads(sys.argv[1])
    first, last = role.get("numbers", (0, 0))
    asyncio.run(main(role["service"], role["pool"], (first, last), role.get("works", False)))
