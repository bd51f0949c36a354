"""PostgreSQL behind a real PgBouncer that lends connections for one transaction at a time."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from poolhand import App
from tests.private_servers.postgres_server import PostgresServer
from tests.surface.test_cli import Desk

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("listens", [False, True], ids=["deaf", "listens"])
def test_many_workers_run_concurrently_through_a_pooler(
    postgres: PostgresServer, pooled: str, listens: bool
) -> None:
    url = f"{pooled}&listen={quote(postgres.url, safe='')}" if listens else pooled
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
                await tx.execute("CREATE TEMPORARY TABLE mine (x int) ON COMMIT DROP")
                id = await free.submit_in(tx, 100)
            ticket = await two.get(id)
            assert ticket is not None
            await ticket
            assert await two.ready()

    asyncio.run(work())
    assert sorted(done) == list(range(101))


def test_every_command_works_behind_a_pooler(pooled: str) -> None:
    desk = Desk(pooled)
    desk.run("migrate")
    id = desk.dead(pool="chat")
    desk.run("dead", "retry", id)
    assert len(desk.json("jobs", "list")["jobs"]) == 2
    assert desk.json("pools", "pause", "chat")["paused"]
    assert desk.json("audit", "--kind", "pool_rerun")["lines"]
    checks = {one["check"]: one["level"] for one in desk.json("doctor")["findings"]}
    assert "WRONG" not in checks.values()
    assert checks["store"] == "ok"
