"""The floor: sqlite3 of the standard library with one table.

WAL and `synchronous=FULL`, as in poolhand: a commit that returned is on the disk. There is no
record of the owner, no order but that of arrival, no log.
"""

from __future__ import annotations

import sqlite3
import time

from durable_cases import MILLI, Span, batches

PAYLOAD = b"x" * 150
QUEUED, CLAIMED, DONE = range(3)
SCHEMA = """
CREATE TABLE jobs (id INTEGER PRIMARY KEY, state INTEGER NOT NULL, payload BLOB, result BLOB);
CREATE INDEX queued ON jobs (id) WHERE state = 0;
"""
INSERT = f"INSERT INTO jobs (state, payload) VALUES ({QUEUED}, ?)"  # noqa: S608
SELECT = f"SELECT id, payload FROM jobs WHERE state = {QUEUED} ORDER BY id LIMIT ?"  # noqa: S608
CLAIM = f"UPDATE jobs SET state = {CLAIMED} WHERE id = ?"  # noqa: S608
COMPLETE = f"UPDATE jobs SET state = {DONE}, result = ? WHERE id = ?"  # noqa: S608
COUNT = f"SELECT count(*) FROM jobs WHERE state = {DONE}"  # noqa: S608


def opened(folder: str) -> sqlite3.Connection:
    """A new file with the table."""
    connection = sqlite3.connect(f"{folder}/floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = OFF")
    connection.executescript(SCHEMA)
    return connection


def put(connection: sqlite3.Connection, count: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, [(PAYLOAD,)] * count)
    connection.execute("COMMIT")


def take(connection: sqlite3.Connection, count: int) -> list[tuple[int]]:
    connection.execute("BEGIN IMMEDIATE")
    found = [(id,) for id, _ in connection.execute(SELECT, (count,)).fetchall()]
    connection.executemany(CLAIM, found)
    connection.execute("COMMIT")
    return found


def finish(connection: sqlite3.Connection, taken: list[tuple[int]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(COMPLETE, [(b"null", id) for (id,) in taken])
    connection.execute("COMMIT")


def batched(jobs: int, folder: str) -> dict[str, float]:
    """A hundred jobs per commit: put, then claim, then complete."""
    connection = opened(folder)
    return _run(connection, [len(batch) for batch in batches(jobs)])


def one_by_one(jobs: int, folder: str) -> dict[str, float]:
    """One commit for every step of every job."""
    return _run(opened(folder), [1] * jobs)


def _run(connection: sqlite3.Connection, sizes: list[int]) -> dict[str, float]:
    putting, taking, jobs = Span(), Span(), sum(sizes)
    with putting.timed():
        for size in sizes:
            put(connection, size)
    with taking.timed():
        for size in sizes:
            finish(connection, take(connection, size))
    assert connection.execute(COUNT).fetchone() == (jobs,)
    connection.close()
    return {**putting.per(jobs, "put"), **taking.per(jobs, "take")}


def starts(count: int, folder: str) -> list[float]:
    """Milliseconds of a put and a claim, a commit each: the minimum of a start."""
    connection = opened(folder)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        put(connection, 1)
        taken = take(connection, 1)
        took.append((time.perf_counter() - began) * MILLI)
        finish(connection, taken)
    connection.close()
    return took
