"""Empty databases for samples on one server, and the CPU time of that server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from durable_cases import MICRO
from private_server import PostgresServer

TICK = 1 / os.sysconf("SC_CLK_TCK")
SETTINGS = ("server_version", "fsync", "synchronous_commit", "shared_buffers")


@contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database, which is dropped with the block."""
    url = server.database()
    try:
        yield url
    finally:
        server.drop(url)


def beside(url: str, name: str) -> str:
    """Another database of the same server."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def settings_of(server: PostgresServer) -> str:
    """The version, and the settings that decide whether a commit is durable."""
    version, *values = (server.query(f"SHOW {name}") for name in SETTINGS)
    told = (f"{name}={value}" for name, value in zip(SETTINGS[1:], values, strict=True))
    return f"{version}; {', '.join(told)}"


class Served:
    """Seconds of CPU of all processes of a server; None where they cannot be read."""

    def __init__(self) -> None:
        self.cpu: float | None = None

    def per(self, count: int) -> dict[str, float]:
        """Return it in µs per job, for that many jobs."""
        return {} if self.cpu is None else {"server_cpu": self.cpu * MICRO / count}


@asynccontextmanager
async def server_cpu(url: str) -> AsyncIterator[Served]:
    """The CPU of a server on this machine inside a block; only on Linux."""
    served, main = Served(), await _main_process(url)
    before = None if main is None else _spent(main)
    yield served
    if main is not None and before is not None:
        served.cpu = _spent(main) - before


async def _main_process(url: str) -> int | None:
    connection = await asyncpg.connect(url)
    try:
        mine = _stat(await connection.fetchval("SELECT pg_backend_pid()"))
    finally:
        await connection.close()
    # A pid of another machine may belong to any process here.
    return mine.parent if mine is not None and mine.name.startswith("postgres") else None


@dataclass(frozen=True, slots=True)
class Stat:
    """The kernel's record of a process: its own ticks and those of its ended children."""

    name: str
    parent: int
    ticks: int


def _stat(process: int) -> Stat | None:
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    words = text[text.rindex(")") + 2 :].split()
    return Stat(name, int(words[1]), sum(map(int, words[11:15])))


def _spent(main: int) -> float:
    """Seconds of the server's first process and of all its children."""
    processes = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
    stats = {process: found for process in processes if (found := _stat(process))}
    of_server = [one for process, one in stats.items() if main in (process, one.parent)]
    return sum(one.ticks for one in of_server) * TICK
