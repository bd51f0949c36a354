"""Processes on one SQLite file that is checkpointed; they obey lines on their input.

python checkpoint_crew.py crew      has any number of stores open on the file
    open <path>         opens one more store
    put <key>           writes a document through every open store; answers with their keys
    keys                answers with the keys that each open store reads
    close               closes every store
python checkpoint_crew.py victims   forks processes that die in a checkpoint
    <path> <page>       one that writes until the disk kills it in that page; answers with its keys

Every line is answered with a line of JSON; what a store refused is answered with {"error": …}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from poolhand import PoolhandError
from poolhand.contract import Put
from poolhand.runtime import Runtime
from poolhand.stores.sqlite import place as wal
from poolhand.stores.sqlite.store import SqliteStore

SIZE = 1000  # bytes of a document: the file grows, so that page 1 is written too
SPREAD = 50  # different keys of a process that is killed: it also writes documents anew
OFTEN = 10  # pages of the log after which such a process makes a checkpoint
MOST = 10_000  # documents


def answer(what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


class Crew:
    """The stores that one process has open."""

    def __init__(self) -> None:
        self._stores: list[SqliteStore] = []

    async def open(self, path: str) -> int:
        store = SqliteStore(path, Runtime())
        await store.open()
        self._stores.append(store)
        return len(self._stores)

    async def put(self, name: str) -> list[str]:
        keys = [f"{name}-{number}" for number in range(len(self._stores))]
        for key, store in zip(keys, self._stores, strict=True):
            assert await store.put([Put(key, os.urandom(SIZE))])
        return keys

    async def keys(self) -> list[list[str]]:
        return [await store.scan("", limit=MOST) for store in self._stores]

    async def close(self) -> None:
        while self._stores:
            await self._stores.pop().close()


async def crew() -> None:
    stores = Crew()
    for line in sys.stdin:
        act, *arguments = line.split()
        try:
            answer(await getattr(stores, act)(*arguments))
        except PoolhandError as error:
            answer({"error": f"{type(error).__name__}: {error}"})


async def write_until_killed(path: str, name: str, acknowledged: int) -> None:
    store = SqliteStore(path, Runtime())
    await store.open()
    for number in range(MOST):
        key = f"{name}-{number % SPREAD}"
        assert await store.put([Put(key, os.urandom(SIZE))])
        os.write(acknowledged, f"{key}\n".encode())


def victim(path: str, page: str) -> list[str]:
    """Fork a process that is killed in a checkpoint; return the keys it had acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ["DISK_KILL_PAGE"] = page
        wal.WORTH_WHILE = OFTEN
        asyncio.run(write_until_killed(path, f"killed{page}", writing))
        os._exit(1)
    os.close(writing)
    with open(reading, encoding="utf-8") as acknowledged:
        keys = acknowledged.read().split()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it has ended by itself"
    return keys


def victims() -> None:
    for line in sys.stdin:
        answer(victim(*line.split()))


if __name__ == "__main__":
    if sys.argv[1] == "crew":
        asyncio.run(crew())
    else:
        victims()
