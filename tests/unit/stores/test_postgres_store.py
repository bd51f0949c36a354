"""A PostgreSQL store that is closed, forked, moved to another loop, or loses its tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from poolhand.contract import Change, ClaimRequest, Filter, JobBatch, Refusal
from poolhand.errors import Conflict, Corrupt, Unavailable
from poolhand.rules import lifecycle
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import OnFull, bounded
from poolhand.runtime import Runtime
from poolhand.stores.postgres.connections import address_of
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.postgres.tables import POOLS, Locks
from poolhand.stores.sql.pools import encode_spec
from tests.contract.support import Clock, Hand, entries, order, owner, spec
from tests.private_servers.postgres_server import PostgresServer
from tests.unit.stores.test_postgres_connections import in_a_fork


@pytest.fixture
async def store(schema: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(schema, Runtime())
    await made.open()
    yield made
    await made.close()


async def add(store: PostgresStore, id: str) -> list[str]:
    (answer,) = await store.add([JobBatch((order(id),))])
    return entries(answer)


async def test_a_store_that_is_not_open_raises(schema: str) -> None:
    store = PostgresStore(schema, Runtime())
    with pytest.raises(Unavailable, match="not open"):
        await add(store, "a")
    await store.open()
    await add(store, "a")
    await store.close()
    with pytest.raises(Unavailable, match="not open"):
        await add(store, "b")
    with pytest.raises(Unavailable, match="not open"):
        await store.find(Filter())
    store.publish("word")


def test_a_store_can_be_opened_by_one_loop_after_the_other(schema: str) -> None:
    store = PostgresStore(schema, Runtime())

    async def main(first: str) -> list[list[str]]:
        await store.open()
        try:
            return await asyncio.gather(*[add(store, f"{first}{n}") for n in range(10)])
        finally:
            await store.close()

    assert asyncio.run(main("a")) == asyncio.run(main("b")) == [["accepted"]] * 10


async def test_a_forked_process_is_refused_and_must_open_its_own_store(
    store: PostgresStore,
) -> None:
    await add(store, "a")
    told = in_a_fork(lambda: add(store, "b"))
    assert told.startswith("UsageError")
    assert "open a store of its own after the fork" in told
    assert in_a_fork(store.close) == ""
    assert await add(store, "c") == ["accepted"]
    found = await store.find(Filter())
    assert [one.job.id for one in found.jobs] == ["c", "a"]


async def test_a_known_id_does_not_affect_concurrent_submits(
    store: PostgresStore,
) -> None:
    await add(store, "a")
    ends = await asyncio.gather(*[add(store, id) for id in ("b", "a", "c")], return_exceptions=True)
    assert ends[0] == ends[2] == ["accepted"]
    assert isinstance(ends[1], Conflict)


async def test_dropped_tables_are_reported(store: PostgresStore, schema: str) -> None:
    address = address_of(schema)
    outside: Any = await asyncpg.connect(address.dsn)
    await outside.execute(f'DROP TABLE "{address.schema}".poolhand_waits')
    await outside.close()
    with pytest.raises(Corrupt, match="were dropped or changed"):
        await add(store, "a")


async def test_closing_leaves_no_connection_and_no_task(
    postgres: PostgresServer, database: str
) -> None:
    before = asyncio.all_tasks()
    store = PostgresStore(database, Runtime())
    await store.open()
    await asyncio.gather(*[store.get([f"{number}"]) for number in range(50)])
    await store.close()
    assert asyncio.all_tasks() == before
    name = urlsplit(database).path[1:]
    text = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
    while await asyncio.to_thread(postgres.query, text) != "0":
        pass


async def test_a_store_that_could_not_be_opened_leaves_nothing_behind(schema: str) -> None:
    before = asyncio.all_tasks()
    nowhere = schema.replace("/poolhand?", "/nowhere?")
    store = PostgresStore(nowhere, Runtime())
    with pytest.raises(Unavailable, match="createdb"):
        await store.open()
    assert asyncio.all_tasks() == before


async def test_rules_that_changed_while_an_add_waited_for_its_pool_count(
    store: PostgresStore, schema: str
) -> None:
    """A pool that accepts everything is read and locked by one statement, which may wait."""
    await add(store, "first")
    await add(store, "second")
    url, _, name = schema.partition("?schema=")
    full = spec(backpressure=bounded(1, OnFull.FAIL_SUBMITTER), slots=1)
    somebody = await asyncpg.connect(url, server_settings={"search_path": name})
    try:
        async with somebody.transaction():
            no = await somebody.fetchval("SELECT no FROM poolhand_pools")
            kind = Locks(name).kind(POOLS)
            await somebody.execute(f"SELECT pg_advisory_xact_lock({kind}, {no})")
            adding = asyncio.create_task(store.add([JobBatch((order("late"),))]))
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not await somebody.fetchval(waiting):
                assert not adding.done()
            await somebody.execute(
                "UPDATE poolhand_pools SET spec = $1, queued = 2, waiting = 2", encode_spec(full)
            )
        (answer,) = await adding
    finally:
        await somebody.close()
    assert isinstance(answer, Refusal)
    assert (answer.reason, answer.waiting) == ("full", 2)


async def test_plans_made_for_empty_tables_use_indexes_when_they_are_full(
    schema: str,
) -> None:
    """Otherwise every claim and every settlement would scan the waiting jobs."""
    store = PostgresStore(schema, Runtime())
    await store.open()
    await store.enroll(owner("hand"))
    few, many = range(20), 1000
    for number in few:
        await add_and_run(store, [f"few-{number}"])
    await add_and_run(store, [f"many-{number}" for number in range(many)])
    await store.close()

    url, _, name = schema.partition("?schema=")
    somebody = await asyncpg.connect(url)
    try:
        found = "FROM pg_stat_all_tables WHERE schemaname = $1 AND relname"
        ended = f"SELECT n_tup_ins {found} = 'poolhand_ends'"
        while await somebody.fetchval(ended, name) < len(few) + many:
            pass  # The server updates its statistics a while later.
        places = ("poolhand_jobs", "poolhand_waits", "poolhand_claims", "poolhand_ends")
        looked_through = f"SELECT sum(seq_tup_read)::int {found} = ANY($2)"
        assert await somebody.fetchval(looked_through, name, places) < many
    finally:
        await somebody.close()


async def add_and_run(store: PostgresStore, ids: list[str]) -> None:
    """Add, claim and complete jobs, ten at a time."""
    await store.add([JobBatch(tuple(order(id) for id in ids))])
    wanted = ClaimRequest("hand", tuple(range(10)))
    claims = (await store.replace((), wanted)).claims
    while claims:
        ends = [lifecycle.complete(one.job, None, one.job.submitted_at, 0.0) for one in claims]
        changes = [Change(end, one.token) for end, one in zip(ends, claims, strict=True)]
        claims = (await store.replace(changes, wanted)).claims


async def test_concurrent_cancels_share_transactions(schema: str) -> None:
    clock = Clock()
    store = PostgresStore(schema, clock, lambda: (clock.now, clock.date))
    await store.open()
    hand = Hand(store, clock)
    names = [f"job-{number}" for number in range(300)]
    turns = [
        order(name, session=f"s-{n % 20}", idempotency_key=name) for n, name in enumerate(names)
    ]
    await hand.add(*turns)
    before = await _transactions(schema)
    found = await asyncio.gather(*(store.cancel([name], "ops") for name in names))
    assert {one.job.status for (one,) in found if one is not None} == {Status.CANCELLED}
    assert await _transactions(schema) - before < 20
    await store.close()


async def _transactions(url: str) -> int:
    connection: Any = await asyncpg.connect(address_of(url).dsn)
    try:
        return int(await connection.fetchval("SELECT pg_current_xact_id()::text"))
    finally:
        await connection.close()
