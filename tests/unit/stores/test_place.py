"""A file whose log is removed, or whose content is replaced, while it is open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from poolhand.contract import Put
from poolhand.errors import Corrupt
from poolhand.runtime import Runtime
from poolhand.stores.sqlite import place
from poolhand.stores.sqlite.place import WORTH_WHILE
from poolhand.stores.sqlite.store import SqliteStore


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


def content(path: str) -> bytes:
    return Path(path).read_bytes()


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


async def test_opening_a_file_whose_wal_was_removed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path) as store:
        await keep(store, "a")
        os.unlink(f"{path}-wal")
        with pytest.raises(Corrupt, match="Stop every process that uses it"):
            await kept(path)
        assert "a.db-wal" not in os.listdir(tmp_path)
    assert await kept(path) == ["a"]


async def test_a_file_left_by_a_crash_without_its_wal_is_opened(tmp_path: Path) -> None:
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


async def test_checkpoints_of_other_processes_and_vacuums_are_not_a_replaced_file(
    tmp_path: Path,
) -> None:
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


def first_page_only(path: Path) -> None:
    """Copy page 1 from the log to a closed file: alone it cannot be read any more."""
    log = Path(f"{path}-wal").read_bytes()
    frames = [log[at : at + 24 + 4096] for at in range(32, len(log), 24 + 4096)]
    first = [frame[24:] for frame in frames if int.from_bytes(frame[:4]) == 1]
    with open(path, "r+b") as file:
        file.write(first[-1])


def half_done(path: Path) -> None:
    """Copy all pages but that of the clock from the log to the file, as a cut checkpoint does."""
    # In another process: closing the file here would release the locks of SQLite.
    subprocess.run([sys.executable, "-c", HALF_DONE, path], check=True)


HALF_DONE = """
import sqlite3, sys
path = sys.argv[1]
find = "SELECT rootpage FROM sqlite_master WHERE name = 'poolhand_clock'"
(clock,) = sqlite3.connect(path).execute(find).fetchone()
with open(path + "-wal", "rb") as log, open(path, "r+b") as file:
    log.seek(32)
    while head := log.read(24):
        page, number = log.read(4096), int.from_bytes(head[:4], "big")
        if number != clock:
            file.seek((number - 1) * 4096)
            file.write(page)
"""


async def test_a_file_replaced_after_an_interrupted_checkpoint_is_detected(tmp_path: Path) -> None:
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    async with opened(path) as store:
        await keep(store, "a")
    plain(path, backup)
    async with opened(path) as store:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
        half_done(path)
        await keep(store, "b")
        shutil.copyfile(backup, path)
        with pytest.raises(Corrupt, match="it is older than what was there"):
            await keep(store, "c")
    assert await kept(path) == ["a"]


async def test_a_backup_can_be_restored_while_the_file_is_not_open(tmp_path: Path) -> None:
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    async with opened(path) as store:
        await keep(store, "a")
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
        await keep(store, "b")
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", f"{backup}{end}")
    first_page_only(backup)
    async with opened(path) as store:
        await keep(store, "c")
        work_off(path)
        await keep(store, "d")
    for end in ("", "-wal"):
        shutil.copyfile(f"{backup}{end}", f"{path}{end}")
    async with opened(path) as store, opened(path) as other_store:
        work_off(path)
        await keep(store, "e")
        await keep(other_store, "f")
    assert await kept(path) == ["a", "b", "e", "f"]


async def test_a_wal_that_cannot_be_copied_is_not_emptied(tmp_path: Path) -> None:
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    async with opened(path) as store:
        await keep(store, "a")
    vacuum(path, backup)
    os.mkdir(f"{path}-wal-aside")
    async with opened(path) as store, opened(path):
        await keep(store, "b")
        before = content(f"{path}-wal")
        shutil.copyfile(backup, path)
        with pytest.raises(Corrupt, match="another content was copied over"):
            await keep(store, "c")
        assert content(f"{path}-wal") == before


async def test_locks_on_other_files_do_not_keep_a_store_from_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, index = tmp_path / "a.db", tmp_path / "a.db-shm"
    async with opened(path) as store:
        await keep(store, "a")
        left = index.read_bytes()
    index.write_bytes(left)
    seen, locks = index.stat(), tmp_path / "locks"
    monkeypatch.setattr(place, "LOCKS", str(locks))
    here = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    locks.write_text(
        f"1: POSIX  ADVISORY  READ 7 ff:fe:{seen.st_ino} 128 128\n"
        f"2: FLOCK  ADVISORY  WRITE 7 {here} 0 EOF\n"
    )
    assert await kept(path) == ["a"]
    index.write_bytes(left)
    seen = index.stat()
    here = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    locks.write_text(f"1: POSIX  ADVISORY  READ 7 {here} 128 128\n")
    with pytest.raises(Corrupt, match="was removed or replaced"):
        await kept(path)
