"""Places of samples: each has a folder or a database of its own."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from durable_sections import POSTGRES, SQLITE
from machine import installed


@dataclass(frozen=True, slots=True)
class Ground:
    """Makes places for samples; the facts describe the environment for the reader."""

    place: Callable[[], AbstractContextManager[str]]
    facts: dict[str, str]


@contextmanager
def files(root: str) -> Iterator[Ground]:
    """One folder per sample."""
    facts = {
        "SQLite": f"{sqlite3.sqlite_version}; WAL, synchronous=FULL for all",
        "disk": disk(root),
        "peers": versions("huey", "persist-queue"),
    }
    yield Ground(partial(tempfile.TemporaryDirectory, dir=root), facts)


@contextmanager
def server(root: str) -> Iterator[Ground]:
    """Databases of one server in the folder of temporary files; `root` is not used."""
    from postgres_server import database, settings_of
    from private_server import PostgresServer

    with PostgresServer() as running:
        facts = {
            "PostgreSQL": settings_of(running),
            "disk": disk(str(running.folder)),
            "client": versions("asyncpg"),
            "peers": versions("pgqueuer", "procrastinate"),
        }
        yield Ground(partial(database, running), facts)


GROUNDS = {SQLITE: files, POSTGRES: server}


def versions(*names: str) -> str:
    return ", ".join(f"{name} {installed(name)}" for name in names)


def disk(folder: str) -> str:
    """The type of the file system of a folder."""
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        _, where, kind, *_ = line.split(" ")
        if Path(folder).is_relative_to(where) and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]
