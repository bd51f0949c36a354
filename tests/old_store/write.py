"""Writes the old stores; run with the version of poolhand whose stores they are to be.

`PYTHONPATH=. OLD/.venv/bin/python -m tests.old_store.write`

Four processes work on each store, one after the other: those of the hosts alpha, beta and gamma are
cut off, that of delta comes to its orderly end. The README beside this says more.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any

import poolhand
from poolhand.settings import KeyRing
from tests.old_store.agents import LONG, SECRET, Somewhere, Tasks, World, elsewhere, make_app
from tests.old_store.agents import make_signed_app as make_signed
from tests.private_servers.postgres_server import PostgresServer, find_postgres

HERE = Path(__file__).parent
PATIENCE = 30.0

Phase = Callable[[str, Path], Coroutine[Any, Any, None]]


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.to_thread(Event().wait, 0.05)


async def reached(ticket: Any, *statuses: str) -> None:
    async def there() -> bool:
        return (await ticket.refresh()).status.value in statuses

    await until(there)


async def to_the_end(url: str, ledger: Path) -> None:
    """Work normally: jobs in every stage, none of which runs."""
    app, tasks = make_app(url, World(ledger, mended=False), Somewhere("delta"))
    async with app, app.worker():
        await (await call(tasks, "work", "done", idempotency_key="k-done"))
        await (await call(tasks, "tells", "told"))
        await reached(await call(tasks, "fails", "dead"), "failed")
        await reached(await call(tasks, "fails", "dead-keyed", idempotency_key="k-dead"), "failed")
        for name, label in (("flaky", "again"), ("snoozes", "asleep")):
            await reached(await call(tasks, name, label), "scheduled")
        later = datetime.now(UTC) + timedelta(seconds=LONG)
        await reached(await call(tasks, "work", "expired", run_at=later, expires=0.2), "expired")
        cancelled = await call(tasks, "work", "cancelled", delay=LONG)
        await cancelled.cancel()
        await app.operator().pause("ring", "ann")
        rejected = await call(tasks, "work_ring", "rejected")
        await call(tasks, "work_ring", "last")
        await reached(rejected, "rejected")


async def call(tasks: Tasks, name: str, label: str, **options: Any) -> Any:
    """Submit a call; the user of a job is the label it is found by."""
    return await tasks[name].with_options(user=label, **options).submit(label)


async def cut_in_jobs(url: str, ledger: Path) -> None:
    """Leave jobs that ran on a machine that is gone, and jobs that wait for them."""
    hangs = {
        *("work alpha", "second half", "pay o-begun", "bought o-paid", "chat third"),
        *("tells half", "work_keyed holds"),
    }
    app, tasks = make_app(url, World(ledger, hangs, mended=False), Somewhere("alpha"))
    await app.worker().__aenter__()
    # The tools first: this version could not call one after a document was deleted from the store.
    await (await call(tasks, "buys", "o-done"))
    await reached(await call(tasks, "buys_later", "o-later"), "scheduled")
    await call(tasks, "buys", "o-begun")
    await call(tasks, "buys", "o-paid")
    chat = tasks["chat"].session("s-1", tenant="acme", user="ann")
    for message in ("first", "second", "third", "fourth"):
        await chat.submit(message)
    await call(tasks, "work", "alpha")
    await call(tasks, "crawl", "half")
    half = await call(tasks, "tells", "half")
    for label in ("holds", "behind"):
        await call(tasks, "work_keyed", label, key="one")
    # A process of another machine: processes of one machine see that no process has this pid.
    stranger, _ = make_app(url, World(ledger), Somewhere("delta"))
    async with stranger:
        unknown = await call(elsewhere(stranger, World(ledger)), "elsewhere", "unknown")
        await reached(unknown, "scheduled")

    async def all_hang() -> bool:
        return hangs <= set(World(ledger).lines())

    await until(all_hang)
    async for event in half.events():
        if event.kind == "chunk":
            break


async def cut_elsewhere(url: str, ledger: Path) -> None:
    """Leave a job that counts as running on another machine."""
    app, tasks = make_app(url, World(ledger, {"work beta"}, mended=False), Somewhere("beta"))
    await app.worker(pools=["plain"]).__aenter__()
    await call(tasks, "work", "beta")

    async def hangs() -> bool:
        return "work beta" in World(ledger).lines()

    await until(hangs)


async def cut_while_it_waits(url: str, ledger: Path) -> None:
    """Leave jobs that have not begun, and a submitter that waits for a place."""
    app, tasks = make_app(url, World(ledger), Somewhere("gamma"))
    await call(tasks, "work", "queued", priority=3)
    await call(tasks, "work", "queued-keyed", idempotency_key="k-queued")
    await call(tasks, "work", "delayed", delay=LONG)
    await tasks["chat"].session("s-2").submit("alone")
    await call(tasks, "work_full", "placed")
    ring = KeyRing(SECRET, current="k1")
    signed, signs = make_signed(url, World(ledger), Somewhere("delta"), ring)
    async with signed:
        await call(signs, "signs", "signed")
    parks = asyncio.create_task(call(tasks, "work_full", "parked"))
    connection = await app.core.connection()

    async def is_parked() -> bool:
        (row,) = await connection.thread.ask(lambda: connection.store.pools(["full"]))
        return row.blocked_submitters == 1

    await until(is_parked)
    assert not parks.done()


def play(phase: Phase, url: str, ledger: Path, in_order: bool) -> None:
    asyncio.run(phase(url, ledger)) if in_order else asyncio.run(_cut(phase, url, ledger))


async def _cut(phase: Phase, url: str, ledger: Path) -> None:
    await phase(url, ledger)
    os._exit(0)


def write(url: str, folder: Path) -> None:
    """Have the four processes work on a store."""
    phases: tuple[Phase, ...] = (cut_in_jobs, cut_elsewhere, to_the_end, cut_while_it_waits)
    for phase in phases:
        args = (phase, url, folder / f"{phase.__name__}.txt", phase is to_the_end)
        process = get_context("spawn").Process(target=play, args=args)
        process.start()
        process.join()
        assert process.exitcode == 0, phase.__name__


def packed(data: bytes) -> bytes:
    """Compress the written store, without the paths of this machine in tracebacks."""
    for folder in (HERE.parents[1], Path(poolhand.__file__).parents[1]):
        path = str(folder).encode()
        hidden = b"/" + b"." * (len(path) - 1)  # as long: the length is stored before it
        data = data.replace(path, hidden).replace(path.hex().encode(), hidden.hex().encode())
    return gzip.compress(data, mtime=0)


def write_sqlite(folder: Path) -> None:
    write(f"sqlite:///{folder / 'jobs.db'}", folder)
    with sqlite3.connect(folder / "jobs.db") as connection:
        connection.execute("VACUUM INTO ?", (str(folder / "packed.db"),))
    (HERE / "sqlite.db.gz").write_bytes(packed((folder / "packed.db").read_bytes()))


def write_postgres(folder: Path) -> None:
    with PostgresServer(durable=False) as server:
        write(server.url, folder)
        dump = find_postgres(None)["postgres"].parent / "pg_dump"
        options = ("--inserts", "--no-owner", "--no-privileges", "--no-comments")
        done = subprocess.run(
            [dump, *options, server.url], capture_output=True, text=True, check=True
        )
    # Commands that only psql knows, and settings that not every server has.
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("\\", "SET ", "--"))]
    text = "\n".join(line for line in lines if line)
    (HERE / "postgres.sql.gz").write_bytes(packed(text.encode()))


if __name__ == "__main__":
    for make in (write_sqlite, write_postgres):
        with tempfile.TemporaryDirectory() as name:
            make(Path(name))
