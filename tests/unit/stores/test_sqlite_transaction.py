"""Transactions of a user in the file of a store: what is allowed, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from poolhand.contract import Filter, JobBatch
from poolhand.errors import (
    Conflict,
    Corrupt,
    ReadOnly,
    SchemaTooNew,
    StoreError,
    Unavailable,
    UsageError,
)
from poolhand.runtime import Runtime
from poolhand.stores.sqlite import transaction as sqlite_transaction
from poolhand.stores.sqlite.lock import FileLock, LockPatience
from poolhand.stores.sqlite.store import SqliteStore
from poolhand.stores.sqlite.transaction import SqliteTransaction
from poolhand.testing.seeded import SeededRuntime, run_seeded
from tests.contract.support import order

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, Runtime())
    await store.open()
    yield store
    await store.close()


def batch(*ids: str) -> JobBatch:
    return JobBatch(tuple(order(id) for id in ids))


async def kept(store: SqliteStore) -> list[str]:
    return sorted(stored.job.id for stored in (await store.find(Filter())).jobs)


def inside(transaction: SqliteTransaction) -> sqlite3.Connection:
    """Return the connection itself, for what no statement of a user can do."""
    connection = transaction._connection
    assert connection is not None
    return connection


def touch(path: Path) -> None:
    path.touch()


def descriptors() -> int:
    """Count the open files of this process, where the system shows them."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0


async def can_be_written(store: SqliteStore) -> None:
    async with asyncio.timeout(30):
        await store.check()
        await (await store.begin()).roll_back()


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        ";COMMIT",
        "\ufeffCOMMIT",
        "; ; rollback",
        "/* a */ END",
        "-- a\nBEGIN",
        "SAVEPOINT mine",
        "PRAGMA journal_mode = DELETE",
        "ATTACH ':memory:' AS other",
        "DETACH main",
    ],
    ids=ascii,
)
async def test_statements_that_end_or_change_a_transaction_are_refused(
    store: SqliteStore, sql: str
) -> None:
    made = await store.begin()
    await made.add(batch("a"))
    with pytest.raises(UsageError, match="leave the block to commit"):
        await made.execute(sql, ())
    await made.add(batch("b"))
    await made.roll_back()
    assert await kept(store) == []


async def test_a_statement_that_rolls_back_itself_ends_the_transaction(store: SqliteStore) -> None:
    made = await store.begin()
    await made.execute("CREATE TABLE mine (x UNIQUE)", ())
    await made.execute("INSERT INTO mine VALUES (1)", ())
    await made.add(batch("a"))
    with pytest.raises(Conflict, match="UNIQUE"):
        await made.execute("INSERT OR ROLLBACK INTO mine VALUES (1)", ())
    with pytest.raises(Unavailable, match="is over"):
        await made.add(batch("b"))
    with pytest.raises(Unavailable, match="is over"):
        await made.commit()
    assert await kept(store) == []
    await can_be_written(store)


async def test_tables_of_a_user_can_be_made_and_changed(store: SqliteStore) -> None:
    made = await store.begin()
    await made.execute("CREATE TABLE mine (x)", ())
    await made.execute("INSERT INTO mine VALUES (:x)", {"x": 1})  # type: ignore[arg-type]
    await made.execute("ALTER TABLE mine ADD COLUMN y NOT NULL DEFAULT 2 CHECK (y > 1)", ())
    assert await made.execute("SELECT * FROM mine", ()) == [(1, 2)]
    await made.commit()
    made = await store.begin()
    assert await made.execute("SELECT * FROM mine", ()) == [(1, 2)]
    await made.roll_back()


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELECT 1; SELECT 2", ()),
        ("SELECT ?", (2**70,)),
        ("SELECT ?", ("\ud800",)),
        ("SELECT '\ud800'", ()),
        ("SELECT ?", (object(),)),
        ("SELECT \0", ()),
        ("SELEC", ()),
        ("SELECT ?", ()),
        ("SELECT ?", 5),
        ("SELECT ?", None),
        ("SELECT :a", {"b": 1}),
        ("SELECT zeroblob(2000000000)", ()),
        ("INSERT INTO nowhere VALUES (1)", ()),
        ("VACUUM", ()),
        (5, ()),
        (None, ()),
    ],
    ids=range(16),
)
async def test_an_invalid_statement_is_refused_and_changes_nothing(
    store: SqliteStore, sql: Any, parameters: Any
) -> None:
    made = await store.begin()
    await made.add(batch("a"))
    with pytest.raises(UsageError) as told:
        await made.execute(sql, parameters)
    str(told.value).encode()
    await made.commit()
    assert await kept(store) == ["a"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"id": "a"}, Conflict),
        ({"session": "\ud800"}, UsageError),
        ({"delay": 1e300}, UsageError),
        ({"delay": float("nan")}, UsageError),
        ({"priority": 2**70}, UsageError),
    ],
    ids=["known", "surrogate", "delay", "nan", "priority"],
)
async def test_a_job_request_that_cannot_be_stored_raises_and_the_rest_is_committed(
    store: SqliteStore, options: dict[str, Any], error: type[Exception]
) -> None:
    made = await store.begin()
    await made.add(batch("a"))
    with pytest.raises(error):
        await made.add(JobBatch((order("c"), order(**{"id": "b", **options}))))
    await made.commit()
    assert await kept(store) == ["a"]


async def test_a_transaction_that_fills_the_disk_is_rolled_back(store: SqliteStore) -> None:
    made = await store.begin()
    await made.execute("CREATE TABLE mine (x)", ())
    (pages,) = inside(made).execute("PRAGMA page_count").fetchone()
    inside(made).execute(f"PRAGMA max_page_count = {pages + 3}")
    with pytest.raises(ReadOnly, match="SQLITE_FULL"):
        await made.execute("INSERT INTO mine VALUES (randomblob(100000))", ())
    with pytest.raises(Unavailable, match="is over"):
        await made.commit()
    await can_be_written(store)


async def test_jobs_that_fill_the_disk_are_rolled_back(store: SqliteStore) -> None:
    made = await store.begin()
    (pages,) = inside(made).execute("PRAGMA page_count").fetchone()
    inside(made).execute(f"PRAGMA max_page_count = {pages + 3}")
    with pytest.raises(ReadOnly, match="SQLITE_FULL"):
        await made.add(batch(*[f"job-{number}" for number in range(2000)]))
    await made.roll_back()
    assert await kept(store) == []
    await can_be_written(store)


async def test_a_statement_that_never_ends_is_interrupted(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "LONGEST", 0.2)
    made = await store.begin()
    await made.execute("CREATE TABLE mine (x)", ())
    with pytest.raises(Unavailable, match=r"took longer than 0\.2 s and was rolled back"):
        await made.execute(ENDLESS, ())
    with pytest.raises(Unavailable, match="took longer"):
        await made.execute("SELECT 1", ())
    with pytest.raises(Unavailable, match="took longer"):
        await made.commit()
    await can_be_written(store)
    made = await store.begin()
    with pytest.raises(UsageError, match="no such table"):
        await made.execute("SELECT * FROM mine", ())
    await made.roll_back()


def test_nothing_is_begun_in_a_store_that_is_not_open(path: Path) -> None:
    async def main(runtime: SeededRuntime) -> None:
        store = SqliteStore(path, runtime)
        with pytest.raises(Unavailable, match="not open"):
            await store.begin()
        assert os.listdir(path.parent) == []
        await store.open()
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=r"being closed|not open"):
            await store.begin()
        await closing

    run_seeded(main, seed=1)
    assert sorted(os.listdir(path.parent)) == ["jobs.db", "jobs.db-lock", "jobs.db-lock-turn"]


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_begin_on_a_moved_or_replaced_file_raises(
    store: SqliteStore, path: Path, how: str
) -> None:
    await store.add([batch(*[f"job-{number}" for number in range(500)])])
    moved = path.parent / "moved"
    os.rename(path, moved)
    if how == "replaced":
        touch(path)
    with pytest.raises(Unavailable, match="was moved, removed or replaced"):
        await store.begin()
    assert (path.name in os.listdir(path.parent)) == (how == "replaced")
    os.rename(moved, path)
    await can_be_written(store)
    await store.close()
    await store.open()
    assert sum((await store.count(Filter())).values()) == 500


async def test_nothing_is_begun_in_a_file_of_a_newer_version(
    store: SqliteStore, path: Path
) -> None:
    newer = sqlite3.connect(path, isolation_level=None)
    newer.execute("INSERT INTO poolhand_schema VALUES (999, 'new', 'x', 'now', 999)")
    newer.close()
    with pytest.raises(SchemaTooNew, match="has schema 999"):
        await store.begin()


async def test_begin_on_a_corrupt_file_raises(store: SqliteStore) -> None:
    store._file._damage = "A check found 1 problem(s)."
    with pytest.raises(Corrupt, match="no new jobs are accepted"):
        await store.begin()
    store._file._damage = None
    await can_be_written(store)


@pytest.mark.slow
def test_another_program_that_writes_is_waited_for_without_blocking(path: Path) -> None:
    async def main(runtime: SeededRuntime) -> None:
        store = SqliteStore(path, runtime)
        await store.open()
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        store._file.lock_seconds = 0.1
        with pytest.raises(Unavailable, match=f"another process has held {path} for"):
            await store.begin()
        store._file.lock_seconds = 10
        beginning = asyncio.create_task(store.begin())
        await asyncio.sleep(1)
        foreign.execute("COMMIT")
        foreign.close()
        await (await beginning).roll_back()
        await store.close()

    run_seeded(main, seed=1)


@pytest.mark.parametrize("end", ["cancelled", "too long"])
async def test_a_begin_that_was_cancelled_or_failed_leaves_nothing(
    store: SqliteStore, path: Path, end: str
) -> None:
    lock = FileLock(f"{path}-lock")
    assert lock.take(LockPatience(lambda: 0.0, 1))
    before = descriptors()
    for _ in range(5):
        if end == "cancelled":
            beginning = asyncio.create_task(store.begin())
            await asyncio.sleep(0)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
        else:
            store._file.lock_seconds = 0.01
            with pytest.raises(Unavailable, match=r"-lock for 0\.01 s"):
                await store.begin()
    assert descriptors() == before
    lock.close()
    store._file.lock_seconds = 10
    await can_be_written(store)


async def test_a_begin_that_the_system_refuses_leaves_nothing(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def broken(file: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(file).endswith("-lock"):
            raise OSError(5, "Input/output error")
        return real(file, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", broken)
        with pytest.raises(StoreError, match="Input/output error"):
            await store.begin()
    store._file.lock_seconds = 0.5
    await can_be_written(store)
