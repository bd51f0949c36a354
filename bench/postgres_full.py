"""A database with a million finished jobs, made in a minute.

A thousand jobs are really run; then their rows are copied with other numbers and ids, and vacuumed
as autovacuum would do during a million jobs. The counts of the store are checked against the
tables afterwards.
"""

from __future__ import annotations

import asyncio

import asyncpg

from durable_full import ENDS, JOBS, completed, run_some
from postgres_server import beside

NAME = "million"
LOG, AUDIT = "poolhand_log", "poolhand_audit"
# Columns that must differ in a copy: numbers are increased, ids get another prefix. Columns that
# the server numbers itself are left out.
NUMBERS = {JOBS: ("seq",), ENDS: ("seq",), LOG: ("first", "last"), AUDIT: ()}
SEQUENCES = {"poolhand_job_numbers": (JOBS, "seq")}
COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = ''
ORDER BY attnum
"""
TALLY = """
INSERT INTO poolhand_tallies (pool, completed, failed, cancelled, expired, rejected)
SELECT pool, $1, 0, 0, 0, 0 FROM poolhand_ends LIMIT 1
"""


def full_store(near: str, finished: int) -> str:
    """The URL of a database with so many finished jobs beside another, made if it is missing."""
    url = beside(near, NAME)
    if asyncio.run(_made(near)):
        asyncio.run(run_some(url))
        asyncio.run(_copy_rows(url, finished))
        assert asyncio.run(completed(url)) >= finished
    return url


async def _made(near: str) -> bool:
    connection = await asyncpg.connect(near)
    try:
        await connection.execute(f"CREATE DATABASE {NAME}")
    except asyncpg.DuplicateDatabaseError:
        return False
    finally:
        await connection.close()
    return True


async def _copy_rows(url: str, finished: int) -> None:
    """Copy the rows of finished jobs until there are so many."""
    connection = await asyncpg.connect(url)
    real = await _count(connection, ENDS)
    times = -(-finished // real)
    async with connection.transaction():
        for table, moved in NUMBERS.items():
            await _copy(connection, table, moved, times - 1)
        for sequence, (table, column) in SEQUENCES.items():
            last = f"(SELECT max({column}) FROM {table})"  # noqa: S608
            await connection.execute(f"SELECT setval('{sequence}', {last})")
        await connection.execute(TALLY, real * (times - 1))
    for table in (ENDS, JOBS):
        assert await _count(connection, table) == real * times
    await connection.execute("VACUUM (FREEZE, ANALYZE)")
    await connection.execute("CHECKPOINT")
    await connection.close()


async def _copy(
    connection: asyncpg.Connection, table: str, moved: tuple[str, ...], times: int
) -> None:
    columns = [name for (name,) in await connection.fetch(COLUMNS, table)]
    steps = {
        name: await connection.fetchval(f"SELECT coalesce(max({name}), 0) FROM {table}")  # noqa: S608
        for name in moved
    }
    values = ", ".join(
        f"{name} + {steps[name]} * time"
        if name in steps
        else "to_char(time, 'FM000000-') || id"
        if name == "id"
        else name
        for name in columns
    )
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) "  # noqa: S608
        f"SELECT {values} FROM {table}, generate_series(1, {times}) AS time"
    )


async def _count(connection: asyncpg.Connection, table: str) -> int:
    count: int = await connection.fetchval(f"SELECT count(*) FROM {table}")  # noqa: S608
    return count
