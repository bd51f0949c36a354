"""Migrations of PostgreSQL: applied once, by one process, while others continue."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from poolhand.contract import ClaimRequest, Filter, JobBatch
from poolhand.errors import Corrupt, ReadOnly, SchemaTooNew
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import bounded
from poolhand.rules.queue.strategy import fair_round_robin
from poolhand.runtime import Runtime
from poolhand.stores.postgres.connections import ServerConnection, address_of
from poolhand.stores.postgres.migrations import migrate
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.sql import migrations
from poolhand.stores.sql.migrations import Migration
from tests.contract.support import Clock, Hand, order, over, owner, spec
from tests.extent import times
from tests.private_servers.postgres_server import PostgresServer
from tests.unit.stores.tables import postgres_faults

AT = datetime(2030, 1, 1, tzinfo=UTC)
LIMIT = 50  # seconds after which a wait gives up
FIRST = Migration(
    1, "first", "CREATE TABLE poolhand_one (a int);\nINSERT INTO poolhand_one VALUES (1);"
)
SECOND = Migration(2, "second", "ALTER TABLE poolhand_one ADD COLUMN b int DEFAULT 2;")
BROKEN = Migration(
    2, "broken", "CREATE TABLE poolhand_two (a int); INSERT INTO nowhere VALUES (1);"
)
OTHER = Migration(1, "first", "CREATE TABLE poolhand_one (a bigint);")
ADDS = Migration(2, "adds", "-- compatible with 1\nCREATE TABLE poolhand_more (a int);")
ADDS_MORE = Migration(3, "more", "-- compatible with 2\nCREATE TABLE poolhand_again (a int);")
OWN = migrations.steps("postgres")


async def take(url: str, *steps: Migration) -> int:
    link = ServerConnection(address_of(url))
    link.open()
    try:
        return await migrate(link, link.address, AT, steps)
    finally:
        await link.close()


async def ask(url: str, text: str, *values: object) -> list[tuple[Any, ...]]:
    address = address_of(url)
    connection: Any = await asyncpg.connect(
        address.dsn, server_settings={"search_path": f'"{address.schema}"'}
    )
    try:
        return [tuple(row) for row in await connection.fetch(text, *values)]
    finally:
        await connection.close()


async def tables(url: str, schema: str | None = None) -> list[str]:
    text = "SELECT tablename FROM pg_tables WHERE schemaname = $1"
    return sorted(name for (name,) in await ask(url, text, schema or address_of(url).schema))


async def test_missing_steps_are_taken_in_order_and_noted(schema: str) -> None:
    assert await take(schema, FIRST) == 1
    assert await take(schema, FIRST, SECOND) == 1
    assert await take(schema, FIRST, SECOND) == 0
    assert await ask(schema, "SELECT * FROM poolhand_one") == [(1, 2)]
    rows = await ask(schema, "SELECT number, name, applied_at FROM poolhand_schema")
    assert rows == [(1, "first", AT.isoformat()), (2, "second", AT.isoformat())]


async def test_a_step_that_fails_halfway_leaves_nothing_and_can_be_applied_later(
    schema: str,
) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await take(schema, FIRST, BROKEN)
    assert await tables(schema) == []
    assert await take(schema, FIRST, SECOND) == 2


async def test_a_newer_schema_is_refused_and_left_unchanged(schema: str) -> None:
    await take(schema, FIRST, SECOND)
    with pytest.raises(SchemaTooNew, match=r"has schema 2, .* up to 1: run the newer version"):
        await take(schema, FIRST)
    assert await tables(schema) == ["poolhand_one", "poolhand_schema"]
    assert len(await ask(schema, "SELECT 1 FROM poolhand_schema")) == 2


async def test_a_changed_step_is_reported(schema: str) -> None:
    await take(schema, FIRST)
    with pytest.raises(Corrupt, match=r"step 1 \(first\) of its schema is not the one"):
        await take(schema, OTHER, SECOND)
    assert await tables(schema) == ["poolhand_one", "poolhand_schema"]


async def test_a_missing_step_in_between_is_reported(schema: str) -> None:
    await take(schema, FIRST, ADDS)
    await ask(schema, "DELETE FROM poolhand_schema WHERE number = 1")
    with pytest.raises(Corrupt, match="lacks step 1"):
        await take(schema, FIRST, ADDS)


async def test_a_store_is_no_older_than_its_own_schema(schema: str) -> None:
    newer = (
        *OWN,
        Migration(len(OWN) + 1, "breaks", "ALTER TABLE poolhand_waits RENAME TO poolhand_w;"),
    )
    await take(schema, *newer)
    store = PostgresStore(schema, Runtime())
    with pytest.raises(SchemaTooNew):
        await store.open()
    await store.close()


# Compatible steps


@pytest.mark.parametrize(
    ("text", "oldest"),
    [
        ("CREATE TABLE a (b int);", 5),
        ("-- compatible with 3\nCREATE TABLE a (b int);", 3),
        ("-- Some words.\n-- compatible with 3", 5),
        ("-- compatible with 3 and others", 5),
    ],
    ids=["silent", "told", "later", "unclear"],
)
def test_the_first_line_of_a_step_names_the_oldest_compatible_version(
    text: str, oldest: int
) -> None:
    assert Migration(5, "name", text).compatible == oldest


async def test_older_code_opens_a_schema_with_compatible_newer_steps(schema: str) -> None:
    await take(schema, FIRST, ADDS)
    assert await take(schema, FIRST) == 0
    await take(schema, FIRST, ADDS, ADDS_MORE)
    assert await take(schema, FIRST, ADDS) == 0


async def test_every_step_beyond_has_to_allow_it(schema: str) -> None:
    await take(schema, FIRST, ADDS, ADDS_MORE)
    with pytest.raises(SchemaTooNew):
        await take(schema, FIRST)


async def test_older_code_still_checks_its_own_steps(schema: str) -> None:
    await take(schema, FIRST, ADDS)
    with pytest.raises(Corrupt):
        await take(schema, OTHER)


def additive() -> Migration:
    """Return a migration step on the present tables, as a next version might have."""
    number = len(OWN) + 1
    changes = [
        f"ALTER TABLE {name} ADD COLUMN extra text NOT NULL DEFAULT 'x';"
        for name in (
            *("poolhand_jobs", "poolhand_waits", "poolhand_claims", "poolhand_ends"),
            *("poolhand_pools", "poolhand_tallies", "poolhand_owners", "poolhand_documents"),
            *("poolhand_log", "poolhand_audit", "poolhand_keys", "poolhand_sessions"),
        )
    ]
    added = "CREATE TABLE poolhand_extra (a int); CREATE INDEX ON poolhand_ends (over_at);"
    return Migration(
        number, "extra", "\n".join([f"-- compatible with {number - 1}", *changes, added])
    )


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Hand]:
    store = PostgresStore(url, Runtime())
    await store.open()
    try:
        await store.enroll(owner("hand"))
        yield Hand(store, Clock())
    finally:
        await store.close()


async def work(hand: Hand, name: str, url: str) -> None:
    """Do a little of everything."""
    store = hand.store
    orders = [
        order(f"{name}-free", "free"),
        order(f"{name}-turn", "capped", session="s", idempotency_key=name),
        order(f"{name}-fair", "fair", key=name),
    ]
    await store.add([JobBatch(tuple(orders), "hand")])
    claims = await hand.claim(10)
    assert len(claims) == 3
    await hand.retry(claims[0])
    replaced = await store.replace(
        [hand.ended(one) for one in claims[1:]], ClaimRequest("hand", (0,))
    )
    await hand.finish(*replaced.claims)
    await store.promote()
    await store.prune(over(0.0))
    await store.read(STREAM)
    assert await postgres_faults(url) == []


async def declare(hand: Hand) -> None:
    await hand.store.declare(spec("free"))
    await hand.store.declare(spec("capped", slots=5, backpressure=bounded(100_000)))
    await hand.store.declare(spec("fair", queue=fair_round_robin()))


async def test_an_open_store_continues_when_a_newer_version_adds_to_its_tables(
    schema: str,
) -> None:
    async with opened(schema) as hand:
        await declare(hand)
        await work(hand, "before", schema)
        await take(schema, *OWN, additive())
        for number in range(3):
            await work(hand, f"after-{number}", schema)
        async with opened(schema) as another:
            await work(another, "opened-later", schema)


@pytest.mark.slow
async def test_tables_are_changed_under_load_without_an_error(schema: str) -> None:
    async with opened(schema) as hand:
        await declare(hand)
        changed = asyncio.Event()

        async def submit(who: int) -> int:
            number = 0
            while not changed.is_set() or number < 20:
                await hand.store.add([JobBatch((order(f"{who}-{number}", "capped", session="s"),))])
                number += 1
            return number

        crowd = [asyncio.create_task(submit(who)) for who in range(4)]
        await take(schema, *OWN, additive())
        changed.set()
        total = sum(await asyncio.gather(*crowd))
        found = await hand.store.count(Filter(pool="capped"))
        assert sum(found.values()) == total
        assert set(found) <= {Status.QUEUED, Status.BLOCKED}


# Rights and races


def open_once(url: str, starts: Any) -> None:
    async def main() -> None:
        starts.wait(LIMIT)
        store = PostgresStore(url, Runtime())
        await store.open()
        await store.add([JobBatch((order(f"job-{multiprocessing.current_process().pid}"),))])
        await store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_many_processes_may_open_an_empty_schema_at_once(schema: str) -> None:
    context, many = multiprocessing.get_context("spawn"), times(4, 8)
    starts = context.Barrier(many)
    crew = [context.Process(target=open_once, args=(schema, starts)) for _ in range(many)]
    for one in crew:
        one.start()
    for one in crew:
        one.join(LIMIT)
        if one.exitcode is None:
            one.kill()
    assert [one.exitcode for one in crew] == [0] * many
    assert asyncio.run(ask(schema, "SELECT number FROM poolhand_schema")) == [
        (step.number,) for step in OWN
    ]
    assert len(asyncio.run(ask(schema, "SELECT 1 FROM poolhand_jobs"))) == many


async def test_a_user_without_the_right_to_create_tables_gets_an_error_with_the_fix(
    postgres: PostgresServer, database: str
) -> None:
    postgres.query("DROP ROLE IF EXISTS guest; ")
    postgres.query("CREATE ROLE guest LOGIN")
    postgres.query("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database)
    guest = database.replace("poolhand@", "guest@")
    for url in (guest, f"{guest}?schema=other"):
        store = PostgresStore(url, Runtime())
        with pytest.raises(ReadOnly, match=r"permission denied.*GRANT statements"):
            await store.open()
    assert await tables(database) == []


async def test_a_user_who_may_only_use_the_tables_can_open_them(
    postgres: PostgresServer, database: str
) -> None:
    async with opened(database) as hand:
        await declare(hand)
    postgres.query("DROP ROLE IF EXISTS user_of_tables")
    postgres.query("CREATE ROLE user_of_tables LOGIN")
    postgres.query("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database)
    for what in ("TABLES", "SEQUENCES"):
        postgres.query(f"GRANT ALL ON ALL {what} IN SCHEMA public TO user_of_tables", database)
    async with opened(database.replace("poolhand@", "user_of_tables@")) as hand:
        await work(hand, "a", database)
    postgres.query("DROP OWNED BY user_of_tables", database)


@pytest.mark.parametrize(
    "name",
    ["Größe", 'with "quotes"', "with space; --", "select", "x" * 63, "poolhand_", "UPPER"],
    ids=["accents", "quotes", "marks", "keyword", "long", "prefix", "upper"],
)
async def test_any_schema_name_is_supported(database: str, name: str) -> None:
    url = f"{database}?schema={quote(name)}"
    async with opened(url) as hand:
        await declare(hand)
        await work(hand, "a", url)
    assert await tables(database) == []
    assert "poolhand_jobs" in await tables(database, name)


@pytest.mark.parametrize("made", ["TABLE poolhand_jobs (a int)", "SEQUENCE poolhand_job_numbers"])
async def test_a_table_of_another_program_is_left_unchanged(database: str, made: str) -> None:
    await ask(database, f"CREATE {made}")
    store = PostgresStore(database, Runtime())
    with pytest.raises(Corrupt) as caught:
        await store.open()
    text = caught.value.message
    assert f"there is a table or index '{made.split()[1]}' already which poolhand has no" in text
    assert "nothing was changed. It belongs to another program: give the store a schema" in text
    names = await ask(database, "SELECT relname FROM pg_class WHERE relname LIKE 'poolhand%'")
    assert names == [(made.split()[1],)]
    # In its own schema the same database can be used.
    async with opened(f"{database}{'&' if '?' in database else '?'}schema=jobs"):
        pass
