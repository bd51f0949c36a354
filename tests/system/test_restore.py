"""A store restored from a backup works: jobs, audit and keys, as the how-to shows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from poolhand import App
from tests.private_servers.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

BURN = """
DO $$ BEGIN FOR i IN 1..2000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$
"""
# as `sqlite3 agents.db ".backup copy.db"` does
BACK_UP = """
import sqlite3, sys
source, copy = (sqlite3.connect(name) for name in sys.argv[1:])
source.backup(copy)
"""


def make(url: str) -> App:
    app = App(url)

    @app.task(name="shout")
    async def shout(text: str) -> str:
        return text.upper()

    return app


async def submit(url: str, *texts: str) -> list[str]:
    async with make(url) as app:
        return [
            (
                await (await app.find_task("shout")).with_options(idempotency_key=text).submit(text)
            ).id
            for text in texts
        ]


async def finish(url: str, ids: list[str]) -> list[str]:
    async with make(url) as app, app.worker():
        tickets = [await app.get(id) for id in ids]
        return [await ticket for ticket in tickets if ticket is not None]


async def audit(url: str) -> list[tuple[int, str]]:
    async with make(url) as app:
        return [(line.number, line.kind) for line in await app.operator().audit(0, 100)]


def test_a_dump_is_restored_into_another_cluster(
    postgres: PostgresServer,
    own_postgres: PostgresServer,
    postgres_binaries: Path,
    database: str,
    tmp_path: Path,
) -> None:
    # The rows have transaction numbers that the new cluster has not reached yet.
    postgres.query(BURN, database)
    ids = asyncio.run(submit(database, "bees", "ants"))
    there, dump = own_postgres.database(), tmp_path / "agents.dump"
    for program, *options in (
        ("pg_dump", "--format=custom", f"--file={dump}", database),
        ("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={there}", str(dump)),
    ):
        subprocess.run([str(postgres_binaries / program), *options], check=True)
    highest = own_postgres.query("SELECT max(xid::text::bigint) FROM poolhand_audit", there)
    now = own_postgres.query("SELECT pg_current_xact_id()", there)
    assert int(highest) > int(now)
    assert asyncio.run(audit(there)) == [(1, "pool_submit"), (2, "pool_submit")]
    assert asyncio.run(submit(there, "bees", "ants")) == ids  # the keys came along
    assert asyncio.run(finish(there, ids)) == ["BEES", "ANTS"]
    numbers = [number for number, _ in asyncio.run(audit(there))]
    assert numbers == list(range(1, 7))


def test_a_file_is_backed_up_in_use_and_restored(tmp_path: Path) -> None:
    file, copy = tmp_path / "agents.db", tmp_path / "copy.db"
    url = f"sqlite:///{file}"

    async def back_up() -> tuple[list[str], list[str]]:
        async with make(url) as app:
            task = await app.find_task("shout")
            kept = [(await task.submit(text)).id for text in ("bees", "ants")]
            backup = [sys.executable, "-c", BACK_UP, str(file), str(copy)]
            await asyncio.to_thread(subprocess.run, backup, check=True)
            return kept, [(await task.submit("wasps")).id]

    kept, later = asyncio.run(back_up())
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}").unlink(missing_ok=True)
    file.write_bytes(copy.read_bytes())
    assert asyncio.run(finish(url, kept)) == ["BEES", "ANTS"]
    assert asyncio.run(finish(url, later)) == []  # submitted after the backup
