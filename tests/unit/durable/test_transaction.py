"""Jobs that are stored together with the user's own writes, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from poolhand import App, UsageError, bounded
from poolhand.errors import Conflict, IdempotencyConflict, PoolFull, Unavailable
from poolhand.stores.sqlite import transaction as sqlite_transaction
from poolhand.views import Status

TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"


class Shop:
    """An app on a file that has a table of the user's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.app = App(f"sqlite:///{path}")
        self.sent: list[int] = []

        @self.app.task(name="invoice")
        async def invoice(order: int) -> int:
            self.sent.append(order)
            return order

        self.invoice = invoice

    def orders(self) -> list[tuple[int, str]]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute("SELECT id, item FROM orders").fetchall()
        finally:
            connection.close()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "shop.db")
    connection = sqlite3.connect(made.path)
    connection.execute(TABLE)
    connection.commit()
    connection.close()
    return made


async def test_a_job_and_a_row_are_committed_together(shop: Shop) -> None:
    async with shop.app, shop.app.worker():
        async with shop.app.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (?, ?)", (1, "honey"))
            id = await shop.invoice.submit_in(tx, 1)
            assert await shop.app.get(id) is None
            assert await tx.execute("SELECT item FROM orders") == [("honey",)]
        ticket = await shop.app.get(id)
        assert ticket is not None
        assert await ticket == 1
    assert shop.orders() == [(1, "honey")]


async def test_an_exception_takes_both_back(shop: Shop) -> None:
    async with shop.app:
        ids: list[str] = []

        async def block() -> None:
            async with shop.app.transaction() as tx:
                await tx.execute("INSERT INTO orders VALUES (1, 'honey')")
                ids.append(await shop.invoice.submit_in(tx, 1))
                raise KeyError

        with pytest.raises(KeyError):
            await block()
        assert await shop.app.get(ids[0]) is None
    assert shop.orders() == []


async def test_a_cancelled_block_takes_both_back_and_frees_the_file(shop: Shop) -> None:
    inside = asyncio.Event()

    async def block() -> None:
        async with shop.app.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (1, 'honey')")
            inside.set()
            await asyncio.Event().wait()

    async with shop.app, shop.app.worker():
        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await (await shop.invoice.submit(2)) == 2
    assert shop.orders() == []


async def test_other_writers_wait_for_its_end(shop: Shop) -> None:
    async with shop.app:
        async with shop.app.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (1, 'honey')")
            other = asyncio.create_task(shop.invoice.submit(2))
            await tx.execute("SELECT 1")
            assert not other.done()
        assert (await other).status is Status.QUEUED


async def test_a_refusal_is_raised_inside_and_the_rest_can_still_commit(shop: Shop) -> None:
    shop.app.pool("default", max_concurrent=1, backpressure=bounded(1, "fail_submitter"))
    async with shop.app:
        await shop.invoice.submit(1)
        async with shop.app.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (1, 'honey')")
            with pytest.raises(PoolFull):
                await shop.invoice.submit_in(tx, 3)
    assert shop.orders() == [(1, "honey")]


async def test_a_key_joins_its_existing_job(shop: Shop) -> None:
    keyed = shop.invoice.with_options(idempotency_key="one")
    async with shop.app:
        first = await keyed.submit(1)
        async with shop.app.transaction() as tx:
            assert await keyed.submit_in(tx, 1) == first.id
            with pytest.raises(IdempotencyConflict, match=first.id):
                await keyed.submit_in(tx, 2)


async def test_a_wrong_statement_is_reported_and_nothing_is_lost(shop: Shop) -> None:
    async with shop.app, shop.app.transaction() as tx:
        await tx.execute("INSERT INTO orders VALUES (1, 'honey')")
        with pytest.raises(Conflict, match="UNIQUE"):
            await tx.execute("INSERT INTO orders VALUES (1, 'wax')")
        with pytest.raises(UsageError, match="no such table"):
            await tx.execute("SELECT * FROM unknown")
        for end in ("COMMIT", " rollback", "PRAGMA synchronous = OFF", "/* x */ -- y\n begin;"):
            with pytest.raises(UsageError, match="leave the block"):
                await tx.execute(end)
    assert shop.orders() == [(1, "honey")]


async def test_a_finished_transaction_refuses_statements(shop: Shop) -> None:
    async with shop.app:
        async with shop.app.transaction() as tx:
            await tx.execute("SELECT 1")
        with pytest.raises(Unavailable, match="is over"):
            await tx.execute("SELECT 1")


async def test_a_transaction_that_takes_too_long_is_rolled_back(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "LONGEST", 0.0)

    async def block() -> None:
        async with shop.app.transaction() as tx:
            while True:
                await tx.execute("INSERT OR REPLACE INTO orders VALUES (1, 'honey')")

    async with shop.app:
        with pytest.raises(Unavailable, match="was rolled back"):
            await block()
        assert (await shop.invoice.submit(2)).status is Status.QUEUED
    assert shop.orders() == []


async def _fail_inside(app: App) -> None:
    async with app.transaction() as tx:
        await tx.execute("INSERT INTO orders VALUES (2)")
        raise ZeroDivisionError


async def test_on_the_memory_store_jobs_and_tables_are_committed_together() -> None:
    app = App("memory://")

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    async with app, app.worker():
        async with app.transaction() as tx:
            await tx.execute("CREATE TABLE orders (number INTEGER)")
            await tx.execute("INSERT INTO orders VALUES (1)")
            id = await double.submit_in(tx, 4)
            # Until the commit, no other reader sees it.
            assert await app.get(id) is None
        with pytest.raises(ZeroDivisionError):
            await _fail_inside(app)
        async with app.transaction() as tx:
            assert await tx.execute("SELECT number FROM orders") == [(1,)]
        ticket = await app.get(id)
        assert ticket is not None
        assert await ticket == 8


async def test_tables_of_the_user_may_have_any_name_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    connection = sqlite3.connect(path)
    for name in ("jobs", "sessions", "documents", "log", "pools", "keys"):
        connection.execute(f"CREATE TABLE {name} (mine)")
    connection.commit()
    connection.close()
    shop = Shop(path)
    async with shop.app, shop.app.worker():
        assert await (await shop.invoice.submit(1)) == 1


async def test_a_plain_submit_inside_a_transaction_is_refused_at_once(shop: Shop) -> None:
    async with shop.app:
        async with shop.app.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (1, 'honey')")
            with pytest.raises(UsageError, match=r"use submit_in\(tx"):
                await shop.invoice.submit(1)
            with pytest.raises(UsageError, match="the transaction that is open"):
                async with shop.app.transaction():
                    pass
            await shop.invoice.submit_in(tx, 1)
        assert shop.orders() == [(1, "honey")]
        assert (await shop.invoice.submit(2)).status is Status.QUEUED


async def test_a_caller_cancelled_while_a_transaction_begins_leaves_nothing_open(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "LONGEST", 10_000.0)
    async with shop.app:
        await shop.app.core.connection()

        async def enter() -> None:
            async with shop.app.transaction():
                pytest.fail("it was cancelled before it was open")

        task = asyncio.create_task(enter())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        # Another write succeeds only if no transaction is left open.
        assert (await shop.invoice.submit(1)).status is Status.QUEUED
