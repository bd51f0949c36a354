"""Creates and migrates the tables of a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from poolhand.stores.postgres.locks import SCHEMA, Locks
from poolhand.stores.postgres.server import errors as faults
from poolhand.stores.postgres.server.address import Address
from poolhand.stores.postgres.server.connections import BEGIN, RawConnection, ServerConnection
from poolhand.stores.postgres.tables import Dialect
from poolhand.stores.sql import migrations
from poolhand.stores.sql.migrations import Migration, Taken, check, check_free

ANEW = 5  # attempts, if others conflict or the connection breaks
THERE = "SELECT to_regclass($1) IS NOT NULL"
APPLIED = "SELECT number, name, checksum, compatible FROM poolhand_schema ORDER BY number"
TABLE = """
CREATE TABLE IF NOT EXISTS poolhand_schema (
    number bigint PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at text NOT NULL,
    compatible bigint NOT NULL  -- the oldest schema whose code can go on after this step
)
"""
PRESENT = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace($1)"
IN_SCHEMA = "give the store a schema of its own (?schema=jobs in its URL), or rename that table"
TAKEN = "INSERT INTO poolhand_schema VALUES (?, ?, ?, ?, ?)"
# A statement that waits for a table lock blocks all later ones: give up early and retry.
PATIENT = "SET LOCAL lock_timeout = '2s'"


async def applied(connection: RawConnection, dialect: Dialect) -> dict[int, Taken]:
    """Return the steps that were applied to a schema, by number."""
    there = await connection.fetch(THERE, f"{dialect.schema}.poolhand_schema")
    if not there[0][0]:
        return {}
    rows = await connection.fetch(dialect.text(APPLIED))
    return {number: Taken(*facts) for number, *facts in rows}


async def migrate(
    link: ServerConnection, address: Address, at: datetime, known: Sequence[Migration] | None = None
) -> int:
    """Apply the missing steps, all or none; return how many.

    One process does it while the others wait. Raises SchemaTooNew and Corrupt before anything is
    changed.
    """
    steps = migrations.steps("postgres") if known is None else known
    for tries_left in reversed(range(ANEW)):
        try:
            return await _migrate(link, address, at, steps)
        except Exception as error:
            if not tries_left or not (faults.is_passing(error) or faults.is_cut(error)):
                raise
    raise AssertionError("it was taken, or it raised")


async def _migrate(
    link: ServerConnection, address: Address, at: datetime, steps: Sequence[Migration]
) -> int:
    dialect = Dialect(address.schema)
    async with link.lend() as connection:
        taken = await applied(connection, dialect)
        check(taken, steps, address.shown)
        if len(taken) >= len(steps):
            return 0
        await connection.execute(BEGIN)
        try:
            lock = Locks(address.schema).kind(SCHEMA)
            await connection.fetch("SELECT pg_advisory_xact_lock($1::int, 0)", lock)
            missing = await _take(connection, dialect, steps, address, at)
        except Exception:
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")
        return missing


async def _take(
    connection: RawConnection,
    dialect: Dialect,
    steps: Sequence[Migration],
    address: Address,
    at: datetime,
) -> int:
    # Only if it is missing: a user that may create tables may not be allowed to create a schema.
    if not (await connection.fetch("SELECT to_regnamespace($1) IS NOT NULL", dialect.schema))[0][0]:
        await connection.execute(f"CREATE SCHEMA {dialect.schema}")
    await connection.execute(f"{PATIENT}; SET LOCAL search_path TO {dialect.schema}")
    await connection.execute(TABLE)
    taken = await applied(connection, dialect)
    check(taken, steps, address.shown)
    present = {name for (name,) in await connection.fetch(PRESENT, dialect.schema)}
    check_free(steps[len(taken) :], present, address.shown, IN_SCHEMA)
    for step in steps[len(taken) :]:
        await connection.execute(step.text)
        facts = (step.number, step.name, step.checksum, at.isoformat(), step.compatible)
        await connection.fetch(dialect.text(TAKEN), *facts)
    return max(0, len(steps) - len(taken))
