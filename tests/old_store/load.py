"""Restores the stores of an earlier version for a test.

By the clock of the store it is two hours after they were written, whenever a test runs: scheduled
jobs are due, and nothing is old enough to be pruned.
"""

from __future__ import annotations

import gzip
import re
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

HERE = Path(__file__).parent
LATER = 7200.0

_WRITTEN = "SELECT max(since) FROM poolhand_waits"
_SET_CLOCK = "UPDATE poolhand_counters SET skew = extract(epoch FROM clock_timestamp()) - {now}"


def load_sqlite(path: Path) -> datetime:
    """Write the file; return the time that the wall clock must show."""
    path.write_bytes(gzip.decompress((HERE / "sqlite.db.gz").read_bytes()))
    with sqlite3.connect(path) as connection:
        (written,) = connection.execute(_WRITTEN).fetchone()
    connection.close()
    # A process of another boot sets the clock of the store by its wall clock.
    return datetime.fromtimestamp(written + LATER, UTC)


async def load_postgres(url: str) -> datetime:
    """Fill a schema that does not exist yet; return the time that the wall clock must show."""
    database, _, schema = url.partition("?schema=")
    text = gzip.decompress((HERE / "postgres.sql.gz").read_bytes()).decode()
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(f"CREATE SCHEMA {schema}")
        await connection.execute(re.sub(r"\bpublic\.", f"{schema}.", text))
        await connection.execute(f"SET search_path = {schema}")
        now = await connection.fetchval(_WRITTEN) + LATER
        await connection.execute(_SET_CLOCK.format(now=now))
    finally:
        await connection.close()
    return datetime.fromtimestamp(now, UTC)
