"""Many rows in one statement: each of them once, whatever their number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from poolhand.stores.sql.tables import Delete, Insert
from poolhand.stores.sqlite.tables import FEW, MANY, ROWS, SqliteTables, lots

COUNTS = [0, 1, 2, FEW, FEW + 1, ROWS - 1, ROWS, MANY, MANY + 1, MANY + FEW + 1, 2 * MANY + 5]


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE things (no INTEGER PRIMARY KEY, name TEXT, kind TEXT)")
    yield connection
    connection.close()


@pytest.mark.parametrize("count", COUNTS)
def test_values_are_split_into_batches_of_two_sizes(count: int) -> None:
    found = list(lots(range(count)))
    assert {len(lot) for lot in found} <= {FEW, MANY}
    assert [value for lot in found for value in lot if value is not None] == list(range(count))


@pytest.mark.parametrize("count", COUNTS)
def test_all_rows_are_inserted(connection: sqlite3.Connection, count: int) -> None:
    what = Insert("things", "no bigint, name text", {"kind": "'kind'"})
    rows = [(number, f"thing {number}") for number in range(count)]
    SqliteTables(connection).insert(what, rows)
    found = connection.execute("SELECT * FROM things ORDER BY no").fetchall()
    assert found == [(number, f"thing {number}", "kind") for number in range(count)]


@pytest.mark.parametrize("count", COUNTS)
def test_only_the_named_rows_are_deleted(connection: sqlite3.Connection, count: int) -> None:
    numbers = [(number,) for number in range(3 * MANY)]
    connection.executemany("INSERT INTO things (no) VALUES (?)", numbers)
    SqliteTables(connection).delete(Delete("things", "no"), list(range(count)))
    found = connection.execute("SELECT no FROM things ORDER BY no").fetchall()
    assert found == numbers[count:]


def test_a_row_replaces_one_with_the_same_key(connection: sqlite3.Connection) -> None:
    what = Insert("things", "no bigint, name text", key=("no",))
    for name in ("old", "new"):
        SqliteTables(connection).insert(what, [(number, name) for number in range(ROWS + 1)])
    found = connection.execute("SELECT DISTINCT name FROM things").fetchall()
    assert found == [("new",)]


def test_many_values_are_asked_about_at_once(connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT INTO things (no) VALUES (?)", [(n,) for n in range(500)])
    text = "SELECT no FROM things WHERE no > ? AND no IN (?*) AND no % 2 = 0"
    found = SqliteTables(connection).among(text, range(2 * MANY), (99,))
    assert list(found) == [(number,) for number in range(100, 200, 2)]
