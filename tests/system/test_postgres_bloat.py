"""Tables that many jobs pass through stay small."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from poolhand.contract import ClaimRequest, Filter, JobBatch
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import bounded
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.support import Clock, Hand, order, over, owner, spec
from tests.extent import times
from tests.private_servers.postgres_server import PostgresServer
from tests.unit.stores.tables import postgres_faults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BATCH = 250
MANY = times(15_000, 50_000)
SWELLING = times(7_500, 15_000)
PASSING = ("poolhand_waits", "poolhand_claims", "poolhand_pools", "poolhand_tallies")
MEGABYTE = 1 << 20
MOST = 4 * MEGABYTE  # bytes of a table that jobs only pass through, with its indexes
SIZES = """
SELECT relname::text, pg_total_relation_size(relid)::bigint FROM pg_stat_user_tables
WHERE relname LIKE 'poolhand\\_%'
"""


@pytest.fixture
def url(own_postgres: PostgresServer) -> str:
    """Return a server that the test vacuums itself, as autovacuum would between its runs."""
    own_postgres.query("ALTER SYSTEM SET autovacuum = off")
    own_postgres.query("SELECT pg_reload_conf()")
    return own_postgres.url


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Hand]:
    store = PostgresStore(url, Runtime())
    await store.open()
    try:
        await store.enroll(owner("hand"))
        await store.declare(spec("free"))
        await store.declare(spec("capped", slots=BATCH, backpressure=bounded(100_000)))
        yield Hand(store, Clock())
    finally:
        await store.close()


async def churn(hand: Hand, first: int, last: int) -> None:
    """Submit, run and prune jobs, and trim the audit."""
    store, wanted = hand.store, ClaimRequest("hand", tuple(range(BATCH)))
    for start in range(first, last, BATCH):
        pool = ("free", "capped")[start // BATCH % 2]
        orders = [order(f"job-{start + number}", pool) for number in range(BATCH)]
        await store.add([JobBatch(tuple(orders))])
        claims = (await store.replace((), wanted)).claims
        assert len(claims) == BATCH
        assert all((await store.replace([hand.ended(claim) for claim in claims])).made)
        if start // BATCH % 10 == 9:
            await store.extend("hand", [])
            await store.prune(over(0.0), limit=10 * BATCH)
            lines = await store.read(STREAM, limit=1)
            await store.trim(STREAM, lines[0].number + 100_000)


async def sizes(url: str) -> dict[str, int]:
    connection: Any = await asyncpg.connect(url)
    try:
        return dict(await connection.fetch(SIZES))
    finally:
        await connection.close()


async def vacuum(url: str) -> None:
    connection: Any = await asyncpg.connect(url)
    try:
        for name in (*PASSING, "poolhand_audit", "poolhand_jobs"):
            await connection.execute(f"VACUUM {name}")
    finally:
        await connection.close()


async def test_many_jobs_leave_no_bloated_tables(url: str) -> None:
    async with opened(url) as hand:
        await churn(hand, 0, MANY // 5)
        early = await sizes(url)
        for part in range(1, 5):
            await vacuum(url)
            await churn(hand, part * MANY // 5, (part + 1) * MANY // 5)
        late = await sizes(url)
        for name in (*PASSING, "poolhand_audit"):
            assert late[name] <= MOST, name
        # not five times as much for five times as many
        assert sum(late.values()) <= 2 * sum(early.values()) + MOST
        assert await hand.store.count(Filter()) in ({}, {Status.COMPLETED: BATCH})
    assert await postgres_faults(url) == []


async def test_an_old_snapshot_causes_only_temporary_bloat(url: str) -> None:
    async with opened(url) as hand:
        await churn(hand, 0, BATCH)
        old: Any = await asyncpg.connect(url)
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.fetch("SELECT * FROM poolhand_waits")
        await churn(hand, BATCH, SWELLING)
        swollen = await sizes(url)
        await old.execute("COMMIT")
        await old.close()
        await vacuum(url)
        await churn(hand, SWELLING, 2 * SWELLING)
        after = await sizes(url)
        for name in PASSING:
            # The space is used again: the same work as before makes nothing larger.
            assert after[name] <= swollen[name] + MEGABYTE, name
    assert await postgres_faults(url) == []
