"""A worker process of the durable benchmark: runs jobs until its input ends, then reports.

It prints "ready" when it works; the last line is JSON: how many jobs ran, when the last one did,
the CPU time since it was ready.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from durable_cases import POOL, SLOTS
from poolhand import App
from poolhand.durable.client.task import Task


class Ran:
    """Counters of the task in this process."""

    def __init__(self) -> None:
        self.jobs = 0
        self.last = 0.0

    def one(self) -> float:
        self.jobs += 1
        self.last = time.perf_counter()
        return self.last


def make(url: str) -> tuple[App, Task[..., Any, Any], Ran]:
    """An app whose task returns the time of its run, by a clock that all processes share."""
    app, ran = App(url), Ran()

    @app.task(pool=POOL, name="tell_when")
    async def tell_when(number: int) -> float:
        return ran.one()

    return app, tell_when, ran


async def work(url: str) -> None:
    """Run jobs until standard input is closed."""
    app, _, ran = make(url)
    async with app, app.worker(slots=SLOTS):
        cpu = time.process_time()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        cpu = time.process_time() - cpu
    print(json.dumps({"jobs": ran.jobs, "last": ran.last, "cpu": cpu}), flush=True)


class WorkerProcess:
    """A worker in another process, seen from outside."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said == "ready", f"a worker said {said!r}"

    def stop(self) -> dict[str, float]:
        """Stop it; return its report."""
        told, _ = self._process.communicate(timeout=30)
        figures: dict[str, float] = json.loads(told)
        return figures

    def kill(self) -> None:
        """Kill it if it still runs."""
        self._process.kill()
        self._process.wait()


@asynccontextmanager
async def workers(url: str, count: int) -> AsyncIterator[list[WorkerProcess]]:
    """So many ready workers; all are ended with the block."""
    started = [WorkerProcess(url) for _ in range(count)]
    try:
        for one in started:
            await asyncio.to_thread(one.wait_ready)
        yield started
    finally:
        for one in started:
            one.kill()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
