"""Jobs submitted in the user's own transaction, on the user's own connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from poolhand import App, PoolhandError, UsageError, bounded, ring_buffer
from poolhand.errors import JobRejected, Unsupported
from poolhand.rules.queue.backpressure import OnFull

pytestmark = pytest.mark.slow


class Shop:
    """An app over PostgreSQL, with a table and a connection of the user."""

    def __init__(self, app: App, connection: Any) -> None:
        self.app = app
        self.connection = connection
        self.done: list[int] = []

        @app.task(name="invoice")
        async def invoice(number: int) -> int:
            self.done.append(number)
            return number

        self.invoice = invoice

    async def orders(self) -> list[int]:
        rows = await self.connection.fetch("SELECT number FROM shop_orders ORDER BY number")
        return [number for (number,) in rows]

    async def order(self, number: int) -> None:
        await self.connection.execute("INSERT INTO shop_orders VALUES ($1)", number)


@pytest.fixture
async def shop(database: str) -> AsyncIterator[Shop]:
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE shop_orders (number bigint)")
    async with App(database) as app:
        yield Shop(app, connection)
    await connection.close()


async def result(app: App, id: str) -> Any:
    ticket = await app.get(id)
    assert ticket is not None
    return await ticket


async def test_a_job_is_accepted_with_the_commit_and_runs_soon(shop: Shop) -> None:
    async with shop.app.worker(2):
        async with shop.connection.transaction():
            await shop.order(1)
            id = await shop.invoice.submit_in(shop.connection, 1)
            assert await shop.app.get(id) is None
        assert await result(shop.app, id) == 1
    assert await shop.orders() == [1]


async def test_a_rolled_back_transaction_leaves_no_job(shop: Shop) -> None:
    transaction = shop.connection.transaction()
    await transaction.start()
    await shop.order(1)
    id = await shop.invoice.submit_in(shop.connection, 1)
    await transaction.rollback()
    assert await shop.app.get(id) is None
    assert await shop.orders() == []


async def test_an_open_transaction_blocks_no_other_submit(shop: Shop) -> None:
    async with shop.app.worker(2), shop.connection.transaction():
        await shop.invoice.submit_in(shop.connection, 1)
        assert await (await shop.invoice.submit(2)) == 2
        assert shop.done == [2]


async def test_options_hold_as_in_any_submit(shop: Shop) -> None:
    late = shop.invoice.with_options(delay=0.2, priority=3, tenant="acme", session="s")
    async with shop.app.worker(2):
        async with shop.connection.transaction():
            ids = [await late.submit_in(shop.connection, n) for n in range(3)]
        assert [await result(shop.app, id) for id in ids] == [0, 1, 2]
    ticket = await shop.app.get(ids[0])
    assert ticket is not None
    job = ticket.snapshot()
    assert (job.priority, job.tenant, job.session) == (3, "acme", "s")


async def test_a_key_of_an_existing_job_rejects_the_new_one(shop: Shop) -> None:
    keyed = shop.invoice.with_options(idempotency_key="k")
    async with shop.app.worker(2):
        async with shop.connection.transaction():
            first = await keyed.submit_in(shop.connection, 1)
            second = await keyed.submit_in(shop.connection, 1)
            other = await keyed.submit_in(shop.connection, 2)
        assert await result(shop.app, first) == 1
        with pytest.raises(JobRejected, match=f"stands for job {first}"):
            await result(shop.app, second)
        with pytest.raises(JobRejected, match=f"stands for another call, job {first}"):
            await result(shop.app, other)
        assert (await keyed.submit(1)).id == first
    assert shop.done == [1]


async def test_a_job_can_be_cancelled_before_it_is_admitted(shop: Shop) -> None:
    async with shop.connection.transaction():
        id = await shop.invoice.submit_in(shop.connection, 1)
    ticket = await shop.app.get(id)
    assert ticket is not None
    await ticket.cancel()
    async with shop.app.worker(2):
        assert await (await shop.invoice.submit(2)) == 2
    assert shop.done == [2]


async def test_a_pool_that_may_refuse_is_refused_before(shop: Shop) -> None:
    for name, policy in (("block", bounded(1)), ("fail", bounded(1, OnFull.FAIL_SUBMITTER))):
        shop.app.pool(name, backpressure=policy, max_concurrent=1)
        task = shop.app.task(pool=name, name=name)(shop.invoice.fn)
        async with shop.connection.transaction():
            with pytest.raises(UsageError, match="may refuse"):
                await task.submit_in(shop.connection, 1)


async def test_a_drop_policy_is_applied_at_admission(shop: Shop) -> None:
    shop.app.pool("ring", backpressure=ring_buffer(1), max_concurrent=1)
    task = shop.app.task(pool="ring", name="ring")(shop.invoice.fn)
    async with shop.connection.transaction():
        ids = [await task.submit_in(shop.connection, n) for n in range(3)]
    async with shop.app.worker(1):
        outcomes = await asyncio.gather(
            *(result(shop.app, id) for id in ids), return_exceptions=True
        )
    assert outcomes[-1] == 2
    assert [type(one) for one in outcomes[:-1]] == [JobRejected] * 2


async def test_without_a_transaction_it_is_refused(shop: Shop) -> None:
    with pytest.raises(UsageError, match="no transaction is open"):
        await shop.invoice.submit_in(shop.connection, 1)


async def test_a_connection_to_another_database_is_refused(shop: Shop, schema: str) -> None:
    elsewhere = await asyncpg.connect(schema.partition("?")[0])
    try:
        async with App(schema) as other:
            assert await other.ready()
            with pytest.raises(UsageError, match="another database"):
                async with elsewhere.transaction():
                    await shop.invoice.submit_in(elsewhere, 1)
    finally:
        await elsewhere.close()


async def test_the_error_on_a_file_store_names_app_transaction(tmp_path: Any, shop: Shop) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    task = app.task(name="invoice")(shop.invoice.fn)
    async with app, shop.connection.transaction():
        with pytest.raises(Unsupported, match=r"app\.transaction"):
            await task.submit_in(shop.connection, 1)


async def test_a_failed_transaction_raises_a_poolhand_error(shop: Shop) -> None:
    transaction = shop.connection.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.PostgresError):
        await shop.connection.execute("SELECT nothing FROM nowhere")
    with pytest.raises(PoolhandError):
        await shop.invoice.submit_in(shop.connection, 1)
    await transaction.rollback()


async def test_a_turn_of_another_user_is_rejected_at_admission(shop: Shop) -> None:
    turn = shop.invoice.with_options(session="s", user="ana")
    other = shop.invoice.with_options(session="s", user="bob")
    async with shop.connection.transaction():
        first = await turn.submit_in(shop.connection, 1)
        second = await other.submit_in(shop.connection, 2)
    async with shop.app.worker(2):
        assert await result(shop.app, first) == 1
        with pytest.raises(JobRejected, match="session belongs to another user") as caught:
            await result(shop.app, second)
        assert caught.value.policy == "user"
        async with shop.connection.transaction():
            third = await other.submit_in(shop.connection, 3)
        with pytest.raises(JobRejected, match="session belongs to another user"):
            await result(shop.app, third)
    assert shop.done == [1]
