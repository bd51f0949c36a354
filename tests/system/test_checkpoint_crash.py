"""A process that dies during a checkpoint: other processes find the file intact.

A checkpoint copies pages from the log to the file. A kill leaves the first pages copied, in the
order of their numbers; a crash of the machine may leave any of them. Until it is done, the file
alone is a mixture of two moments, and only file and log together are consistent.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.preload import preload
from tests.private_servers.programs import ServerMissing
from tests.servers import do_without

HERE = Path(__file__).parent
MEMORY = "/dev/shm"  # noqa: S108
CREW = str(HERE / "checkpoint_crew.py")
KILLS = int(os.environ.get("FAULT_KILLS", "20"))
MANY = 40  # tables of a user
FIRST, CLOCK, OLD_CLOCK, TABLES, OTHERS = "first", "clock", "old-clock", "tables", "others"
HEAD, FRAME_HEAD, PAGE = 32, 24, 4096

pytestmark = pytest.mark.slow


class Process:
    """A process of the crew that answers every line with a line."""

    def __init__(self, role: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, CREW, role],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert not isinstance(answer, dict), answer["error"]
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Process, Process]]:
    """Two processes: one that always has the file open, one that opens it later."""
    both = Process("crew"), Process("crew")
    yield both
    for process in both:
        process.end()


@pytest.fixture
def early(processes: tuple[Process, Process]) -> Iterator[Process]:
    yield processes[0]
    processes[0]("close")


@pytest.fixture
def late(processes: tuple[Process, Process]) -> Iterator[Process]:
    yield processes[1]
    processes[1]("close")


@pytest.fixture(scope="module")
def victims() -> Iterator[Process]:
    """A process that forks others, which the disk kills during a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = preload(HERE / "disk.c", Path(folder))
        except ServerMissing as missing:
            do_without(missing)
        process = Process("victims", LD_PRELOAD=str(library))
        yield process
        process.end()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if there is one: these deaths do not need a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


def logged(path: Path) -> dict[int, bytes]:
    """Return the last committed content of every page in the log: what a checkpoint writes."""
    log = Path(f"{path}-wal").read_bytes()
    pages: dict[int, bytes] = {}
    for at in range(HEAD, len(log) - PAGE, FRAME_HEAD + PAGE):
        if log[at + 8 : at + 16] == log[16:24]:
            number = int.from_bytes(log[at : at + 4])
            pages[number] = log[at + FRAME_HEAD : at + FRAME_HEAD + PAGE]
    return pages


def copy_pages(path: Path, pages: dict[int, bytes]) -> None:
    """Do a part of a checkpoint and stop; this process does not have the file open otherwise."""
    with open(path, "r+b") as file:
        for number, content in pages.items():
            file.seek((number - 1) * PAGE)
            file.write(content)


def clock_page(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        found = "SELECT rootpage FROM sqlite_master WHERE name = 'poolhand_clock'"
        return int(other.execute(found).fetchone()[0])


def schema_pages(path: Path) -> set[int]:
    """Return the pages of the schema table, except page 1."""
    with closing(sqlite3.connect(path)) as other:
        found = "SELECT pageno FROM dbstat WHERE name = 'sqlite_schema' AND pageno > 1"
        return {number for (number,) in other.execute(found)}


def make_file(path: Path, process: Process) -> Path:
    """Make a store with user tables that read like a clock: VACUUM puts one in its place."""
    process("open", path)
    process("put", "first")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("BEGIN")
        for number in range(MANY):
            table = f"mine_{number}"
            other.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, a TEXT, b REAL, c REAL)")
            other.execute(f"INSERT INTO {table} VALUES (1, 'a', 0.0, {number % 2} * 1e300)")  # noqa: S608
        other.execute("COMMIT")
    process("close")
    return path


def grow(path: Path) -> None:
    """Change nothing besides what stores write."""


def alter(path: Path) -> None:
    """Change the schema table, as a migration or a user does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY, text TEXT)")
        other.execute("CREATE INDEX by_text ON mine (text)")


def vacuum(path: Path) -> None:
    """Move every table to other pages: the page of the clock then holds something else."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("VACUUM")


def chains(kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """Return orders of kinds of pages: every set of kinds is the beginning of one of them."""

    def beginnings(order: tuple[str, ...]) -> set[frozenset[str]]:
        return {frozenset(order[:size]) for size in range(1, len(order))}

    orders = list(permutations(kinds))
    left = set().union(*map(beginnings, orders))
    found = []
    while left:
        found.append(max(orders, key=lambda order: len(left & beginnings(order))))
        left -= beginnings(found[-1])
    return found


def expect_whole(path: Path, expected: set[str], *processes: Process) -> None:
    """Check that every document is there, for stores that are open and for later ones."""
    for process in processes:
        for keys in process("keys"):
            assert set(keys) >= expected
    for process in processes:
        process("close")
    processes[0]("open", path)
    (keys,) = processes[0]("keys")
    assert set(keys) >= expected
    processes[0]("close")
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert not [name for name in os.listdir(path.parent) if "aside" in name]


def by_kind(path: Path, old_clock: int) -> dict[str, dict[int, bytes]]:
    """Return the pages in the log, by their past and present content."""
    kinds = dict.fromkeys(schema_pages(path), TABLES)
    kinds |= {1: FIRST, old_clock: OLD_CLOCK, clock_page(path): CLOCK}
    found: dict[str, dict[int, bytes]] = {}
    for number, content in logged(path).items():
        found.setdefault(kinds.get(number, OTHERS), {})[number] = content
    return found


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (grow, (FIRST, CLOCK, OTHERS)),
        (alter, (FIRST, CLOCK, TABLES, OTHERS)),
        (vacuum, (FIRST, CLOCK, TABLES, OTHERS, OLD_CLOCK)),
    ],
)
def test_all_processes_continue_whichever_pages_an_interrupted_checkpoint_copied(
    folder: Path,
    early: Process,
    late: Process,
    change: Callable[[Path], None],
    kinds: Sequence[str],
) -> None:
    template = make_file(folder / "template.db", late)
    for number, order in enumerate(chains(kinds)):
        path = folder / str(number) / "a.db"
        path.parent.mkdir()
        shutil.copyfile(template, path)
        early("open", path)
        expected = {"first-0"}.union(*(early("put", f"second{more}") for more in range(4)))
        old_clock = clock_page(path)
        change(path)
        early("open", path)
        expected |= {*early("put", "third")}
        pages = by_kind(path, old_clock)
        assert pages.keys() == set(kinds)
        for kind in order:
            copy_pages(path, pages[kind])
            late("open", path)
            expected |= {*early("put", f"early-{kind}"), *late("put", f"late-{kind}")}
        expect_whole(path, expected, early, late)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_checkpoint_interrupted_after_any_page_is_not_taken_for_a_replaced_file(
    folder: Path, early: Process, late: Process, seed: int | None
) -> None:
    path = folder / "a.db"
    make_file(path, late)
    early("open", path)
    expected = {"first-0", *early("put", "second")}
    vacuum(path)
    expected |= {*early("put", "third")}
    pages = sorted(logged(path).items())
    if seed is not None:
        random.Random(seed).shuffle(pages)
    late("open", path)
    for number, (page, content) in enumerate(pages):
        copy_pages(path, {page: content})
        expected |= {*early("put", f"early{number}"), *late("put", f"late{number}")}
    expect_whole(path, expected, early, late)


@pytest.mark.timeout(600)
def test_a_process_killed_in_a_checkpoint_is_not_taken_for_a_replaced_file(
    folder: Path, early: Process, late: Process, victims: Process
) -> None:
    path = folder / "a.db"
    early("open", path)
    expected = {*early("put", "first")}
    for page in range(1, KILLS + 1):
        expected |= set(victims(path, page))
        late("open", path)
        expected |= {*early("put", f"early{page}"), *late("put", f"late{page}")}
        if page % 5 == 0:
            # Its own checkpoints are complete, and the next ones move all tables.
            late("close")
            vacuum(path)
    expect_whole(path, expected, early, late)


def test_a_file_whose_only_process_was_killed_in_a_checkpoint_can_be_opened(
    folder: Path, late: Process, victims: Process
) -> None:
    for page in range(1, 9):
        path = folder / f"{page}.db"
        expected = set(victims(path, page))
        late("open", path)
        late("open", path)
        expected |= {*late("put", "late")}
        expect_whole(path, expected, late)
