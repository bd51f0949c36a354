"""Damaged rows: a typed error; no job is run or lost."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from poolhand.contract import ClaimRequest, Filter, JobBatch, JobRequest, Owner
from poolhand.errors import Corrupt
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import SqliteStore

OWNER = Owner("me", "host", "boot", 1, "0")


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path, Runtime())
    await store.open()
    await store.enroll(OWNER)
    return store


async def filled(path: Path) -> None:
    store = await opened(path)
    wall = Runtime().wall()
    for number in range(3):
        job = Job(id=f"{number}", pool="p", pool_id="", status=Status.QUEUED, submitted_at=wall)
        await store.add([JobBatch((JobRequest(job, b""),))])
    await store.close()


def columns(path: Path) -> list[tuple[str, str]]:
    """Return every column that holds bytes."""
    connection = sqlite3.connect(path)
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    found = [
        (table, row[1])
        for table in tables
        for row in connection.execute(f"PRAGMA table_info({table})")
        if row[2] == "BLOB"
    ]
    connection.close()
    return found


@pytest.mark.parametrize("seed", range(20))
async def test_random_bytes_in_any_column_give_a_typed_error_or_none(
    tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "jobs.db"
    await filled(path)
    draw = random.Random(seed)
    garbage = draw.randbytes(draw.randrange(40))
    connection = sqlite3.connect(path)
    for table, column in columns(path):
        connection.execute(
            f"UPDATE {table} SET {column} = ? WHERE {column} IS NOT NULL",  # noqa: S608
            (garbage,),
        )
    connection.commit()
    connection.close()
    store = await opened(path)
    with pytest.raises(Corrupt, match="doctor"):
        await store.get(["1"])
    with pytest.raises(Corrupt, match="doctor"):
        await store.replace((), ClaimRequest("me", (0, 1)))
    with pytest.raises(Corrupt, match="doctor"):
        await store.find(Filter())
    await store.close()
