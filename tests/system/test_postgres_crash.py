"""A PostgreSQL that crashes: accepted jobs were committed, other operations are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from poolhand.contract import Filter, JobBatch
from poolhand.errors import StoreError
from poolhand.rules.job import Status
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.support import Clock, Hand, entries, order, owner
from tests.faults.proxy import Proxy
from tests.private_servers.postgres_server import PostgresServer
from tests.unit.stores.tables import postgres_faults

pytestmark = pytest.mark.slow

LIMIT = 40  # seconds after which a wait gives up
TRIES = 10
COMMITTING = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'COMMIT'"


@pytest.fixture
def slow_to_commit(copying_binaries: Path) -> Iterator[PostgresServer]:
    """Return a server that waits a moment before it writes a commit to its disk."""
    settings = {"commit_delay": "100000", "commit_siblings": "0", "wal_writer_delay": "10s"}
    with PostgresServer(binaries=copying_binaries, settings=settings) as server:
        yield server


@pytest.fixture
def proxy(slow_to_commit: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", slow_to_commit.port) as one:
        yield one


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, Runtime())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def is_committing(outside: Any, adding: asyncio.Task[Any]) -> bool:
    """Wait until a commit is under way, or over."""
    while not adding.done():
        if await outside.fetchval(COMMITTING):
            return True
    return False


async def use_up_numbers(server: PostgresServer) -> None:
    """Use up the transaction numbers that the server forgot in a crash."""
    outside: Any = await asyncpg.connect(server.url)
    for _ in range(20):
        await outside.execute("SELECT pg_current_xact_id()")
    await outside.close()


async def test_a_commit_that_a_crash_took_back_is_not_mistaken_for_another_of_its_number(
    slow_to_commit: PostgresServer, proxy: Proxy
) -> None:
    crashed = 0
    async with asyncio.timeout(LIMIT), opened(proxy.through(slow_to_commit.url)) as store:
        for number in range(TRIES):
            outside: Any = await asyncpg.connect(slow_to_commit.url)
            adding = asyncio.create_task(store.add([JobBatch((order(f"job-{number}"),))]))
            if await is_committing(outside, adding):
                crashed += 1
                await asyncio.to_thread(slow_to_commit.kill)
                proxy.refuse()
                await asyncio.to_thread(slow_to_commit.start)
                await use_up_numbers(slow_to_commit)
                proxy.mend()
            (answer,) = await adding
            outside.terminate()
            assert entries(answer) == ["accepted"]
            assert await store.get([f"job-{number}"]) != [None]
            if crashed == 2:
                break
    assert crashed
    assert await postgres_faults(slow_to_commit.url) == []


@pytest.mark.parametrize(
    "how",
    [
        "kill",
        pytest.param("immediate", marks=pytest.mark.full),
        pytest.param("fast", marks=pytest.mark.full),
    ],
)
async def test_every_accepted_job_was_committed(own_postgres: PostgresServer, how: str) -> None:
    accepted: list[str] = []
    many, down = asyncio.Event(), asyncio.Event()

    async def submit(store: PostgresStore, who: int) -> None:
        number = 0
        while not down.is_set() or number < 100:
            id = f"{who}-{number}"
            number += 1
            try:
                await store.add([JobBatch((order(id),))])
            except StoreError:
                continue
            accepted.append(id)
            if len(accepted) == 100:
                many.set()

    async with asyncio.timeout(LIMIT), opened(own_postgres.url) as store:
        crowd = [asyncio.create_task(submit(store, who)) for who in range(8)]
        await many.wait()
        stop = own_postgres.kill if how == "kill" else lambda: own_postgres.stop(how)  # type: ignore[arg-type]
        await asyncio.to_thread(stop)
        await asyncio.to_thread(own_postgres.start)
        down.set()
        await asyncio.gather(*crowd)
        found = await store.get(accepted)
        assert [id for id, one in zip(accepted, found, strict=True) if one is None] == []
        assert len(accepted) == len(set(accepted))
    assert await postgres_faults(own_postgres.url) == []


async def test_workers_continue_across_server_restarts(own_postgres: PostgresServer) -> None:
    """Claims and ends survive every restart; at the end each job is over once."""
    async with asyncio.timeout(LIMIT), opened(own_postgres.url) as store:
        hand = Hand(store, Clock())
        await store.enroll(owner("hand"))
        await store.add([JobBatch(tuple([order(f"job-{number:03}") for number in range(300)]))])
        ended = asyncio.Event()
        working = asyncio.create_task(work_off(hand, ended))
        restarts = 0
        while not ended.is_set() and restarts < 3:
            await asyncio.to_thread(own_postgres.restart, "immediate" if restarts else "fast")
            restarts += 1
        await working
        outcomes = await hand.audited("outcome")
        assert sorted(outcomes) == [f"outcome job-{number:03}" for number in range(300)]
        assert await store.count(Filter()) == {Status.COMPLETED: 300}
    assert await postgres_faults(own_postgres.url) == []


async def work_off(hand: Hand, ended: asyncio.Event) -> None:
    claims: list[Any] = []
    while True:
        try:
            if claims:
                assert all(await hand.change(*map(hand.ended, claims)))
            claims = await hand.claim(3)
        except StoreError:
            continue
        if not claims:
            ended.set()
            return
