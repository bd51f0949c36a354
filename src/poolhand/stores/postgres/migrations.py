"""The schema of a PostgreSQL store: created, migrated, and inspected from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from poolhand.contract.records import LockHolder, ServerSurvey, TableSize
from poolhand.runtime import Runtime
from poolhand.stores.postgres import errors as faults
from poolhand.stores.postgres.connections import BEGIN, Address, ServerConnection, connect
from poolhand.stores.postgres.tables import SCHEMA, Dialect, Locks, RawConnection
from poolhand.stores.sql import migrations
from poolhand.stores.sql.migrations import Migration, Taken, check, check_free
from poolhand.stores.sql.tables import Tables

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


# The server checks permissions, and whether it accepts writes, even if no row matches.
WRITES = (
    "DELETE FROM poolhand_jobs WHERE false",
    "INSERT INTO poolhand_waits SELECT * FROM poolhand_waits WHERE false",
)
SERVER = """
SELECT current_setting('server_version') AS version, current_user::text AS role,
    pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool AS read_only,
    clock_timestamp() AS at, current_setting('autovacuum')::bool AS autovacuum,
    current_setting('max_connections')::int AS most,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
    array_remove(ARRAY[
        CASE WHEN NOT current_setting('fsync')::bool THEN 'fsync' END,
        CASE WHEN NOT current_setting('full_page_writes')::bool THEN 'full_page_writes' END,
        CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'synchronous_commit' END
    ], NULL) AS unsafe
"""
# The privileges a worker needs on every table. Sequences of identity columns need none.
LACKING = """
SELECT name FROM (
    SELECT format('schema %s', nspname) AS name FROM pg_namespace
    WHERE oid = to_regnamespace($1) AND NOT has_schema_privilege(oid, 'USAGE')
    UNION ALL
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = to_regnamespace($1) AND c.relname LIKE 'poolhand\\_%' AND CASE c.relkind
        WHEN 'r' THEN NOT has_table_privilege(c.oid, 'SELECT') OR c.relname <> 'poolhand_schema'
            AND NOT (has_table_privilege(c.oid, 'INSERT')
                AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
        WHEN 'S' THEN c.relname LIKE '%\\_numbers' AND NOT has_sequence_privilege(c.oid, 'USAGE')
        END
) AS lacking ORDER BY name
"""
TABLES = """
SELECT relname::text AS name, n_live_tup AS live, n_dead_tup AS dead,
    pg_total_relation_size(relid) AS bytes
FROM pg_stat_user_tables
WHERE relid IN (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace($1))
    AND relname LIKE 'poolhand\\_%'
ORDER BY n_dead_tup DESC
"""
# Rows that died after the oldest snapshot of the database, or of a replica, are not vacuumed. A
# user may not see all activity of others; transactions that it cannot see are left out.
SNAPSHOTS = """
SELECT * FROM (
    SELECT format('pid %s (%s)', pid, coalesce(nullif(application_name, ''), usename)) AS who,
        extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
        AND backend_type NOT IN ('autovacuum worker', 'parallel worker')
    UNION ALL SELECT format('prepared transaction %s', gid),
        extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts WHERE database = current_database()) held
WHERE seconds IS NOT NULL ORDER BY seconds DESC LIMIT 1
"""
# The audit is numbered up to the oldest transaction of the whole server that has written.
WRITERS = """
SELECT * FROM (
    SELECT format('pid %s (%s) in database %s', pid,
            coalesce(nullif(application_name, ''), usename), datname) AS who,
        extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_xid IS NOT NULL
    UNION ALL SELECT format('prepared transaction %s in database %s', gid, database),
        extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts) held
WHERE seconds IS NOT NULL ORDER BY seconds DESC LIMIT 1
"""


async def schema_of(address: Address) -> tuple[int, int]:
    """Return the schema number of a store, 0 if there is none, and the newest known here."""
    async with _connected(address) as connection:
        taken = await applied(connection, Dialect(address.schema))
    return max(taken, default=0), len(migrations.steps("postgres"))


async def survey_of(address: Address, runtime: Runtime) -> ServerSurvey:
    """Inspect a server and our tables on it."""
    schema = Dialect(address.schema).schema
    async with _connected(address) as connection:
        began, here = runtime.monotonic(), runtime.wall()
        (server,) = await connection.fetch(SERVER)
        half_way = (runtime.monotonic() - began) / 2
        lacking = [name for (name,) in await connection.fetch(LACKING, schema)]
        tables = await connection.fetch(TABLES, schema)
        snapshots = await connection.fetch(SNAPSHOTS)
        writers = await connection.fetch(WRITERS)
        is_closed = "poolhand_schema" in lacking or any(" " in name for name in lacking)
        taken = {} if is_closed else await applied(connection, Dialect(address.schema))
    facts: dict[str, Any] = dict(server)
    at, unsafe = facts.pop("at"), facts.pop("unsafe")
    return ServerSurvey(
        **facts,
        ahead=(at - here).total_seconds() - half_way,
        unsafe=tuple(unsafe),
        schema=schema,
        lacking=tuple(lacking),
        tables=tuple(TableSize(*row) for row in tables),
        snapshot=LockHolder(*snapshots[0]) if snapshots else None,
        writer=LockHolder(*writers[0]) if writers else None,
        since=max((step.compatible for step in taken.values()), default=0),
    )


def try_to_write(tables: Tables) -> None:
    """Run statements that need every permission for adding a job, but change no row."""
    for text in WRITES:
        tables.execute(text)


@asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[RawConnection]:
    connection = await connect(address)
    try:
        # Outside a transaction, a pooler may send every statement to another server process.
        await connection.execute(f"{BEGIN} READ ONLY")
        yield connection
    finally:
        await connection.close(timeout=1.0)
