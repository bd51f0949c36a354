"""One of several processes that submit turns of one session, and run them."""

from __future__ import annotations

import asyncio
import sys

from poolhand import App, Session, wait

URL, NAME, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
LIMIT = 100

app = App(URL)


@app.agent
async def count(session: Session, message: str) -> None:
    session.state["messages"].append(message)


async def main() -> None:
    async with app, app.worker(slots=5):
        talk = count.session("one")
        submits = (talk.submit(f"{NAME}-{number}") for number in range(COUNT))
        jobs = await wait(await asyncio.gather(*submits), LIMIT)
        assert all(job.status == "completed" for job in jobs)


if __name__ == "__main__":
    asyncio.run(main())
