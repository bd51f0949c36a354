"""A process that writes to the file of a store and prints what was committed.

python sqlite_writer.py <what> <path> [argument]
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable

from poolhand import PoolhandError
from poolhand.runtime import Runtime
from poolhand.stores.sql import migrations
from poolhand.stores.sqlite import place as wal
from poolhand.stores.sqlite.file import StoreFile

LARGE = 1200 * 4096  # bytes: more pages than the log may grow to


def say(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS tally (a INTEGER, b INTEGER)")
    connection.execute("CREATE TABLE IF NOT EXISTS note (number INTEGER, text TEXT)")
    if connection.execute("SELECT 1 FROM tally").fetchone() is None:
        connection.execute("INSERT INTO tally VALUES (0, 0)")


def note(number: int, size: int = 10) -> Callable[[sqlite3.Connection], None]:
    def op(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO note VALUES (?, ?)", (number, "x" * size))

    return op


def noted(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT number FROM note ORDER BY number")]


async def acknowledge(file: StoreFile, _: str) -> None:
    """Write a little, much, and a little again; print each number when it is committed."""
    for number in range(1, 12):
        await file.write(note(number, LARGE if number in (4, 8) else 10))
        say(number)


async def count(file: StoreFile, groups: str) -> None:
    """Add 1 to two tallies many times, by reading and writing them, and notify all processes."""

    def op(connection: sqlite3.Connection) -> None:
        (a,) = connection.execute("SELECT a FROM tally").fetchone()
        connection.execute("UPDATE tally SET a = ?", (a + 1,))
        file.signal("counted")
        (b,) = connection.execute("SELECT b FROM tally").fetchone()
        connection.execute("UPDATE tally SET b = ?", (b + 1,))

    for _ in range(int(groups)):
        await file.write(op)
        say("counted")


async def stop(file: StoreFile, _: str) -> None:
    """Stop in the middle of a write."""

    def op(connection: sqlite3.Connection) -> None:
        note(1)(connection)
        os.kill(os.getpid(), signal.SIGSTOP)

    await file.write(op)
    say("written")


async def attempt(name: str, act: Awaitable[object]) -> None:
    """Print how an action ended."""
    try:
        await act
    except PoolhandError as error:
        say(name, type(error).__name__, error)
    else:
        say(name, "done")


async def under_faults(file: StoreFile, fault: str) -> None:
    """Write before, during and after a fault, which a file of that name turns on."""
    await file.write(note(1))
    os.close(os.open(fault, os.O_CREAT))
    acts = (file.write(note(2)), file.write(note(3)))
    await asyncio.gather(*[attempt("during", act) for act in acts])
    await attempt("check", file.check())
    say("kept", file.read(noted), type(file.read_only).__name__)
    os.unlink(fault)
    await attempt("check", file.check())
    await attempt("after", file.write(note(4)))
    say("kept", file.read(noted), type(file.read_only).__name__)


async def at_a_limit(file: StoreFile, _: str) -> None:
    """Write more than a process may write to one file, then again with the limit lifted."""
    await file.write(note(1))
    least = LARGE // 2
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    await attempt("during", file.write(note(2, LARGE)))
    say("kept", file.read(noted), type(file.read_only).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    await attempt("after", file.write(note(3, LARGE)))
    say("kept", file.read(noted), type(file.read_only).__name__)


async def fork(file: StoreFile, _: str) -> None:
    """Use the file in a fork, then in the process that opened it."""
    child = os.fork()
    if child == 0:
        await attempt("fork", file.write(note(1)))
        try:
            file.read(noted)
        except PoolhandError as error:
            say("fork", type(error).__name__, error)
        await file.close()
        os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    await attempt("parent", file.write(note(2)))
    say("kept", file.read(noted))


async def orphan(file: StoreFile, _: str) -> None:
    """Leave a fork that was made in the middle of a write, and die in it."""

    def op(connection: sqlite3.Connection) -> None:
        note(1)(connection)
        child = os.fork()
        if child == 0:
            os.close(1)
            while True:
                signal.pause()
        say(child)
        os.kill(os.getpid(), signal.SIGKILL)

    await file.write(op)


async def denied(path: str) -> None:
    """Open a file as a user who may not write there."""
    # Read first: the other user may not be allowed to read them.
    migrations.steps()
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    await attempt("open", StoreFile(path, Runtime()).open())


async def main(what: str, path: str, argument: str = "") -> None:
    if what == "denied":
        await denied(path)
        return
    if what == "count":
        # Checkpoint often: a checkpoint that meets a commit could damage the file.
        wal.WORTH_WHILE = 20
    file = StoreFile(path, Runtime())
    await file.open()
    await file.write(make_tables)
    say("open")
    acts = (acknowledge, count, stop, under_faults, at_a_limit, fork, orphan)
    await {act.__name__: act for act in acts}[what](file, argument)
    await file.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
