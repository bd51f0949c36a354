"""Inspects a PostgreSQL store from outside: on its own connection, changing nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from poolhand.runtime import Runtime
from poolhand.stores.postgres.migrations import applied
from poolhand.stores.postgres.server.address import Address
from poolhand.stores.postgres.server.connections import BEGIN, RawConnection, connect
from poolhand.stores.postgres.tables import Dialect
from poolhand.stores.sql import migrations
from poolhand.stores.sql.tables import Tables

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
SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace = to_regnamespace($1) AND c.relname LIKE 'poolhand\\_%' AND CASE c.relkind
    WHEN 'r' THEN c.relname <> 'poolhand_schema'
        AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
    WHEN 'S' THEN c.relname LIKE '%\\_numbers' AND NOT has_sequence_privilege(c.oid, 'USAGE')
    END
ORDER BY c.relname
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


class LockHolder(Struct, frozen=True):
    """A transaction that has been open for some seconds."""

    who: str
    seconds: float


class TableSize(Struct, frozen=True):
    """One of our tables: rows, dead rows not yet vacuumed, bytes including its indexes.

    The rows are as counted by the server's statistics, which may lag behind.
    """

    name: str
    live: int
    dead: int
    bytes: int


class ServerSurvey(Struct, frozen=True):
    """What can be known of a server and our tables on it without opening a store.

    `ahead`: the seconds by which its clock is ahead of this machine's. `unsafe`: settings that let
    a crash undo what was committed. `lacking`: tables and sequences that this user may not use.
    `snapshot` and `writer`: the oldest open ones. `since`: the number of the oldest schema whose
    code works with the present one.
    """

    version: str
    role: str
    read_only: bool
    ahead: float
    autovacuum: bool
    most: int
    connections: int
    unsafe: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    tables: tuple[TableSize, ...] = ()
    snapshot: LockHolder | None = None
    writer: LockHolder | None = None
    since: int = 0


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
        lacking = await connection.fetch(LACKING, schema)
        tables = await connection.fetch(TABLES, schema)
        snapshots = await connection.fetch(SNAPSHOTS)
        writers = await connection.fetch(WRITERS)
        taken = await applied(connection, Dialect(address.schema))
    facts: dict[str, Any] = dict(server)
    at, unsafe = facts.pop("at"), facts.pop("unsafe")
    return ServerSurvey(
        **facts,
        ahead=(at - here).total_seconds() - half_way,
        unsafe=tuple(unsafe),
        lacking=tuple(name for (name,) in lacking),
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
