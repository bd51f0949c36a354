"""A store behind a pooler that lends connections for a transaction at a time."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from poolhand.contract import Claim, Filter, JobBatch, Store
from poolhand.errors import StoreError, Unavailable, UsageError
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import bounded
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.conftest import another, clock, hand, store  # noqa: F401 - fixtures
from tests.contract.support import Clock, Hand, order, owner, spec
from tests.pooler import Pooler
from tests.private_servers.postgres_server import PostgresServer
from tests.unit.stores.tables import postgres_faults

# The fixtures of the contract run on the event loop of the session.
pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

CORE = ("test_add", "test_claims", "test_documents", "test_keys", "test_log", "test_transaction")
LIMIT = 50  # seconds after which a wait gives up


@pytest.fixture
def make_store(store_schema: str, pooler: Pooler, clock: Clock) -> Callable[[], Store]:  # noqa: F811
    url = pooler.through(store_schema)
    return lambda: PostgresStore(url, clock, lambda: (clock.now, clock.date))


def take_over(name: str) -> None:
    """Run the contract tests over this store."""
    module = importlib.import_module(f"tests.contract.{name}")
    tests = {one: test for one, test in vars(module).items() if one.startswith("test_")}
    assert tests
    globals().update(tests)


for name in CORE:
    take_over(name)


@asynccontextmanager
async def crew(url: str, count: int) -> AsyncIterator[list[Hand]]:
    """Return several `Hand`s, each with its own store."""
    async with AsyncExitStack() as stack:
        hands = []
        for number in range(count):
            one = PostgresStore(url, Runtime())
            await one.open()
            stack.push_async_callback(one.close)
            await one.enroll(owner(f"hand-{number}"))
            hands.append(Hand(one, Clock()))
        yield hands


class Load:
    """Actions of many `Hand`s at once, and what must hold afterwards."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: list[str] = []

    async def submit(self, one: Hand, who: int) -> None:
        random = Random(who)
        for number in range(self.total):
            pool = random.choice(["free", "capped"])
            session = random.choice([None, "s1", "s2"])
            job = order(f"{who}-{number}", pool, session=session)
            await one.store.add([JobBatch((job,), f"hand-{who}")])

    async def work(self, one: Hand, who: int, total: int) -> None:
        while len(self.done) < total:
            claims = await one.claim(3, owner=f"hand-{who}")
            self.count(claims, 1)
            await asyncio.sleep(0)
            self.count(claims, -1)
            await one.finish(*claims)
            self.done += [claim.job.id for claim in claims]

    def count(self, claims: list[Claim], by: int) -> None:
        for claim in claims:
            for name in (claim.job.pool, f"{claim.job.pool} {claim.job.session}"):
                self.running[name] += by
                self.most[name] = max(self.most[name], self.running[name])


async def test_four_stores_share_two_connections(schema: str, pooled: str) -> None:
    async with asyncio.timeout(LIMIT), crew(pooled, 4) as hands:
        await hands[0].store.declare(spec("free"))
        await hands[0].store.declare(spec("capped", slots=3, backpressure=bounded(10_000)))
        load = Load(50)
        async with asyncio.TaskGroup() as group:
            for who, one in enumerate(hands):
                group.create_task(load.submit(one, who))
                group.create_task(load.work(one, who, 200))
        assert len(load.done) == len(set(load.done)) == 200
        assert load.most["capped"] <= 3
        assert max(load.most[f"{pool} s{n}"] for pool in ("free", "capped") for n in (1, 2)) == 1
        found = await hands[0].store.count(Filter())
        assert found == {Status.COMPLETED: 200}
    assert await postgres_faults(schema) == []


async def test_polling_works_without_notifications(pooled: str) -> None:
    async with crew(pooled, 2) as (one, other):
        await one.take_in("a")
        assert [claim.job.id for claim in await other.claim(owner="hand-1")] == ["a"]


async def test_a_notification_past_the_pooler_is_received(schema: str, pooled: str) -> None:
    heard = asyncio.Event()
    direct = schema.partition("?")[0]
    async with crew(pooled, 1) as (one,), crew(f"{pooled}&listen={direct}", 1) as (other,):
        other.store.subscribe(lambda topic: heard.set())
        await one.take_in("a")
        async with asyncio.timeout(LIMIT):
            await heard.wait()


async def test_nothing_is_left_on_a_connection_of_the_pooler(
    postgres: PostgresServer, schema: str, pooled: str
) -> None:
    async with crew(pooled, 1) as (one,):
        await one.take_in("a")
        await one.claim(1, owner="hand-0")
        (held,) = postgres.query(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", schema.partition("?")[0]
        ).splitlines()
        assert held == "0"


async def test_more_stores_than_the_pooler_allows_get_an_error(pooled: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [PostgresStore(pooled, Runtime()) for _ in range(70)]
        refused: list[str] = []
        for one in stores:
            stack.push_async_callback(one.close)
            try:
                await one.open()
            except StoreError as error:
                refused.append(str(error))
                break
        assert "no more connections allowed" in refused[0]


async def test_a_pooler_not_named_in_the_url_is_reported(schema: str, pooler: Pooler) -> None:
    with pytest.raises(UsageError, match=r"PgBouncer.* add pooler=transaction to the URL"):
        await PostgresStore(pooler.unsaid(schema), Runtime()).open()


async def test_a_pooler_that_resets_no_settings_is_reported_too(
    schema: str, lenient_pooler: Pooler
) -> None:
    url = lenient_pooler.unsaid(schema)
    told: list[BaseException] = []
    async with asyncio.timeout(LIMIT):
        while not told:
            uses = [use(url, f"{number}") for number in range(4)]
            ends = await asyncio.gather(*uses, return_exceptions=True)
            told = [end for end in ends if end is not None]
    for one in told:
        assert isinstance(one, Unavailable)
        assert "prepared statement" in str(one)
        assert "add pooler=transaction to the URL of the store" in str(one)
        assert "\n" not in str(one)


async def use(url: str, name: str) -> None:
    one = PostgresStore(url, Runtime())
    try:
        await one.open()
        await one.enroll(owner(name))
        for _ in range(10):
            await one.leases()
    finally:
        await one.close()
