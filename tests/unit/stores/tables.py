"""Checks of the tables of a SQL store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg

from poolhand.stores.postgres.connections import address_of
from poolhand.stores.postgres.pools import is_free
from poolhand.stores.postgres.tables import Dialect
from poolhand.stores.sql.pools import spec_of

# Each query finds jobs or pools that violate a rule which holds after every commit.
RULES = {
    "a job is nowhere, or in two places": """
        SELECT id FROM poolhand_jobs j WHERE
            (SELECT count(*) FROM poolhand_waits WHERE seq = j.seq)
            + (SELECT count(*) FROM poolhand_claims WHERE seq = j.seq AND stuck = 0)
            + (SELECT count(*) FROM poolhand_ends WHERE seq = j.seq) <> 1
    """,
    "a place is held by a job that is not there": """
        SELECT seq FROM (SELECT seq FROM poolhand_waits UNION ALL SELECT seq FROM poolhand_ends
            UNION ALL SELECT seq FROM poolhand_claims UNION ALL SELECT holder FROM poolhand_sessions
            UNION ALL SELECT seq FROM poolhand_keys) held
        WHERE seq NOT IN (SELECT seq FROM poolhand_jobs)
    """,
    "a job is between two places": "SELECT seq FROM poolhand_waits WHERE place = 5",
    "a claim is of an owner that is not there": """
        SELECT token FROM poolhand_claims WHERE owner NOT IN (SELECT no FROM poolhand_owners)
    """,
    "a pool does not know its keys": """
        SELECT name FROM poolhand_pools p WHERE keys
            <> (SELECT count(*) FROM poolhand_keys WHERE pool = p.no AND ended IS NOT NULL)
    """,
    "a lane does not know its jobs": """
        SELECT l.key FROM poolhand_lanes l WHERE queued <> (
            SELECT count(*) FROM poolhand_waits w JOIN poolhand_jobs j ON j.seq = w.seq
            WHERE w.pool = l.pool AND w.place = 4 AND j.key = l.key AND w.rank = l.no)
    """,
    "a session is held by a job that is over or blocked": """
        SELECT line FROM poolhand_sessions s
        WHERE holder NOT IN (SELECT seq FROM poolhand_claims) AND holder NOT IN (
            SELECT seq FROM poolhand_waits WHERE place IN (1, 3, 4))
    """,
    "a turn waits for a session that nobody holds": """
        SELECT seq FROM poolhand_waits w WHERE place = 2 AND NOT EXISTS (
            SELECT 1 FROM poolhand_sessions WHERE pool = w.pool AND line = w.gate)
    """,
    "numbers of the log have gaps": """
        SELECT stream FROM poolhand_log a WHERE EXISTS (
            SELECT 1 FROM poolhand_log WHERE stream = a.stream AND last > a.last)
        AND NOT EXISTS (SELECT 1 FROM poolhand_log WHERE stream = a.stream AND first = a.last + 1)
    """,
}
# For pools that count their jobs.
COUNTS = {
    "a pool does not know who waits": """
        SELECT name FROM poolhand_pools p WHERE
            queued <> (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 4)
            OR scheduled <> (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 1)
            OR parked <> (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 0)
            OR waiting <> (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place > 0)
    """,
    "a pool does not know what runs": """
        SELECT name FROM poolhand_pools p
        WHERE running <> (SELECT count(*) FROM poolhand_claims WHERE pool = p.no)
    """,
}
OVER = "a pool does not know what is over"
OVER_IN_SQLITE = """
    SELECT name FROM poolhand_pools p WHERE completed + failed + cancelled + expired + rejected
        <> (SELECT count(*) FROM poolhand_ends WHERE pool = p.no)
"""
OVER_IN_POSTGRES = """
    SELECT name FROM poolhand_pools p WHERE (SELECT count(*) FROM poolhand_ends WHERE pool = p.no)
        <> (SELECT coalesce(sum(completed + failed + cancelled + expired + rejected), 0)
            FROM poolhand_tallies WHERE pool = p.no)
"""
FREE = """
    SELECT name FROM poolhand_pools
    WHERE running <> 0 OR waiting <> 0 OR queued <> 0 OR scheduled <> 0 OR parked <> 0
"""


def faults(path: Path) -> Iterator[str]:
    """Yield the faults in a file that no process writes to."""
    connection = sqlite3.connect(path)
    try:
        for what, text in {**RULES, **COUNTS, OVER: OVER_IN_SQLITE}.items():
            for (found,) in connection.execute(text):
                yield f"{what}: {found}"
    finally:
        connection.close()


async def postgres_faults(url: str) -> list[str]:
    """Return the faults in a schema at one moment; others may be writing to it."""
    address = address_of(url)
    connection: Any = await asyncpg.connect(address.dsn)
    dialect = Dialect(address.schema)

    async def ask(text: str) -> list[Any]:
        rows: list[Any] = await connection.fetch(dialect.text(text))
        return rows

    try:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        pools = await ask("SELECT name, spec, resized FROM poolhand_pools")
        free = {name for name, spec, resized in pools if is_free(spec_of(spec), resized)}
        found = []
        for what, text in {**RULES, OVER: OVER_IN_POSTGRES}.items():
            found += [f"{what}: {row[0]}" for row in await ask(text)]
        for what, text in COUNTS.items():
            found += [f"{what}: {row[0]}" for row in await ask(text) if row[0] not in free]
        wrong = [row[0] for row in await ask(FREE) if row[0] in free]
        return found + [f"a pool counts though it is free: {name}" for name in wrong]
    finally:
        await connection.close()
