"""A file whose log is taken away, or whose content is exchanged, while it is open."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from poolhand.contract import Put
from poolhand.errors import Corrupt
from poolhand.runtime import Runtime
from poolhand.stores.sqlite import SqliteStore
from poolhand.stores.wal import WORTH_WHILE


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, Runtime())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def keep(store: SqliteStore, *keys: str) -> None:
    for key in keys:
        assert await store.put([Put(key, key.encode())])


async def kept(path: Path) -> list[str]:
    async with opened(path) as store:
        return await store.scan("")


def work_off(path: Path) -> None:
    """Make a checkpoint, as another program may."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def copy(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(to)) as other:
        one.backup(other)


def vacuum(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as one:
        one.execute("VACUUM INTO ?", (str(to),))


def plain(path: Path, to: Path) -> None:
    shutil.copyfile(path, to)


async def test_a_log_that_is_removed_is_noticed_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path) as store, opened(path) as other:
        await keep(store, "a")
        await keep(other, "b")
        os.unlink(f"{path}-wal")
        for one in (store, other):
            with pytest.raises(Corrupt, match=r"a\.db-wal was removed or replaced while"):
                await keep(one, "c")
    assert await kept(path) == ["a", "b"]


async def test_who_comes_to_a_file_whose_log_was_removed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path) as store:
        await keep(store, "a")
        os.unlink(f"{path}-wal")
        with pytest.raises(Corrupt, match="Stop every process that uses it"):
            await kept(path)
        assert "a.db-wal" not in os.listdir(tmp_path)
    assert await kept(path) == ["a"]


async def test_what_is_left_of_a_crash_without_its_log_is_opened(tmp_path: Path) -> None:
    path, crashed = tmp_path / "a.db", tmp_path / "b.db"
    async with opened(path) as store:
        await keep(store, "a")
        work_off(path)
        for end in ("", "-shm"):
            shutil.copyfile(f"{path}{end}", f"{crashed}{end}")
    assert await kept(crashed) == ["a"]


@pytest.mark.parametrize("make", [copy, vacuum, plain])
async def test_a_backup_that_is_copied_over_an_open_file_is_noticed_and_stays_whole(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    async with opened(path) as store:
        await keep(store, "a")
        work_off(path)
    make(path, backup)
    before = backup.read_bytes()
    async with opened(path) as store, opened(path) as other:
        await keep(store, *[f"b{number}" for number in range(50)])
        work_off(path)
        await keep(other, "c")
        shutil.copyfile(backup, path)
        for one in (store, other):
            with pytest.raises(Corrupt, match="another content was copied over"):
                await keep(one, "d")
            with pytest.raises(Corrupt, match="another content was copied over"):
                await one.scan("")
    assert path.read_bytes() == before
    assert "a.db-wal-aside" in os.listdir(tmp_path)
    assert await kept(path) == ["a"]


async def test_a_backup_newer_than_the_last_checkpoint_is_noticed_or_harmless(
    tmp_path: Path,
) -> None:
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    async with opened(path) as store:
        await keep(store, "a")
    async with opened(path) as store:
        await keep(store, "b")
        vacuum(path, backup)
        await keep(store, "c")
        shutil.copyfile(backup, path)
        with pytest.raises(Corrupt, match="its pages are in another order"):
            await keep(store, "d")
    assert await kept(path) == ["a", "b"]


async def test_checkpoints_of_others_and_vacuums_are_no_exchange(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path) as store, opened(path) as other:
        for number in range(5):
            await keep(store, f"a{number}")
            work_off(path)
            await keep(other, f"b{number}")
        with closing(sqlite3.connect(path)) as third:
            third.execute("VACUUM")
            third.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        await keep(store, "c")
        await keep(other, *[f"d{number}" for number in range(WORTH_WHILE // 2)])
        await keep(store, "e")
        assert len(await store.scan("", limit=10_000)) == 12 + WORTH_WHILE // 2
