"""A job that was deleted before its idempotency key."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import asyncpg

from poolhand import Ticket
from poolhand.app import App
from tests.contract.support import over

FORGET = (
    "DELETE FROM poolhand_ends WHERE seq IN (SELECT seq FROM poolhand_jobs WHERE name = 'count')",
    "DELETE FROM poolhand_jobs WHERE name = 'count'",
)


async def forget(url: str) -> None:
    """Delete the rows of jobs and leave their keys, as a restored table may."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            for statement in FORGET:
                file.execute(statement)
        return
    database, _, schema = url.partition("?schema=")
    connection = await asyncpg.connect(database)
    await connection.execute(f"SET search_path = {schema}")
    for statement in FORGET:
        await connection.execute(statement)
    await connection.close()


async def test_a_key_that_outlives_its_job_does_not_block_a_new_job(shared_url: str) -> None:
    app = App(shared_url)
    ran: list[int] = []

    @app.task(name="count")
    async def run() -> int:
        ran.append(len(ran))
        return ran[-1]

    async def submit() -> Ticket[int]:
        return await run.with_options(idempotency_key="k").submit()

    async with app, app.worker():
        assert await (await submit()) == 0
        assert await (await submit()) == 0
    await forget(shared_url)
    async with app, app.worker():
        assert await (await submit()) == 1
        tickets = await asyncio.gather(*(submit() for _ in range(4)))
        assert {await ticket for ticket in tickets} == {1}
        assert (await app.operator().job(tickets[0].id)) is not None
    assert ran == [0, 1]


async def test_the_job_of_a_key_is_kept_as_long_as_the_key(
    shared_url: str,
) -> None:
    app, ran = App(shared_url), []
    app.pool("kept", key_ttl=3600.0)

    @app.task(pool="kept", name="count")
    async def run(number: int) -> int:
        ran.append(number)
        return number

    async with app, app.worker():
        first = await run.with_options(idempotency_key="k").submit(1)
        other = await run.submit(2)
        assert [await first, await other] == [1, 2]
        connection = await app.core.connection()
        await connection.thread.ask(lambda: connection.store.prune(over(0.0)))
        assert await app.get(other.id) is None
        again = await run.with_options(idempotency_key="k").submit(1)
        assert (again.id, await again) == (first.id, 1)
    assert ran == [1, 2]
