"""A SQLite store with a million finished jobs, made in seconds.

A thousand jobs are really run; then their rows are copied with other numbers and ids. The counts of
the store are checked against the tables afterwards.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3

from durable_cases import POOL
from durable_ours import verbs
from poolhand.contract import Filter
from poolhand.rules.job import Status

REAL = 1_000
JOBS, ENDS, LOG = "poolhand_jobs", "poolhand_ends", "poolhand_log"
# Columns that must differ in a copy: numbers are increased, ids get another prefix.
NUMBERS = {
    JOBS: ("seq",),
    ENDS: ("no", "seq"),
    LOG: ("no", "first", "last"),
}
COUNT = f"""
UPDATE poolhand_counters
SET jobs = (SELECT max(seq) FROM {JOBS}), ends = (SELECT max(no) FROM {ENDS})
"""  # noqa: S608
TALLY = f"UPDATE poolhand_pools SET completed = (SELECT count(*) FROM {ENDS})"  # noqa: S608


def full_store(path: str, finished: int) -> str:
    """The URL of a file with so many finished jobs, made if it is missing."""
    url = f"sqlite:///{path}"
    if not os.path.exists(path):
        asyncio.run(run_some(url))
        copy_rows(path, finished)
        assert asyncio.run(completed(url)) >= finished
    return url


async def run_some(url: str) -> None:
    """Leave a thousand finished jobs in a store."""
    async with verbs(url) as ours:
        await ours.fill(REAL)
        await ours.drain(REAL)


async def completed(url: str) -> int:
    """The number of finished jobs, as the store reports it."""
    async with verbs(url) as ours:
        return (await ours.store.count(Filter(POOL)))[Status.COMPLETED]


def copy_rows(path: str, finished: int) -> None:
    """Copy the rows of finished jobs until there are so many."""
    connection = sqlite3.connect(path, isolation_level=None)
    # No durability needed: after a crash the file is thrown away.
    for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute("BEGIN")
    real = _count(connection, ENDS)
    times = -(-finished // real)
    for table, moved in NUMBERS.items():
        _copy(connection, table, moved, times)
    connection.execute(COUNT)
    connection.execute(TALLY)
    connection.execute("COMMIT")
    made = real * times
    assert _count(connection, ENDS) == _count(connection, JOBS) == made >= finished
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def _copy(connection: sqlite3.Connection, table: str, moved: tuple[str, ...], times: int) -> None:
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    steps = {
        name: connection.execute(f"SELECT max({name}) FROM {table}").fetchone()[0]  # noqa: S608
        for name in moved
    }
    values = ", ".join(
        f"{name} + {steps[name]} * :time"
        if name in steps
        else "printf('%06d-', :time) || id"
        if name == "id"
        else name
        for name in columns
    )
    first = f"{moved[0]} <= {steps[moved[0]]}"
    command = f"INSERT INTO {table} SELECT {values} FROM {table} WHERE {first}"  # noqa: S608
    for time in range(1, times):
        connection.execute(command, {"time": time})


def _count(connection: sqlite3.Connection, table: str) -> int:
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
    return int(count)
