"""The log of a SQLite store: rows of many lines, read and trimmed line by line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest

from poolhand.contract import LogLine
from poolhand.stores.sql.log import ROW_LINES, StreamLog
from poolhand.stores.sql.migrations import steps
from poolhand.stores.sqlite.tables import SqliteTables

AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for step in steps():
        connection.executescript(step.text)
    yield connection
    connection.close()


def write(connection: sqlite3.Connection, *bodies: bytes, stream: str = "s") -> None:
    StreamLog(SqliteTables(connection)).append(
        [LogLine(stream, "kind", body) for body in bodies], AT
    )


def read(connection: sqlite3.Connection, after: int = 0, limit: int = 10_000) -> list[str]:
    lines = StreamLog(SqliteTables(connection)).read("s", after, limit, "")
    return [f"{line.number} {line.body.decode()}" for line in lines]


def rows(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM poolhand_log").fetchone()
    return int(count)


def test_lines_that_are_written_together_are_one_row(connection: sqlite3.Connection) -> None:
    write(connection, b"a", b"b", b"c")
    assert rows(connection) == 1
    assert read(connection) == ["1 a", "2 b", "3 c"]


def test_very_many_lines_are_several_rows_without_a_gap(connection: sqlite3.Connection) -> None:
    bodies = [b"%d" % number for number in range(1, 2 * ROW_LINES + 2)]
    write(connection, *bodies)
    write(connection, b"last")
    assert rows(connection) == 4
    expected = [f"{number} {number}" for number in range(1, len(bodies) + 1)]
    assert read(connection) == [*expected, f"{len(bodies) + 1} last"]


@pytest.mark.parametrize("size", [10, 10_000])
def test_lines_round_trip_compressed_or_not(connection: sqlite3.Connection, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    StreamLog(SqliteTables(connection)).append([LogLine("s", "k\0é", body)] * 2, AT)
    first, second = StreamLog(SqliteTables(connection)).read("s", 0, 10, "")
    assert (first.body, first.kind, first.at, second.number) == (body, "k\0é", AT, 2)


def test_many_similar_lines_are_compressed(connection: sqlite3.Connection) -> None:
    write(connection, *[b"the same sentence %d" % number for number in range(200)])
    (size,) = connection.execute("SELECT length(lines) FROM poolhand_log").fetchone()
    assert size < 200 * 10


def test_a_read_may_start_and_end_within_a_row(connection: sqlite3.Connection) -> None:
    write(connection, b"a", b"b", b"c")
    write(connection, b"d", b"e")
    assert read(connection, after=1, limit=3) == ["2 b", "3 c", "4 d"]


@pytest.mark.parametrize("before", range(8))
def test_a_row_is_trimmed_line_by_line(connection: sqlite3.Connection, before: int) -> None:
    write(connection, b"a", b"b", b"c")
    write(connection, b"d", b"e")
    write(connection, b"x", stream="other")
    gone = max(0, min(before, 5) - 1)
    assert StreamLog(SqliteTables(connection)).trim("s", before) == gone
    assert read(connection) == ["1 a", "2 b", "3 c", "4 d", "5 e"][gone:]
    write(connection, b"f")
    assert read(connection)[-1] == "6 f"
    assert rows(connection) == (4 if gone < 3 else 3)


@pytest.mark.parametrize("lines", [b"z no zlib", b"\x00"], ids=["compressed", "plain"])
def test_corrupt_lines_are_refused(connection: sqlite3.Connection, lines: bytes) -> None:
    write(connection, b"a")
    connection.execute("UPDATE poolhand_log SET lines = ?", (lines,))
    with pytest.raises(msgspec.MsgspecError):
        read(connection)
