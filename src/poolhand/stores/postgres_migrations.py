"""How the tables of a PostgreSQL store come into being and are brought up to date.

While a new version is rolled out, processes of the one before go on with tables that a newer one
has changed. That is possible only where a step adds something that older code need not know of: a
table, an index, a column that may be left out. Such a step says so in its first line,

    -- compatible with 3

"code that knows the schema up to 3 can go on". It is kept beside the step, so that older code finds
it when it opens the store. A step that says nothing is for those alone who know it: all others are
refused with SchemaTooNew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from poolhand.stores import migrations
from poolhand.stores import postgres_faults as faults
from poolhand.stores.migrations import Step
from poolhand.stores.postgres_address import Address
from poolhand.stores.postgres_link import Link, Raw
from poolhand.stores.postgres_locks import SCHEMA, Locks
from poolhand.stores.postgres_tables import Dialect

ANEW = 5  # times that it is begun, as others are in its way or the connection breaks
COMPATIBLE = re.compile(r"-- compatible with (\d+)$", re.MULTILINE)
THERE = "SELECT to_regclass($1) IS NOT NULL"
APPLIED = "SELECT number, name, checksum, compatible FROM poolhand_schema ORDER BY number"
TABLE = """
CREATE TABLE IF NOT EXISTS poolhand_schema (
    number bigint PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at text NOT NULL,
    compatible bigint NOT NULL  -- the oldest schema whose code can go on after this step
)
"""
TAKEN = "INSERT INTO poolhand_schema VALUES (?, ?, ?, ?, ?)"
# Whoever waits for a table holds up all who come after it: rather once more, later.
PATIENT = "SET LOCAL lock_timeout = '2s'"


class Taken(Struct, frozen=True):
    """A step that a schema has behind it."""

    name: str
    checksum: str
    compatible: int


def compatible(step: Step) -> int:
    """Return the oldest schema whose code can go on after a step."""
    said = COMPATIBLE.match(step.text)
    return step.number if said is None else int(said[1])


def check(taken: Mapping[int, Taken], known: Sequence[Step], where: str) -> None:
    """Refuse a schema that this code cannot use, or that was made by other steps."""
    newer = [one.compatible for number, one in taken.items() if number > len(known)]
    can_go_on = max(newer, default=0) <= len(known)
    ours = {
        number: (one.name, one.checksum)
        for number, one in taken.items()
        if number <= len(known) or not can_go_on
    }
    migrations.check(ours, known, where)


async def applied(connection: Raw, dialect: Dialect) -> dict[int, Taken]:
    """Return the steps that a schema has behind it, by number."""
    there = await connection.fetch(THERE, f"{dialect.schema}.poolhand_schema")
    if not there[0][0]:
        return {}
    rows = await connection.fetch(dialect.text(APPLIED))
    return {number: Taken(*facts) for number, *facts in rows}


async def migrate(
    link: Link, address: Address, at: datetime, known: Sequence[Step] | None = None
) -> int:
    """Take the steps that are missing, all or none; return how many.

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


async def _migrate(link: Link, address: Address, at: datetime, steps: Sequence[Step]) -> int:
    dialect = Dialect(address.schema)
    async with link.lend() as connection:
        taken = await applied(connection, dialect)
        check(taken, steps, address.shown)
        if len(taken) >= len(steps):
            return 0
        await connection.execute("BEGIN")
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
    connection: Raw, dialect: Dialect, steps: Sequence[Step], address: Address, at: datetime
) -> int:
    # Asked for only where it is missing: not everybody who may make tables may make a schema.
    if not (await connection.fetch("SELECT to_regnamespace($1) IS NOT NULL", dialect.schema))[0][0]:
        await connection.execute(f"CREATE SCHEMA {dialect.schema}")
    await connection.execute(f"{PATIENT}; SET LOCAL search_path TO {dialect.schema}")
    await connection.execute(TABLE)
    taken = await applied(connection, dialect)
    check(taken, steps, address.shown)
    for step in steps[len(taken) :]:
        await connection.execute(step.text)
        facts = (step.number, step.name, step.checksum, at.isoformat(), compatible(step))
        await connection.fetch(dialect.text(TAKEN), *facts)
    return max(0, len(steps) - len(taken))
