"""Migrations: applied in order, whole or not at all, and verified afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from poolhand.errors import Corrupt, SchemaTooNew
from poolhand.runtime import Runtime
from poolhand.stores.sql.migrations import Migration, applied, migrate, steps
from poolhand.stores.sqlite.store import SqliteStore

AT = datetime(2030, 1, 1, tzinfo=UTC)
FIRST = Migration(1, "first", "CREATE TABLE one (a);\nCREATE INDEX one_a ON one (a);")
SECOND = Migration(2, "second", "ALTER TABLE one ADD COLUMN b; INSERT INTO one VALUES (1, 2);")
BROKEN = Migration(2, "broken", "CREATE TABLE two (a); INSERT INTO nowhere VALUES (1);")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:", isolation_level=None)
    yield made
    made.close()


def tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in rows]


def test_missing_steps_are_taken_in_order_and_noted(connection: sqlite3.Connection) -> None:
    assert migrate(connection, [FIRST], "a.db", AT) == 1
    assert migrate(connection, [FIRST, SECOND], "a.db", AT) == 1
    assert migrate(connection, [FIRST, SECOND], "a.db", AT) == 0
    assert connection.execute("SELECT * FROM one").fetchall() == [(1, 2)]
    rows = connection.execute("SELECT number, name, applied_at FROM poolhand_schema").fetchall()
    assert rows == [(1, "first", AT.isoformat()), (2, "second", AT.isoformat())]


def test_a_step_that_fails_leaves_nothing_and_can_be_taken_later(
    connection: sqlite3.Connection,
) -> None:
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(connection, [FIRST, BROKEN], "a.db", AT)
    assert tables(connection) == ["one", "poolhand_schema"]
    assert list(applied(connection)) == [1]
    assert not connection.in_transaction
    migrate(connection, [FIRST, SECOND], "a.db", AT)
    assert list(applied(connection)) == [1, 2]


def test_a_newer_schema_is_refused_and_left_unchanged(connection: sqlite3.Connection) -> None:
    migrate(connection, [FIRST, SECOND], "a.db", AT)
    before = list(connection.iterdump())
    with pytest.raises(SchemaTooNew, match=r"a.db has schema 2, .* up to 1: run the newer version"):
        migrate(connection, [FIRST], "a.db", AT)
    assert list(connection.iterdump()) == before


def test_a_step_with_another_text_than_the_one_taken_is_refused(
    connection: sqlite3.Connection,
) -> None:
    migrate(connection, [FIRST], "a.db", AT)
    other = Migration(1, "other", "CREATE TABLE another (a);")
    with pytest.raises(Corrupt, match=r"step 1 \(first\) .* this poolhand has \(other\)"):
        migrate(connection, [other, SECOND], "a.db", AT)
    assert tables(connection) == ["one", "poolhand_schema"]


def test_a_schema_with_a_gap_is_refused(connection: sqlite3.Connection) -> None:
    migrate(connection, [FIRST, SECOND], "a.db", AT)
    connection.execute("DELETE FROM poolhand_schema WHERE number = 1")
    with pytest.raises(Corrupt, match="lacks step 1"):
        migrate(connection, [FIRST, SECOND], "a.db", AT)


def test_tables_of_a_user_in_the_same_file_stay(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE mine (a)")
    connection.execute("INSERT INTO mine VALUES (7)")
    migrate(connection, [FIRST], "a.db", AT)
    assert connection.execute("SELECT a FROM mine").fetchone() == (7,)


def test_steps_are_read_from_numbered_files(tmp_path: Path) -> None:
    (tmp_path / "0002_more.sql").write_text("SELECT 2;\n")
    (tmp_path / "0001_jobs.sql").write_text("SELECT 1;\n")
    (tmp_path / "readme.txt").write_text("not a step")
    assert [(step.number, step.name, step.text) for step in steps(folder=tmp_path)] == [
        (1, "jobs", "SELECT 1;"),
        (2, "more", "SELECT 2;"),
    ]


def test_a_missing_number_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "0002_more.sql").touch()
    with pytest.raises(AssertionError):
        steps(folder=tmp_path)


def test_line_ends_do_not_make_another_step(tmp_path: Path) -> None:
    file = tmp_path / "0001_jobs.sql"
    file.write_bytes(b"SELECT 1;\nSELECT 2;\n")
    (plain,) = steps(folder=tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / file.name).write_bytes(b"SELECT 1;\r\nSELECT 2;\r\n")
    assert steps(folder=other)[0].checksum == plain.checksum


def test_the_steps_of_the_package_make_a_schema(connection: sqlite3.Connection) -> None:
    known = steps()
    migrate(connection, known, "a.db", AT)
    assert list(applied(connection)) == [step.number for step in known]


def test_runs_and_receipts_from_before_the_second_step_are_kept(
    connection: sqlite3.Connection,
) -> None:
    migrate(connection, steps()[:1], "store", AT)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for seq, continues in enumerate([None, "r" * 28], start=1):
        terms = ["p", "", at, "n", "user", "", 0, None, None, None, None, None, None, continues]
        row = (seq, str(seq) * 28, 1, "n", "", None, None, None, msgspec.msgpack.encode(terms), b"")
        connection.execute("INSERT INTO poolhand_jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    keys = ["receipt/" + "0f" * 32, "receipt/" + "fe" * 32, "session//s", "other"]
    for key in keys:
        document = (key, 1, 100.0, b"{}")
        connection.execute("INSERT INTO poolhand_documents VALUES (?, ?, ?, ?)", document)
    migrate(connection, steps(), "store", AT)
    assert connection.execute("SELECT * FROM poolhand_runs").fetchall() == [(2, "r" * 28)]
    kept = dict(connection.execute("SELECT key, until FROM poolhand_documents"))
    later = 100.0 + 90 * 86_400
    assert [kept[key] for key in keys] == [later, later, 100.0, 100.0]


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE poolhand_jobs (theirs)",
        "CREATE TABLE Poolhand_Jobs (theirs)",
        "CREATE VIEW poolhand_jobs AS SELECT 1",
        "CREATE TABLE poolhand_schema (theirs)",
        "CREATE TABLE t (a); CREATE INDEX poolhand_jobs_by_id ON t (a)",
    ],
)
async def test_a_table_of_another_program_is_left_unchanged(tmp_path: Path, made: str) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(made)
    before = path.read_bytes()
    store = SqliteStore(path, Runtime())
    with pytest.raises(Corrupt) as caught:
        await store.open()
    assert caught.value.message.startswith(f"{path}: there is a table or index 'poolhand_")
    assert "nothing was changed. It belongs to another program: name another file for" in str(
        caught.value
    )
    assert path.read_bytes() == before
    assert await store.schema() == (0, len(steps()))


def test_a_later_step_meets_a_table_of_another_program(connection: sqlite3.Connection) -> None:
    two = Migration(2, "two", "CREATE TABLE two (a);")
    migrate(connection, [FIRST], "a.db", AT)
    connection.execute("CREATE TABLE two (theirs)")
    with pytest.raises(Corrupt, match=r"a\.db: there is a table or index 'two' already"):
        migrate(connection, [FIRST, two], "a.db", AT)
    assert list(applied(connection)) == [1]
