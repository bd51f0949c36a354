"""A process that shares a pool in a file: it has four jobs running, says so, and waits."""

from __future__ import annotations

import asyncio
import sys

from poolhand import App, Pool, Retry

app = App("memory://")
began = asyncio.Semaphore(0)


@app.task(name="partner.hold")
async def hold() -> None:
    began.release()
    await asyncio.Event().wait()


async def main() -> None:
    options = {"scope": "pipeline", "scope_id": "night", "dir": sys.argv[1]}
    async with Pool("kept", max_concurrent=4, retry=Retry(attempts=3), **options) as pool:  # type: ignore[arg-type]
        for _ in range(4):
            await pool.submit(hold)
        for _ in range(4):
            await began.acquire()
        sys.stdout.write("running\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
