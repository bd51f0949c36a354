"""A process that shares a pool and obeys lines on its standard input until that ends.

Every job reports its begin on a pipe that all share, waits for the gate, and writes its begin and
its end to a file.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

from poolhand import App, Pool, Retry, current_job, fencing_token, wait
from poolhand.views import Status

URL, FOLDER, PIPE, CAP = sys.argv[1:]
STORY, GATE = Path(FOLDER) / "story", Path(FOLDER) / "gate"

app = App("memory://")


def note(what: str, fd: int) -> None:
    job = current_job()
    assert job is not None
    # One write: appended at once.
    os.write(fd, f"{what} {job.id} {os.getpid()} {fencing_token()}\n".encode())


@app.task(name="work")
def work() -> int:
    """Be seen from outside while it runs."""
    story = os.open(STORY, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    gate = os.open(GATE, os.O_RDONLY)
    try:
        note("begin", story)
        os.write(int(PIPE), b".")
        fcntl.flock(gate, fcntl.LOCK_SH)
        note("end", story)
    finally:
        os.close(gate)
        os.close(story)
    return os.getpid()


async def obey(pool: Pool, order: str, number: int) -> Any:
    match order:
        case "tasks":
            return [(await pool.submit(work)).id for _ in range(number)]
        case "closures":
            return [(await pool.submit(lambda: work.code.fn())).id for _ in range(number)]
        case "run":
            tickets = [await pool.submit(work) for _ in range(number)]
            jobs = await wait(tickets)
            return [job.id for job in jobs if job.status is Status.COMPLETED]
        case "keyed":
            tickets = [
                await pool.with_options(idempotency_key=f"key-{n}").submit(work)
                for n in range(number)
            ]
            return [ticket.id for ticket in tickets]
        case _:
            seen = pool.snapshot()
            return [seen.max_concurrent, seen.scope_id, seen.id]


def answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def main() -> None:
    place = {"scope": "tenant", "scope_id": "acme", "store": URL}
    # With one attempt, an interrupted job would run again in a child, which has no pipe.
    rules: dict[str, Any] = {**place, "retry": Retry(attempts=3)}
    async with Pool("research", max_concurrent=int(CAP), drain_timeout=0, **rules) as pool:
        answer("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer(await obey(pool, *json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main())
