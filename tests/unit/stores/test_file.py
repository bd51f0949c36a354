"""The file of a SQLite store: shared commits, its clock, and its error messages."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from poolhand.errors import Corrupt, ReadOnly, SchemaTooNew, StoreError, Unavailable
from poolhand.runtime import Runtime
from poolhand.stores.sql import migrations
from poolhand.stores.sqlite import errors as faults
from poolhand.stores.sqlite import place as wal
from poolhand.stores.sqlite.file import StoreFile
from poolhand.stores.sqlite.lock import FileLock, LockPatience
from poolhand.testing.seeded import SeededRuntime, run_seeded

START = datetime(2030, 1, 1, tzinfo=UTC)


class Machine(Runtime):
    """A runtime whose clocks and boot id the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.boot = "first boot"
        self.up = 50.0
        self.time = START

    def monotonic(self) -> float:
        return self.up

    def wall(self) -> datetime:
        return self.time

    def identity(self) -> tuple[str, str, int, str]:
        return "host", self.boot, os.getpid(), "1"

    def wait(self, seconds: float) -> None:
        self.up += seconds
        self.time += timedelta(seconds=seconds)

    def restart(self, boot: str, up: float = 0.5) -> None:
        self.boot, self.up = boot, up


@asynccontextmanager
async def opened(path: Path, runtime: Runtime | None = None) -> AsyncIterator[StoreFile]:
    file = StoreFile(path, runtime or Runtime())
    await file.open()
    try:
        yield file
    finally:
        await file.close()


@asynccontextmanager
async def notes(folder: Path) -> AsyncIterator[StoreFile]:
    """A file with a table for notes."""
    async with opened(folder / "a.db") as file:
        await file.write(make_notes)
        yield file


def make_notes(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE note (text)")


def note(text: str) -> Callable[[sqlite3.Connection], int]:
    def op(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO note VALUES (?)", (text,))
        return len(text)

    return op


def noted(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY rowid")]


def traced(connection: sqlite3.Connection) -> list[str]:
    """Return a list that fills with the statements a connection runs."""
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    return statements


def log_size(file: StoreFile) -> int:
    return os.stat(f"{file.path}-wal").st_size


def touch(path: str) -> None:
    Path(path).touch()


def contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


async def test_written_data_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        assert await file.write(note("abc")) == 3
        assert file.read(noted) == ["abc"]
    async with opened(tmp_path / "a.db") as file:
        assert file.read(noted) == ["abc"]


async def test_concurrent_writes_share_one_commit_in_order(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        statements = file.read(traced)
        await asyncio.gather(*[file.write(note(str(number))) for number in range(100)])
        assert statements.count("COMMIT") == 1
        assert file.read(noted) == [str(number) for number in range(100)]


async def test_a_failed_write_is_rolled_back_alone_and_raised_to_its_caller_only(
    tmp_path: Path,
) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        note("half")(connection)
        raise KeyError("mine")

    async with notes(tmp_path) as file:
        outcomes = await asyncio.gather(
            file.write(note("a")),
            file.write(fails),
            file.write(note("b")),
            return_exceptions=True,
        )
        assert [str(outcome) for outcome in outcomes] == ["1", "'mine'", "1"]
        assert file.read(noted) == ["a", "b"]


async def test_an_error_in_a_statement_is_not_a_store_error(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await file.write(lambda connection: connection.execute("DELETE FROM missing"))
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            file.read(lambda connection: connection.execute("SELECT * FROM missing"))
        await file.check()


async def test_an_exception_that_a_future_cannot_hold_is_still_raised(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        with pytest.raises(Unavailable, match="StopIteration"):
            await file.write(lambda _: next(iter(())))
        await file.write(note("later"))


async def test_a_caller_that_was_cancelled_before_the_commit_writes_nothing(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        gone = asyncio.create_task(file.write(note("gone")))
        here = asyncio.create_task(file.write(note("here")))
        await asyncio.sleep(0)
        gone.cancel()
        assert await here == 4
        assert gone.cancelled()
        assert file.read(noted) == ["here"]


async def test_signals_are_published_once_after_the_commit_and_not_for_rollbacks(
    tmp_path: Path,
) -> None:
    async with notes(tmp_path) as file:
        heard: list[tuple[str, list[str]]] = []
        told = asyncio.Event()

        def hear(topic: str) -> None:
            heard.append((topic, file.read(noted)))
            told.set()

        def signals(*topics: str, fail: bool = False) -> Callable[[sqlite3.Connection], None]:
            def op(connection: sqlite3.Connection) -> None:
                note("x")(connection)
                for topic in topics:
                    file.signal(topic)
                if fail:
                    raise KeyError

            return op

        end = file.subscribe(hear)
        await asyncio.gather(
            file.write(signals("ready")),
            file.write(signals("ready", "wish", fail=True)),
            file.write(signals("ready", "over")),
            return_exceptions=True,
        )
        await told.wait()
        assert heard == [("ready", ["x", "x"]), ("over", ["x", "x"])]
        told.clear()
        file.publish("mine")
        await told.wait()
        assert heard[-1][0] == "mine"
        end()


async def test_a_read_sees_one_consistent_snapshot(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        other = sqlite3.connect(file.path, isolation_level=None)

        def op(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
            before = noted(connection)
            note("meanwhile")(other)
            return before, noted(connection)

        assert file.read(op) == ([], [])
        assert file.read(noted) == ["meanwhile"]
        other.close()


async def test_a_read_inside_a_write_sees_its_changes(tmp_path: Path) -> None:
    def op(connection: sqlite3.Connection) -> list[str]:
        note("new")(connection)
        return file.read(noted)

    async with notes(tmp_path) as file:
        assert await file.write(op) == ["new"]


async def test_a_read_that_writes_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        with pytest.raises(AssertionError):
            file.read(note("sly"))
        assert file.read(noted) == []


async def test_a_group_that_changes_nothing_costs_no_write(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        before = os.stat(f"{file.path}-wal")
        assert await file.write(noted) == []
        after = os.stat(f"{file.path}-wal")
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


async def test_closing_finishes_waiting_writes_and_refuses_later_ones(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        lock = hold(file.path)
        waiting = asyncio.create_task(file.write(note("just in time")))
        await asyncio.sleep(0)
        closing = asyncio.create_task(file.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="being closed"):
            await file.write(note("too late"))
        lock.close()
        await closing
        assert await waiting == 12
        await file.close()
        for use in (lambda: file.write(note("no")), file.check):
            with pytest.raises(Unavailable, match="not open"):
                await use()
        with pytest.raises(Unavailable, match="not open"):
            file.read(noted)
        file.publish("nobody")
        await file.open()
        assert file.read(noted) == ["just in time"]


async def test_a_close_that_was_cancelled_leaves_the_file_open(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        lock = hold(file.path)
        closing = asyncio.create_task(file.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        lock.close()
        await file.open()
        await file.write(note("still open"))
        await file.close()
        await file.open()
        assert file.read(noted) == ["still open"]


async def test_an_error_after_the_commit_does_not_fail_its_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def broken(fd: int, size: int, start: int) -> bytes:
        asked.append(fd)
        raise OSError(5, "Input/output error")

    async with notes(tmp_path) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", broken)
            done = await asyncio.gather(file.write(note("a")), file.write(note("bc")))
        assert asked
        assert list(done) == [1, 2]
        assert file.read(noted) == ["a", "bc"]
        await file.check()


async def test_a_failed_rollback_leaves_no_caller_waiting(tmp_path: Path) -> None:
    def deny(action: int, what: str | None, *_: str | None) -> int:
        undoing = action == sqlite3.SQLITE_TRANSACTION and what == "ROLLBACK"
        committing = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if undoing or committing else sqlite3.SQLITE_OK

    async with notes(tmp_path) as file:
        connection = file._connection
        assert connection is not None
        connection.set_authorizer(deny)
        async with asyncio.timeout(30):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                await file.write(note("a"))
        other = hold(file.path)
        other.close()
        connection.set_authorizer(None)
        connection.execute("ROLLBACK")
        await file.write(note("b"))
        assert file.read(noted) == ["b"]


async def test_a_file_name_that_is_not_utf_8_is_supported(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff?%20#.db")
    async with opened(path) as file:
        await file.write(make_notes)
        await file.write(note("a"))
        connection = await file.begin()
        assert noted(connection) == ["a"]
        file.end(connection)
        with closing(faults.reader(file.path)) as reader:
            assert reader.execute("SELECT * FROM note").fetchall() == [("a",)]


async def test_a_write_issued_before_a_close_is_committed(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        length, _ = await asyncio.gather(file.write(note("abc")), file.close())
        assert length == 3
        await file.open()
        assert file.read(noted) == ["abc"]


async def test_closing_a_store_checkpoints_the_wal_for_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db") as stays:
        async with notes(tmp_path) as file:
            await file.write(note("abc"))
            assert log_size(stays) > 0
        assert log_size(stays) == 0
        assert stays.read(noted) == ["abc"]


async def test_a_closed_store_leaves_only_the_file_and_its_locks(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        await file.write(note("a"))
    assert sorted(os.listdir(tmp_path)) == ["a.db", "a.db-lock", "a.db-lock-turn"]


async def test_all_roads_to_a_file_lead_to_one_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    files = StoreFile(tmp_path / "a.db", Runtime()), StoreFile(tmp_path / "link/a.db", Runtime())
    assert files[0].path == files[1].path


async def test_the_wal_is_checkpointed_as_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "WORTH_WHILE", 20)
    async with notes(tmp_path) as file:
        for number in range(100):
            await file.write(note(f"{number}" * 1000))
        # The schema takes some 60 pages, each note some 3: the log was restarted several times.
        assert log_size(file) < 100 * 4096
        assert len(file.read(noted)) == 100


async def test_a_wal_that_grew_very_large_during_a_read_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "WORTH_WHILE", 20)
    monkeypatch.setattr(wal, "VERY_LARGE", 100)
    async with notes(tmp_path) as file:
        reader = sqlite3.connect(file.path, isolation_level=None)
        reader.execute("BEGIN")
        assert noted(reader) == []
        statements = file.read(traced)
        for number in range(100):
            await file.write(note(f"{number}" * 1000))
        assert log_size(file) > 200 * 4096, "who reads needs it"
        checkpoints = [text for text in statements if "wal_checkpoint" in text]
        assert len(checkpoints) < 40, "not after each commit"
        reader.execute("COMMIT")
        for number in range(20):
            await file.write(note(f"{number}" * 1000))
        assert log_size(file) < 100 * 4096
        assert len(file.read(noted)) == 120
        reader.close()


# The clock.


async def test_the_wall_clock_moves_nothing_within_one_boot(tmp_path: Path) -> None:
    machine = Machine()
    async with opened(tmp_path / "a.db", machine) as file:
        began = file.now()
        assert began == pytest.approx(START.timestamp())
        for jump in (-3600, 7200):
            machine.time += timedelta(seconds=jump)
            machine.wait(10)
            async with opened(tmp_path / "a.db", machine) as other:
                assert other.now() == file.now()
        assert file.now() - began == pytest.approx(20)


@pytest.mark.parametrize("up", [0.5, 9000.0])
async def test_after_a_boot_store_time_continues_by_the_wall_clock(
    tmp_path: Path, up: float
) -> None:
    machine = Machine()
    async with opened(tmp_path / "a.db", machine) as file:
        before = file.now()
    machine.wait(3600)
    machine.restart("second boot", up)
    async with opened(tmp_path / "a.db", machine) as file:
        assert file.now() - before == pytest.approx(3600)


async def test_after_a_boot_with_a_clock_set_back_no_store_time_repeats(tmp_path: Path) -> None:
    machine = Machine()
    async with opened(tmp_path / "a.db", machine) as file:
        machine.wait(100)
        await file.check()
        before = file.now()
    machine.time -= timedelta(days=1)
    machine.restart("second boot")
    async with opened(tmp_path / "a.db", machine) as file:
        assert file.now() >= before
        machine.wait(5)
        assert file.now() == pytest.approx(before + 5)


async def test_without_boot_ids_store_time_still_moves_forward(tmp_path: Path) -> None:
    machine = Machine()
    machine.boot = ""
    async with opened(tmp_path / "a.db", machine) as file:
        machine.wait(100)
        await file.check()
        before = file.now()
        machine.time -= timedelta(days=1)
        async with opened(tmp_path / "a.db", machine) as other:
            assert other.now() == before
    machine.restart("")
    async with opened(tmp_path / "a.db", machine) as file:
        assert file.now() >= before


# Other processes at the file.


def hold(path: str) -> FileLock:
    lock = FileLock(f"{path}-lock")
    assert lock.take(LockPatience(lambda: 0.0, 1))
    return lock


def test_a_lock_held_too_long_raises_and_later_writes_succeed(tmp_path: Path) -> None:
    async def main(runtime: SeededRuntime) -> list[str]:
        async with opened(tmp_path / "a.db", runtime) as file:
            await file.write(make_notes)
            lock = hold(file.path)
            began = runtime.monotonic()
            refused = await asyncio.gather(
                file.write(note("a")), file.write(note("b")), return_exceptions=True
            )
            assert runtime.monotonic() - began < 11
            for error in refused:
                assert isinstance(error, Unavailable)
                assert f"{file.path}: another process has held {file.path}-lock" in str(error)
            assert refused[0] is not refused[1]
            lock.close()
            lock = hold(file.path)
            assert file.read(noted) == [], "reading needs no lock"
            waiting = asyncio.create_task(file.write(note("c")))
            await asyncio.sleep(1)
            joining = asyncio.create_task(file.write(note("d")))
            await asyncio.sleep(1)
            lock.close()
            await asyncio.gather(waiting, joining)
            return file.read(noted)

    assert run_seeded(main, seed=3) == ["c", "d"]


def test_opening_and_closing_end_though_the_lock_is_held(tmp_path: Path) -> None:
    async def main(runtime: SeededRuntime) -> None:
        file = StoreFile(tmp_path / "a.db", runtime)
        await file.open()
        lock = hold(file.path)
        with pytest.raises(Unavailable, match="another process has held"):
            await StoreFile(tmp_path / "a.db", runtime).open()
        await file.close()
        lock.close()

    run_seeded(main, seed=3)


@pytest.mark.slow
def test_opening_waits_for_another_program_that_writes(tmp_path: Path) -> None:
    async def main(runtime: SeededRuntime) -> list[str]:
        async with opened(tmp_path / "a.db", runtime) as file:
            await file.write(make_notes)
        foreign = sqlite3.connect(file.path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        file.lock_seconds = 0.05
        with pytest.raises(Unavailable, match="another program holds the file; try again"):
            await file.open()
        file.lock_seconds = 10
        waiting = asyncio.create_task(file.open())
        await asyncio.sleep(0.03)
        assert not waiting.done()
        note("foreign")(foreign)
        foreign.execute("COMMIT")
        foreign.close()
        await waiting
        await file.write(note("mine"))
        texts = file.read(noted)
        await file.close()
        return texts

    assert run_seeded(main, seed=3) == ["foreign", "mine"]


def test_another_program_that_writes_is_waited_for(tmp_path: Path) -> None:
    async def main(runtime: SeededRuntime) -> list[str]:
        async with opened(tmp_path / "a.db", runtime) as file:
            await file.write(make_notes)
            foreign = sqlite3.connect(file.path, isolation_level=None)
            foreign.execute("BEGIN IMMEDIATE")
            file.lock_seconds = 0.05
            with pytest.raises(Unavailable, match=f"another process has held {file.path} for"):
                await file.write(note("refused"))
            file.lock_seconds = 10
            waiting = asyncio.create_task(file.write(note("mine")))
            await asyncio.sleep(0.03)
            note("foreign")(foreign)
            foreign.execute("COMMIT")
            await waiting
            foreign.close()
            return file.read(noted)

    assert run_seeded(main, seed=3) == ["foreign", "mine"]


async def test_two_stores_on_one_file_see_and_notify_each_other(tmp_path: Path) -> None:
    async with notes(tmp_path) as one, opened(tmp_path / "a.db") as other:
        told = asyncio.Event()
        other.subscribe(lambda topic: told.set() if topic == "ready" else None)

        def op(connection: sqlite3.Connection) -> None:
            note("a")(connection)
            one.signal("ready")

        await one.write(op)
        async with asyncio.timeout(30):
            await told.wait()
        assert other.read(noted) == ["a"]
        await other.write(note("b"))
        assert one.read(noted) == ["a", "b"]


async def test_a_file_migrated_by_a_compatible_step_is_written_to_as_before(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        known = len(migrations.steps())
        newer = sqlite3.connect(file.path, isolation_level=None)
        newer.execute("INSERT INTO poolhand_schema VALUES (999, 'new', 'x', 'now', ?)", (known,))
        newer.close()
        await file.write(note("old"))
    async with opened(tmp_path / "a.db") as again:
        assert again.read(noted) == ["old"]


async def test_a_file_migrated_by_a_newer_version_is_not_written_to_any_more(
    tmp_path: Path,
) -> None:
    async with notes(tmp_path) as file:
        newer = sqlite3.connect(file.path, isolation_level=None)
        newer.execute("INSERT INTO poolhand_schema VALUES (999, 'new', 'x', 'now', 999)")
        newer.close()
        with pytest.raises(SchemaTooNew, match="has schema 999"):
            await file.write(note("old"))
        assert file.read(noted) == []
    with pytest.raises(SchemaTooNew, match="has schema 999"):
        await StoreFile(tmp_path / "a.db", Runtime()).open()


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_was_taken_away_accepts_nothing(tmp_path: Path, how: str) -> None:
    async with notes(tmp_path) as file:
        os.rename(file.path, tmp_path / "moved")
        if how == "replaced":
            touch(file.path)
        with pytest.raises(Unavailable, match="was moved, removed or replaced"):
            await file.check()
        os.rename(tmp_path / "moved", file.path)
        await file.write(note("back"))
        assert file.read(noted) == ["back"]


async def test_tables_of_a_user_live_in_the_same_file(tmp_path: Path) -> None:
    mine = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    mine.execute("CREATE TABLE mine (a CHECK (a > 0))")
    mine.execute("PRAGMA ignore_check_constraints = ON")
    mine.execute("INSERT INTO mine VALUES (-1)")
    mine.close()
    async with opened(tmp_path / "a.db") as file:
        assert file.read(lambda c: c.execute("SELECT a FROM mine").fetchone()) == (-1,)


# Faults.


async def fill(path: Path) -> bytes:
    """Make a file of some pages and return its bytes."""
    async with opened(path) as file:
        await file.write(make_notes)
        for number in range(40):
            await file.write(note(f"{number}" * 2000))
        await file.write(lambda c: c.execute("CREATE TABLE good AS SELECT 1 AS a").close())
    return contents(path) or b""


def tear(path: Path, whole: bytes) -> None:
    """Damage half a page of the notes."""
    with path.open("r+b") as raw:
        raw.seek(whole.index(b"2020202020") // 4096 * 4096)
        raw.write(b"\x5a" * 2048)


async def refused(path: Path) -> StoreError:
    """Try to open a file; check that it and its neighbours are unchanged; return the error."""
    before = contents(path)
    with pytest.raises(StoreError) as caught:
        await StoreFile(path, Runtime()).open()
    assert contents(path) == before
    assert str(path) in str(caught.value)
    return caught.value


async def test_random_bytes_are_no_store(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(bytes(range(256)) * 64)
    error = await refused(path)
    assert isinstance(error, Corrupt)
    assert "not a SQLite database; nothing was changed" in str(error)


@pytest.mark.parametrize("kind", ["text", "folder", "pipe"])
async def test_no_file_is_created_where_no_store_can_be(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.db"
    match kind:
        case "text":
            path.write_text("hello")
            said = "is not a SQLite database; nothing was changed"
        case "folder":
            path.mkdir()
            said = "is a folder; name a file in it"
        case _:
            os.mkfifo(path)
            said = "is a pipe, a socket or a device; name a regular file"
    assert said in str(await refused(path))
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("locked", [True, False])
async def test_a_second_store_on_the_file_keeps_the_locks_of_the_first(
    tmp_path: Path, locked: bool
) -> None:
    """Another process that closes the file must see them, or it would remove the log."""
    leave = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]);"
        "connection.execute('SELECT 1 FROM sqlite_master').fetchone(); connection.close()"
    )
    async with notes(tmp_path) as file:
        await file.write(note("abc"))
        if not locked:
            os.unlink(f"{file.path}-lock")
        faults.expect_file(file.path)
        ended = await asyncio.create_subprocess_exec(sys.executable, "-c", leave, file.path)
        assert await ended.wait() == 0
        assert "a.db-wal" in os.listdir(tmp_path)
        assert file.read(noted) == ["abc"]


@pytest.mark.parametrize("log", [0, 32, 10**6], ids=["alone", "empty log", "log"])
@pytest.mark.parametrize("left", [0.3, 0.9])
async def test_a_truncated_file_is_reported_as_corrupt(
    tmp_path: Path, left: float, log: int
) -> None:
    path, cut = tmp_path / "a.db", tmp_path / "b.db"
    whole = await fill(path)
    cut.write_bytes(whole[: int(len(whole) * left)])
    async with opened(path) as file:
        await file.write(note("in the log"))
        whole = contents(tmp_path / "a.db-wal") or b""
        (tmp_path / "b.db-wal").write_bytes(whole[:log])
    error = await refused(cut)
    assert isinstance(error, Corrupt)
    assert ".recover" in str(error)


async def test_a_torn_page_is_found_and_readable_tables_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    tear(path, await fill(path))
    error = await refused(path)
    assert isinstance(error, Corrupt)
    text = str(error)
    assert "A check found" in text
    assert "good (1 rows)" in text.partition("that cannot:")[0]
    assert "note" in text.partition("that cannot:")[2]
    assert "Nothing was changed" in text


async def test_corruption_found_while_running_is_raised_to_readers_and_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a file too large to be checked when it is opened.
    monkeypatch.setattr(faults, "QUICK_BYTES", 0)
    path = tmp_path / "a.db"
    whole = await fill(path)
    async with opened(path) as file:
        tear(path, whole)
        with pytest.raises(Corrupt, match="that cannot: note"):
            file.read(noted)
        with pytest.raises(Corrupt, match="that cannot: note"):
            await file.check()
        assert file.read(lambda c: c.execute("SELECT a FROM good").fetchone()) == (1,)


async def test_corruption_found_in_a_write_is_raised_and_the_wal_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "QUICK_BYTES", 0)
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    whole = await fill(path)
    async with opened(path) as file:
        await file.write(note("in the log"))
        tear(path, whole)
        with pytest.raises(Corrupt, match="that cannot: note"):
            await file.write(lambda connection: connection.execute("DELETE FROM note"))
        before = contents(path), contents(log)
    assert (contents(path), contents(log)) == before


async def test_a_corrupt_file_and_its_wal_are_left_unchanged(tmp_path: Path) -> None:
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    whole = await fill(path)
    async with opened(path) as file:
        await file.write(note("in the log"))
        # As a crash leaves them.
        shutil.copy(path, tmp_path / "b.db")
        shutil.copy(log, tmp_path / "b.db-wal")
    tear(tmp_path / "b.db", whole)
    before = contents(tmp_path / "b.db-wal")
    error = await refused(tmp_path / "b.db")
    assert isinstance(error, Corrupt)
    assert contents(tmp_path / "b.db-wal") == before


@pytest.mark.parametrize("how", ["missing", "empty"])
async def test_a_log_without_its_file_is_not_thrown_away(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    log = tmp_path / "a.db-wal"
    log.write_bytes(b"changes")
    path.unlink()
    if how == "empty":
        path.touch()
    error = await refused(path)
    assert isinstance(error, Corrupt)
    assert f"remove {log}" in str(error)
    assert log.read_bytes() == b"changes"
    log.unlink()
    async with opened(path) as file:
        await file.check()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = await refused(tmp_path / "missing" / "a.db")
    assert isinstance(error, Unavailable)
    assert f"there is no folder {tmp_path / 'missing'}" in str(error)
    assert not (tmp_path / "missing").exists()


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").mkdir()
    error = await refused(tmp_path / "a.db")
    assert isinstance(error, Unavailable)
    assert "is a folder; name a file in it" in str(error)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no folder here that nobody may use")
async def test_a_folder_without_write_permission_is_reported() -> None:
    error = await refused(Path("/proc/a.db"))
    assert isinstance(error, ReadOnly | Unavailable)
    assert "there is no folder" not in str(error)


async def test_a_full_disk_makes_the_store_read_only_until_there_is_space(tmp_path: Path) -> None:
    def bound(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")

    async with notes(tmp_path) as file:
        await file.write(note("accepted"))
        file.read(bound)
        with pytest.raises(ReadOnly, match=r"SQLITE_FULL.*no new jobs are accepted"):
            await file.write(note("x" * 200_000))
        assert isinstance(file.read_only, ReadOnly)
        assert file.read(noted) == ["accepted"]
        with pytest.raises(ReadOnly):
            await file.write(note("x" * 200_000))
        assert file.read(lambda c: c.execute("PRAGMA max_page_count = 100000").fetchone())
        assert file.read_only is not None, "to look is not to write"
        await file.check()
        assert file.read_only is None
        await file.write(note("x" * 200_000))


async def test_a_wal_that_cannot_grow_is_checkpointed_and_restarted(
    tmp_path: Path,
) -> None:
    """A disk with space for the file, but not for a longer log, takes more after one refusal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with notes(tmp_path) as file:
        for number in range(50):
            await file.write(note(f"{number} " + "x" * 10_000))
        size = log_size(file)
        assert size > 3 * os.stat(file.path).st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(ReadOnly):
                await file.write(note("x" * 10_000))
            for number in range(50, 60):
                await file.write(note(f"{number} " + "x" * 10_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [int(text.split()[0]) for text in file.read(noted)] == list(range(60))


async def test_a_disk_that_fills_up_refuses_every_write_of_the_commit(tmp_path: Path) -> None:
    async with notes(tmp_path) as file:
        (pages,) = file.read(lambda c: c.execute("PRAGMA page_count").fetchone())
        file.read(lambda c: c.execute(f"PRAGMA max_page_count = {pages + 10}").fetchone())
        heard: list[str] = []
        file.subscribe(heard.append)

        def signals(connection: sqlite3.Connection) -> None:
            note("a")(connection)
            file.signal("ready")

        outcomes = await asyncio.gather(
            file.write(signals),
            file.write(note("x" * 200_000)),
            file.write(note("b")),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [ReadOnly] * 3
        assert len(set(map(id, outcomes))) == 3, "each is raised with a traceback of its own"
        assert file.read(noted) == []
        await file.write(note("small"))
        assert heard == []
