"""A PostgreSQL with a stricter default isolation than the store uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from poolhand import App
from poolhand.contract import Filter, JobBatch
from poolhand.errors import JobRejected
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import bounded
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.postgres.tables import POOLS, Locks
from tests.contract.support import Clock, Hand, order, owner, spec
from tests.private_servers.postgres_server import PostgresServer
from tests.unit.stores.tables import postgres_faults

LEVELS = ("repeatable read", "serializable")
LIMIT = 50
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture(params=LEVELS)
def strict(request: pytest.FixtureRequest, postgres: PostgresServer, database: str) -> str:
    """Return a database with a stricter default isolation."""
    name = urlsplit(database).path[1:]
    level = request.param
    postgres.query(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
    return database


@asynccontextmanager
async def crew(url: str, count: int) -> AsyncIterator[list[Hand]]:
    async with AsyncExitStack() as stack:
        hands = []
        for number in range(count):
            store = PostgresStore(url, Runtime())
            await store.open()
            stack.push_async_callback(store.close)
            await store.enroll(owner(f"hand-{number}"))
            hands.append(Hand(store, Clock()))
        yield hands


async def one_behind_the_other(
    url: str, pool: int, acts: list[Callable[[], Coroutine[Any, Any, Any]]]
) -> list[Any]:
    """Begin operations that need one pool, in this order, while it is locked."""
    outside: Any = await asyncpg.connect(url)
    try:
        kind = Locks("public").kind(POOLS)
        await outside.execute(f"SELECT pg_advisory_lock({kind}, {pool})")
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
            tasks = []
            for number, act in enumerate(acts, 1):
                tasks.append(group.create_task(act()))
                while await outside.fetchval(WAITING) != number:
                    pass
            await outside.execute(f"SELECT pg_advisory_unlock({kind}, {pool})")
        return [task.result() for task in tasks]
    finally:
        await outside.close()


async def test_a_turn_added_while_its_session_is_released_is_not_left_blocked(
    strict: str,
) -> None:
    async with crew(strict, 2) as (one, other):
        await one.store.declare(spec())
        await one.take_in("a", session="s")
        (claim,) = await one.claim(1, owner="hand-0")
        await other.store.get(["a"])
        await one_behind_the_other(
            strict, 1, [lambda: one.finish(claim), lambda: other.submit("b", session="s")]
        )
        assert await one.status("b") == "queued"
        (claim,) = await one.claim(1, owner="hand-0")
        # The other way round: the turn is stored, and the freeing operation must see it.
        await one_behind_the_other(
            strict, 1, [lambda: other.submit("c", session="s"), lambda: one.finish(claim)]
        )
        assert await one.status("c") == "queued"
    assert await postgres_faults(strict) == []


async def submit(one: Hand, who: int, count: int) -> None:
    random = Random(who)
    for number in range(count):
        pool = random.choice(["free", "capped", "keyed"])
        session = random.choice([None, "s1", "s2"])
        key = random.choice(["k1", "k2"])
        job = order(f"{who}-{number}", pool, session=session, key=key)
        await one.store.add([JobBatch((job,), f"hand-{who}")])


async def work(one: Hand, who: int, done: list[str], total: int) -> None:
    while len(done) < total:
        claims = await one.claim(3, owner=f"hand-{who}")
        await one.finish(*claims)
        done += [claim.job.id for claim in claims]


@pytest.mark.slow
async def test_every_turn_of_mixed_pools_gets_its_outcome(strict: str) -> None:
    done: list[str] = []
    async with asyncio.timeout(LIMIT), crew(strict, 3) as hands:
        await hands[0].store.declare(spec("free"))
        await hands[0].store.declare(spec("capped", slots=3, backpressure=bounded(10_000)))
        await hands[0].store.declare(spec("keyed", max_per_key=1))
        async with asyncio.TaskGroup() as group:
            for who, one in enumerate(hands):
                group.create_task(submit(one, who, 40))
                group.create_task(work(one, who, done, 120))
        assert len(done) == len(set(done)) == 120
        assert await hands[0].store.count(Filter()) == {Status.COMPLETED: 120}
    assert await postgres_faults(strict) == []


@pytest.mark.slow
@pytest.mark.parametrize("level", ["read_committed", "repeatable_read", "serializable"])
async def test_jobs_submitted_in_user_transactions_of_any_isolation_level_run(
    database: str, level: str
) -> None:
    """Several users at once, each in a transaction that began before the jobs of the others ran."""
    many = 4
    async with App(database) as app, AsyncExitStack() as stack, asyncio.timeout(LIMIT):

        @app.task(name="answer", pool="chat")
        async def answer(number: int) -> int:
            return number

        connections: list[Any] = []
        for _ in range(many):
            connection = await asyncpg.connect(database)
            stack.push_async_callback(connection.close)
            connections.append(connection)
        await connections[0].execute("CREATE TABLE orders (number bigint)")

        async def shop(number: int, connection: Any) -> list[str]:
            ids = []
            turn = answer.with_options(session="s", idempotency_key=f"order {number % 2}")
            for round in range(3):
                async with connection.transaction(isolation=level):
                    await connection.fetchval("SELECT 1")
                    await connection.execute("INSERT INTO orders VALUES ($1)", number)
                    ids.append(await answer.submit_in(connection, number))
                    if round == 0:
                        ids.append(await turn.submit_in(connection, number))
            return ids

        async with app.worker(2):
            shops = [shop(number, one) for number, one in enumerate(connections)]
            ids = [id for ids in await asyncio.gather(*shops) for id in ids]
            tickets = [await app.get(id) for id in ids]
            ends = await asyncio.gather(*[one for one in tickets if one], return_exceptions=True)
        # Of jobs with a key every second one is refused: the key belongs to the first.
        assert sum(isinstance(end, int) for end in ends) == 3 * many + 2
        assert sum(isinstance(end, JobRejected) for end in ends) == many - 2
        assert await connections[0].fetchval("SELECT count(*) FROM orders") == 3 * many
    assert await postgres_faults(database) == []
