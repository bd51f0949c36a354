"""A process of the row of tools: it submits jobs, works, and finally decides unknown calls.

python -c "from tests.faults.tools_runner import run; run()" '{"numbers": [1], "until": "over"}'

It ends when all is submitted, or, if told so, when all jobs are over. A settling process looks
outside whether an unknown call has happened, records it, and retries the job.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from typing import Any

from poolhand.contract import Filter
from tests.faults import bodies, outside
from tests.faults.tools_app import agent, app

SLOTS = 4
LOOK = 0.05
NAMED = re.compile(r"settle_tool\('([^']+)'")


async def main(numbers: list[int], until: str) -> None:
    acks = outside.Lines(bodies.FOLDER / outside.ACKS)
    harness = int(os.environ["FAULTS_HARNESS"])
    async with app:
        for number in numbers:
            ticket = await agent.submit(number)
            acks.write("ack", number=number, job=ticket.id)
        if until == "submitted":
            return
        async with app.worker(SLOTS):
            while not (until and await is_over(until == "settled")):
                await bodies.while_passing(LOOK)
                if os.getppid() != harness:
                    os._exit(1)


async def is_over(settles: bool) -> bool:
    """Return whether no work is left; decide the unknown calls."""
    connection = await app.core.connection()
    counts = await connection.thread.ask(lambda: connection.store.count(Filter()))
    if not all(status.terminal for status in counts):
        return False
    if not settles:
        return True
    page = await connection.thread.ask(lambda: connection.store.find(Filter(dead=True), None, 1000))
    unknown = [one.job for one in page.jobs if is_unknown(one.job)]
    for job in unknown:
        await settle(job)
    return not unknown


def is_unknown(job: Any) -> bool:
    return bool(job.error is not None and job.error.type.endswith("ToolOutcomeUnknown"))


async def settle(job: Any) -> None:
    (key,) = NAMED.findall(job.error.message)
    lines = outside.read(bodies.FOLDER / outside.EFFECTS)
    about = [one for one in lines if key.endswith(one.get("key", "?"))]
    happened = any(one["what"] == "effect" for one in about)
    result = f"{about[0]['tool']} {about[0]['number']}" if about else ""
    await app.settle_tool(key, happened=happened, result=result)
    bodies.effects.write("settled", job=job.id, key=key, happened=happened)
    (answer,) = await app.operator().retry([job.id], "harness")
    assert answer.done, answer


def run() -> None:
    role = json.loads(sys.argv[1])
    asyncio.run(main(role.get("numbers", []), role.get("until", "")))
