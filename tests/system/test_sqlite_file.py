"""The file of a store under real faults: killed, stopped and competing processes, broken disks."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from poolhand.errors import Unavailable
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.file import StoreFile
from tests import warm
from tests.extent import times
from tests.preload import preload
from tests.private_servers.programs import ServerMissing
from tests.servers import do_without

HERE = Path(__file__).parent
WRITER = (str(HERE / "sqlite_writer.py"),)
COUNTS = times(300, 1000)
LIMIT = 50  # seconds after which a wait gives up

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def disk() -> Iterator[str]:
    """The library that injects disk faults."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = preload(HERE / "disk.c", Path(folder))
        except ServerMissing as missing:
            do_without(missing)
        yield str(library)


def write(
    what: str, path: Path, argument: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a writer to its end."""
    environment = {**os.environ, **environment}
    return warm.run([*WRITER, what, str(path), argument], env=environment, timeout=LIMIT)


def lines(run: subprocess.CompletedProcess[str]) -> list[str]:
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@asynccontextmanager
async def writer(
    what: str, path: Path, argument: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *WRITER, what, str(path), argument, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process, text: str) -> None:
    """Wait until a writer prints that."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        assert await process.stdout.readline() == f"{text}\n".encode()


def notes_in(path: Path) -> list[int]:
    """Check a file without poolhand; return the recorded numbers."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        there = "SELECT 1 FROM sqlite_master WHERE name = 'note'"
        if connection.execute(there).fetchone() is None:
            return []
        return [number for (number,) in connection.execute("SELECT number FROM note")]


async def can_be_written(path: Path) -> None:
    file = StoreFile(path, Runtime())
    await file.open()
    await file.check()
    await file.close()


async def killed_at(folder: Path, disk: str, kind: str, number: int) -> int:
    """Kill a writer, check what it left, return how many writes it had reported."""
    path = folder / f"{kind}{number}.db"
    run = write("acknowledge", path, LD_PRELOAD=disk, **{f"DISK_KILL_{kind}": str(number)})
    assert run.returncode == -signal.SIGKILL, f"{kind} {number}: {run.stderr}"
    acknowledged = [int(line) for line in run.stdout.splitlines() if line != "open"]
    assert set(acknowledged) <= set(notes_in(path)), f"{kind} {number}"
    await can_be_written(path)
    assert set(acknowledged) <= set(notes_in(path)), f"{kind} {number}"
    return len(acknowledged)


@pytest.mark.timeout(300)
async def test_a_kill_at_any_flush_loses_nothing_that_was_acknowledged(
    tmp_path: Path, disk: str
) -> None:
    marks = tmp_path / "marks"
    assert (
        len(lines(write("acknowledge", tmp_path / "a.db", LD_PRELOAD=disk, DISK_COUNT=str(marks))))
        == 12
    )
    flushes = marks.read_text().count("f")
    assert flushes > 15, "those of 11 commits, and of working off the log"
    seen = {await killed_at(tmp_path, disk, "FLUSH", number) for number in range(1, flushes + 1)}
    assert seen == set(range(12)), "kills came before, between and after all writes"


@pytest.mark.timeout(300)
async def test_a_kill_in_the_middle_of_a_write_loses_nothing_that_was_acknowledged(
    tmp_path: Path, disk: str
) -> None:
    marks = tmp_path / "marks"
    lines(write("acknowledge", tmp_path / "a.db", LD_PRELOAD=disk, DISK_COUNT=str(marks)))
    writes = marks.read_text().count("w")
    numbers = [*range(1, 12), *range(12, writes, writes // 12), writes]
    seen = {await killed_at(tmp_path, disk, "WRITE", number) for number in numbers}
    assert len(seen) > 3, "kills came at different times"


@pytest.mark.parametrize(("fault", "code"), [("EIO", "SQLITE_IOERR"), ("FULL", "SQLITE_FULL")])
def test_a_broken_or_full_disk_is_reported_and_recovered_from(
    tmp_path: Path, disk: str, fault: str, code: str
) -> None:
    switch = str(tmp_path / "switch")
    run = write(
        "under_faults", tmp_path / "a.db", switch, LD_PRELOAD=disk, **{f"DISK_{fault}": switch}
    )
    opened, first, second, checked, kept, *after = lines(run)
    assert opened == "open"
    for line in (first, second):
        assert line.startswith("during ReadOnly ")
        assert code in line
    assert checked.startswith("check ReadOnly ")
    assert kept == "kept [1] ReadOnly"
    assert after == ["check done", "after done", "kept [1, 4] NoneType"]
    assert notes_in(tmp_path / "a.db") == [1, 4]


def test_a_file_size_limit_is_reported_and_recovered_from(tmp_path: Path) -> None:
    _, during, kept, *after = lines(write("at_a_limit", tmp_path / "a.db"))
    assert during.startswith("during ReadOnly ")
    assert kept == "kept [1] ReadOnly"
    assert after == ["after done", "kept [1, 3] NoneType"]


async def test_processes_that_write_at_once_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    file = StoreFile(path, Runtime())
    await file.open()
    told, hints = asyncio.Event(), list[str]()

    def hear(topic: str) -> None:
        hints.append(topic)
        told.set()

    file.subscribe(hear)

    async def drained(process: asyncio.subprocess.Process) -> int:
        assert process.stdout is not None
        return (await process.stdout.read()).count(b"counted")

    async def drained_all(*processes: asyncio.subprocess.Process) -> list[int]:
        return await asyncio.gather(*map(drained, processes))

    def tallies(connection: sqlite3.Connection) -> tuple[int, int]:
        (a,) = connection.execute("SELECT a FROM tally").fetchone()
        (b,) = connection.execute("SELECT b FROM tally").fetchone()
        return a, b

    async with (
        writer("count", path, str(COUNTS)) as one,
        writer("count", path, str(COUNTS)) as two,
        writer("count", path, str(COUNTS)) as three,
        writer("count", path, str(100 * COUNTS)) as killed,
    ):
        await said(killed, "open")
        for _ in range(200):
            await said(killed, "counted")
        killed.kill()
        counting = asyncio.create_task(drained_all(one, two, three, killed))
        while not counting.done():
            a, b = file.read(tallies)
            assert a == b, "a read sees one moment"
            # Notified by other processes, or over.
            hearing = asyncio.create_task(told.wait())
            either: set[asyncio.Task[list[int]] | asyncio.Task[bool]] = {counting, hearing}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            hearing.cancel()
            told.clear()
        *whole, rest = await counting
        assert whole == [COUNTS] * 3
        assert [await process.wait() for process in (one, two, three)] == [0] * 3
    a, b = file.read(tallies)
    assert a == b
    # One commit may have been made that it had no time to report.
    assert 3 * COUNTS + 200 + rest <= a <= 3 * COUNTS + 201 + rest
    assert hints, "hints came from other processes"
    await file.close()
    assert notes_in(path) == []
    assert sorted(os.listdir(tmp_path)) == ["a.db", "a.db-lock", "a.db-lock-turn"]


async def test_a_process_stopped_in_a_write_holds_others_up_for_a_bounded_time(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    await can_be_written(path)
    file = StoreFile(path, Runtime())
    await file.open()
    async with writer("stop", path) as process:
        await said(process, "open")
        _, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        file.lock_seconds = 0.3
        with pytest.raises(Unavailable, match=r"another process has held .* it is suspended"):
            await file.check()
        assert file.read(lambda c: c.execute("SELECT * FROM note").fetchall()) == []
        file.lock_seconds = LIMIT
        waiting = asyncio.create_task(file.check())
        process.send_signal(signal.SIGCONT)
        await said(process, "written")
        await waiting
    await file.close()
    assert notes_in(path) == [1]


def test_a_forked_process_is_refused_and_must_open_the_file_itself(tmp_path: Path) -> None:
    _, written, read, parent, kept = lines(write("fork", tmp_path / "a.db"))
    for line in (written, read):
        assert line.startswith("fork UsageError ")
        assert "open a store of its own after the fork" in line
    assert (parent, kept) == ("parent done", "kept [2]")
    assert notes_in(tmp_path / "a.db") == [2]


async def test_a_fork_that_outlives_its_killed_parent_blocks_no_other_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    async with writer("orphan", path) as process:
        await said(process, "open")
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT):
            child = int(await process.stdout.readline())
        try:
            async with asyncio.timeout(LIMIT):
                assert await process.wait() == -signal.SIGKILL
            os.kill(child, 0)
            await can_be_written(path)
        finally:
            os.kill(child, signal.SIGKILL)
    assert notes_in(path) == []


@pytest.mark.parametrize("there", ["nothing", "a file", "a file and its log"])
def test_a_file_in_a_folder_of_another_user_is_read_only(there: str) -> None:
    # Not in the folder of the tests, which other users cannot enter.
    folder = Path(tempfile.mkdtemp())
    path = folder / "a.db"
    try:
        if there != "nothing":
            lines(write("acknowledge", path))
            if there == "a file and its log":
                (folder / "a.db-wal").write_bytes(b"a crash left this")
            for file in folder.iterdir():
                file.chmod(0o444)
        folder.chmod(0o555)
        (opened,) = lines(write("denied", path))
        assert opened.startswith(f"open ReadOnly {path}: ")
        assert "allow this user to write to the f" in opened
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
