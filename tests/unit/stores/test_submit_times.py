"""Submit time and user of jobs: found by an index, in rows of older versions as well."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from poolhand.contract import Filter, Store
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import Keep
from poolhand.stores.postgres.connections import SETTINGS, address_of
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.postgres.tables import Dialect
from poolhand.stores.sql import find as sql_find
from poolhand.stores.sql.find import BETWEEN
from poolhand.stores.sqlite.store import SqliteStore
from tests.contract.support import START, Clock, Hand, ids, order, owner

LATER = START + timedelta(seconds=10)
AS_OLDER_CODE_DOES = "UPDATE poolhand_jobs SET submitted = NULL, user_name = NULL WHERE id IN {}"
UNDATED = "SELECT count(*) FROM poolhand_jobs WHERE submitted IS NULL"

Run = Callable[[str], Awaitable[list[tuple[Any, ...]]]]


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Hand, Run]:
    """Return a `Hand` on a store, and a function that runs a statement on its tables."""
    clock, path = Clock(), tmp_path / "jobs.db"
    store: Store
    run: Run
    if request.param == "sqlite":
        store = SqliteStore(path, clock)

        async def run(text: str) -> list[tuple[Any, ...]]:
            with sqlite3.connect(path) as connection:
                found = connection.execute(text).fetchall()
            connection.close()
            return found

    else:
        url: str = request.getfixturevalue("store_schema")
        store = PostgresStore(url, clock, lambda: (clock.now, clock.date))

        async def run(text: str) -> list[tuple[Any, ...]]:
            return await on_server(url, text)

    await store.open()
    await store.enroll(owner("hand"))
    return Hand(store, clock), run


async def on_server(url: str, *texts: str) -> list[tuple[Any, ...]]:
    address = address_of(url)
    settings = {**SETTINGS, "search_path": f'"{address.schema}"'}
    connection: Any = await asyncpg.connect(address.dsn, server_settings=settings)
    try:
        for text in texts[:-1]:
            await connection.execute(text)
        return [tuple(row) for row in await connection.fetch(texts[-1])]
    finally:
        await connection.close()


async def found(hand: Hand, which: Filter, limit: int = 100) -> str:
    page = await hand.store.find(which, limit=limit)
    counted = await hand.store.count(which)
    assert page.after is not None or sum(counted.values()) == len(page.jobs)
    return " ".join(ids(page.jobs))


async def test_jobs_that_older_code_wrote_are_found_among_the_others(
    world: tuple[Hand, Run],
) -> None:
    hand, run = world
    await hand.take_in("a", user="u")
    hand.clock.wait(10)
    await hand.take_in("b", "c", user="u")
    await hand.take_in("d", "e")
    await run(AS_OLDER_CODE_DOES.format("('a', 'b', 'd')"))
    assert await found(hand, Filter(since=LATER)) == "e d c b"
    assert await found(hand, Filter(user="u")) == "c b a"
    assert await found(hand, Filter(user="u", since=LATER), 1) == "c"
    assert await found(hand, Filter(until=LATER, statuses=(Status.QUEUED,))) == "a"
    page = await hand.store.find(Filter(since=LATER), limit=3)
    assert ids((await hand.store.find(Filter(since=LATER), page.after)).jobs) == ["b"]
    await hand.store.close()


async def test_rows_written_by_older_code_are_completed_by_a_prune(
    world: tuple[Hand, Run],
) -> None:
    hand, run = world
    await hand.take_in("a", "b", user="u")
    await run(AS_OLDER_CODE_DOES.format("('a', 'b')"))
    await hand.store.prune(Keep())
    assert await run(UNDATED) == [(0,)]
    assert await found(hand, Filter(since=START, until=LATER, user="u")) == "b a"
    await hand.store.close()


async def test_a_corrupt_row_does_not_block_a_prune(world: tuple[Hand, Run]) -> None:
    hand, run = world
    await hand.take_in("a")
    await run("UPDATE poolhand_jobs SET submitted = NULL, ordered = substr(ordered, 1, 5)")
    await hand.store.prune(Keep())
    assert await run(UNDATED) == [(0,)]
    await hand.store.close()


async def test_sqlite_finds_a_time_by_its_index(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db", Clock())
    await store.open()
    await store.close()
    connection = sqlite3.connect(tmp_path / "jobs.db")
    plans = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {BETWEEN}", (1.0, 2.0))]
    assert plans == [
        "SEARCH poolhand_jobs USING COVERING INDEX poolhand_jobs_by_time"
        " (submitted>? AND submitted<?)"
    ]
    alike = connection.execute(f"EXPLAIN QUERY PLAN {sql_find.BEGIN_ALIKE}", ("a", "b"))
    assert "COVERING INDEX poolhand_jobs_by_id (id>? AND id<?)" in alike.fetchall()[0][3]
    connection.close()


async def test_postgres_finds_a_time_by_its_index(schema: str) -> None:
    clock = Clock()
    store = PostgresStore(schema, clock, lambda: (clock.now, clock.date))
    await store.open()
    hand = Hand(store, clock)
    for lot in range(4):
        clock.wait(10)
        await hand.add(*(order(f"{lot}-{number}") for number in range(500)))
    await store.close()
    asked = Dialect(address_of(schema).schema).text(BETWEEN)
    rows = await on_server(
        schema,
        "ANALYZE poolhand_jobs",
        f"PREPARE asked(double precision, double precision) AS {asked}",
        "EXPLAIN EXECUTE asked(0, 1)",
    )
    text = "\n".join(line for (line,) in rows)
    assert "poolhand_jobs_by_time" in text
    assert "poolhand_jobs_pkey" not in text
    assert "Seq Scan" not in text
