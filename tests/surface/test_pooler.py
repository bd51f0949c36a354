"""PostgreSQL behind a real PgBouncer that lends connections for one transaction at a time."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from poolhand import App
from poolhand.testing import PostgresServer
from poolhand.testing.servers import PrivateFolder, free_port, wait_until
from tests.surface.test_cli import Desk

pytestmark = pytest.mark.slow

SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server} user=poolhand
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
"""


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[str]:
    """Give the URL of a new database by way of a pooler with two connections for everybody."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("needs PgBouncer; install it with: apt-get install pgbouncer")
    database, port = postgres.database(), free_port()
    folder = PrivateFolder("poolhand-pooler-", "pgbouncer")
    settings = folder.path / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(server=postgres.port, port=port), encoding="utf-8")
    with (folder.path / "log").open("ab") as log:
        started = folder.start([Path(program), settings], log)
    try:
        wait_until("PgBouncer answers", lambda: answers(port))
        yield database.replace(str(postgres.port), str(port)) + "?pooler=transaction"
    finally:
        folder.clear()
        started.wait()
        postgres.drop(database)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("listens", [False, True], ids=["deaf", "listens"])
def test_many_work_side_by_side_behind_a_pooler(
    postgres: PostgresServer, pooler: str, listens: bool
) -> None:
    name = pooler.partition("?")[0].rpartition("/")[2]
    past = quote(postgres.url.replace("/poolhand", f"/{name}"), safe="")
    url = f"{pooler}&listen={past}" if listens else pooler
    done: list[int] = []

    def crew() -> tuple[App, Any, Any]:
        app = App(url)
        app.pool("narrow", max_concurrent=3)

        @app.task(name="free")
        async def free(number: int) -> None:
            done.append(number)

        @app.task(pool="narrow", name="capped")
        async def capped(number: int) -> None:
            done.append(number)

        return app, free, capped

    async def work() -> None:
        (one, free, _), (two, _, capped) = crew(), crew()
        async with one, two, one.worker(8), two.worker(8):
            tickets = await asyncio.gather(
                *(free.submit(n) for n in range(50)), *(capped.submit(n) for n in range(50, 100))
            )
            for ticket in tickets:
                await ticket
            async with one.transaction() as tx:
                await tx.execute("CREATE TABLE mine (x int)")
                id = await free.submit_in(tx, 100)
            ticket = await two.get(id)
            assert ticket is not None
            await ticket
            assert await two.ready()

    asyncio.run(work())
    assert sorted(done) == list(range(101))


def test_every_command_works_behind_a_pooler(pooler: str) -> None:
    desk = Desk(pooler)
    desk.run("migrate")
    id = desk.dead(pool="chat")
    desk.run("dead", "retry", id)
    assert len(desk.json("jobs", "list")["jobs"]) == 2
    assert desk.json("pools", "pause", "chat")["paused"]
    assert desk.json("audit", "--kind", "pool_rerun")["lines"]
    checks = {one["check"]: one["level"] for one in desk.json("doctor")["findings"]}
    assert "WRONG" not in checks.values()
    assert checks["store"] == "ok"
