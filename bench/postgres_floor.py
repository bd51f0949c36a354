"""The floor: asyncpg with one table and one connection.

Claims by `FOR UPDATE SKIP LOCKED`, one commit per statement. There is no record of the owner, no
order but that of arrival, no log.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg

from durable_cases import BATCH, MILLI, Span, batches

PAYLOAD = b"x" * 150
QUEUED, CLAIMED, DONE = range(3)
SCHEMA = """
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state smallint NOT NULL,
    payload bytea,
    result bytea
);
CREATE INDEX queued ON jobs (id) WHERE state = 0;
"""
INSERT = f"INSERT INTO jobs (state, payload) SELECT {QUEUED}, unnest($1::bytea[])"
CLAIM = f"""
UPDATE jobs SET state = {CLAIMED}
WHERE id = ANY(ARRAY(
    SELECT id FROM jobs WHERE state = {QUEUED} ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
))
RETURNING id, payload
"""  # noqa: S608
COMPLETE = f"UPDATE jobs SET state = {DONE}, result = $1 WHERE id = ANY($2::bigint[])"  # noqa: S608
COUNT = f"SELECT count(*) FROM jobs WHERE state = {DONE}"  # noqa: S608


class Floor:
    """A table used as a queue: a hundred jobs per claim and per update of their end."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def put(self, count: int) -> None:
        """All of them in one statement."""
        await self._connection.execute(INSERT, [PAYLOAD] * count)

    async def drain(self, count: int) -> Span:
        span = Span()
        with span.timed():
            for _ in batches(count):
                await self.finish(await self.take(BATCH))
        return span

    async def done(self) -> int:
        over: int = await self._connection.fetchval(COUNT)
        return over

    async def take(self, count: int) -> list[int]:
        return [id for id, _ in await self._connection.fetch(CLAIM, count)]

    async def finish(self, taken: list[int]) -> None:
        await self._connection.execute(COMPLETE, b"null", taken)


class Copying(Floor):
    """The same, filled by COPY."""

    async def put(self, count: int) -> None:
        rows = [(QUEUED, PAYLOAD)] * count
        columns = ["state", "payload"]
        await self._connection.copy_records_to_table("jobs", records=rows, columns=columns)


@asynccontextmanager
async def floor(url: str, kind: type[Floor] = Floor) -> AsyncIterator[Floor]:
    """The floor in an empty database."""
    connection = await asyncpg.connect(url)
    await connection.execute(SCHEMA)
    yield kind(connection)
    await connection.close()


def copying(url: str) -> AbstractAsyncContextManager[Floor]:
    """The floor, filled by COPY."""
    return floor(url, Copying)


async def starts(count: int, url: str) -> list[float]:
    """Milliseconds of a put and a claim, a commit each: the minimum of a start."""
    took = []
    async with floor(url) as table:
        for _ in range(count):
            began = time.perf_counter()
            await table.put(1)
            taken = await table.take(1)
            took.append((time.perf_counter() - began) * MILLI)
            await table.finish(taken)
    return took
