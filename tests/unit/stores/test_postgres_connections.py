"""Connections to PostgreSQL: broken, scarce, or abandoned in the middle of a statement."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from poolhand.errors import StoreError, Unavailable, UsageError
from poolhand.stores.postgres import connections as postgres_link
from poolhand.stores.postgres.connections import ServerConnection, address_of
from poolhand.stores.postgres.tables import RawConnection
from poolhand.stores.postgres.transaction import PATIENCE
from tests.faults.proxy import Proxy
from tests.private_servers.postgres_server import PostgresServer

LIMIT = 20  # seconds after which a wait gives up
IN_LINE = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
PASSWORD = "hunter2-of-the-test"  # noqa: S105


@asynccontextmanager
async def opened(url: str, connections: int = 4) -> AsyncIterator[ServerConnection]:
    mark = "&" if "?" in url else "?"
    link = ServerConnection(address_of(f"{url}{mark}connections={connections}"))
    link.open()
    try:
        yield link
    finally:
        await link.close()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", postgres.port) as one:
        yield one


class Outside:
    """Observes a server from a connection of its own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, text: str, *values: object) -> Any:
        return await self._connection.fetchval(text, *values)

    async def count(self) -> int:
        """Count the connections to the database, without this one."""
        found: int = await self.ask(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return found

    async def wait_for(self, count: int) -> None:
        """Wait until there are so many connections."""
        async with asyncio.timeout(LIMIT):
            while await self.count() != count:
                pass

    async def wait_until_two_stand_in_line(self) -> None:
        async with asyncio.timeout(LIMIT):
            while await self.ask(IN_LINE) != 2:
                assert await self.count() <= 2


@pytest.fixture
async def outside(database: str) -> AsyncIterator[Outside]:
    connection: Any = await asyncpg.connect(database)
    yield Outside(connection)
    await connection.close()


async def pid(link: ServerConnection) -> int:
    async with link.lend() as connection:
        return await pid_of(connection)


async def pid_of(connection: RawConnection) -> int:
    number: int = (await connection.fetch("SELECT pg_backend_pid()"))[0][0]
    return number


def age(link: ServerConnection) -> None:
    """Make all idle connections count as idle for long."""
    link._idle = [(connection, 0.0) for connection, _ in link._idle]


async def test_a_connection_is_reused(database: str) -> None:
    async with opened(database) as link:
        assert await pid(link) == await pid(link)


async def test_at_most_the_configured_number_of_connections_is_lent(
    database: str, outside: Outside
) -> None:
    async with opened(database, connections=3) as link, AsyncExitStack() as lent:
        for _ in range(3):
            await lent.enter_async_context(link.lend())
        fourth = asyncio.create_task(pid(link))
        await pid_of_others(outside)
        assert not fourth.done()
        assert await outside.count() == 3
        await lent.aclose()
        assert await fourth > 0
        assert await outside.count() == 3


async def pid_of_others(outside: Outside) -> None:
    """Let time pass in which a connection could have been made."""
    for _ in range(20):
        await outside.count()


async def test_an_idle_connection_ended_by_the_server_is_replaced_silently(
    database: str, outside: Outside
) -> None:
    async with opened(database) as link:
        first = await pid(link)
        await outside.ask("SELECT pg_terminate_backend($1)", first)
        await outside.wait_for(0)
        age(link)
        assert await pid(link) != first


@pytest.mark.slow
async def test_a_server_restart_is_invisible_to_later_callers(
    own_postgres: PostgresServer,
) -> None:
    async with opened(own_postgres.url) as link:
        async with link.lend(), link.lend(), link.lend():
            pass
        await asyncio.to_thread(own_postgres.restart)
        for _ in range(3):
            assert await pid(link) > 0


@pytest.mark.slow
async def test_connections_that_died_without_a_word_while_idle_are_replaced(
    database: str, proxy: Proxy
) -> None:
    async with opened(proxy.through(database)) as link:
        async with link.lend(), link.lend():
            pass
        proxy.half_open()
        age(link)
        async with asyncio.timeout(LIMIT):
            assert await pid(link) > 0
        proxy.mend()


async def test_a_cancelled_caller_leaves_nothing_on_the_server(
    database: str, outside: Outside
) -> None:
    async with opened(database, connections=2) as link:
        await outside.ask("SELECT pg_advisory_lock(7)")
        for _ in range(10):
            waiting = [asyncio.create_task(stand_in_line(link)) for _ in range(5)]
            await outside.wait_until_two_stand_in_line()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert await outside.count() <= 2
        await outside.ask("SELECT pg_advisory_unlock(7)")
        assert await asyncio.gather(*[stand_in_line(link) for _ in range(4)]) == [None] * 4


async def stand_in_line(link: ServerConnection) -> None:
    async with link.lend() as connection:
        await connection.execute("BEGIN")
        await connection.fetch("SELECT pg_advisory_xact_lock(7)")
        await connection.execute("ROLLBACK")


@pytest.mark.slow
async def test_a_thousand_cancelled_callers_leave_no_task_no_file_and_no_connection(
    database: str, outside: Outside
) -> None:
    async with opened(database, connections=4) as link:
        await pid(link)
        seed, before = random.Random(1), len(asyncio.all_tasks())
        for _ in range(100):
            callers = [asyncio.create_task(stand_in_line(link)) for _ in range(10)]
            for caller in callers:
                for _ in range(seed.randrange(6)):
                    await outside.ask("SELECT 1")
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        assert await asyncio.gather(*[stand_in_line(link) for _ in range(8)]) == [None] * 8
        for _ in range(1000):
            # The rest of a cancelled statement ends by itself.
            if len(asyncio.all_tasks()) == before:
                break
            await outside.ask("SELECT 1")
        assert len(asyncio.all_tasks()) == before
        await outside.wait_for(len(link._idle))
        assert len(link._idle) <= 4
    await outside.wait_for(0)


async def test_a_connection_left_in_a_transaction_is_not_lent_again(
    database: str, outside: Outside
) -> None:
    async with opened(database, connections=1) as link:
        first = await pid(link)
        async with link.lend() as connection:
            await connection.execute("BEGIN")
        assert await pid(link) != first
        assert await outside.count() == 1


async def test_an_error_in_a_statement_does_not_cost_the_connection(database: str) -> None:
    async with opened(database) as link:
        first = await pid(link)
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with link.lend() as connection:
                await connection.fetch("SELECT 1/0")
        with pytest.raises(asyncpg.DataError):
            async with link.lend() as connection:
                await connection.fetch("SELECT $1::int", 2**40)
        assert await pid(link) == first


async def test_when_the_server_has_no_free_connections_ours_are_shared(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.database()
    await asyncio.to_thread(
        own_postgres.query, f'ALTER DATABASE "{urlsplit(url).path[1:]}" CONNECTION LIMIT 2'
    )
    await asyncio.to_thread(own_postgres.query, "CREATE ROLE plain LOGIN")
    url = url.replace("poolhand@", "plain@")
    async with opened(url, connections=4) as link:
        pids = await asyncio.gather(*[pid(link) for _ in range(20)])
        assert len(set(pids)) == 2


async def test_a_server_without_free_connections_is_reported_with_the_fix(
    own_postgres: PostgresServer,
) -> None:
    await asyncio.to_thread(own_postgres.query, "CREATE ROLE plain LOGIN CONNECTION LIMIT 1")
    url = own_postgres.url.replace("poolhand@", "plain@")
    async with opened(url) as first, opened(url) as second, first.lend():
        with pytest.raises(Unavailable, match="no connection left; raise its max_connections"):
            await pid(second)


async def test_a_link_that_is_closed_lends_nothing_and_can_be_opened_again(
    database: str, outside: Outside
) -> None:
    async with opened(database) as link:
        await pid(link)
        await link.close()
        with pytest.raises(Unavailable, match="not open"):
            await pid(link)
        await outside.wait_for(0)
        link.open()
        assert await pid(link) > 0


def test_a_link_can_be_used_by_one_loop_after_the_other(database: str) -> None:
    link = ServerConnection(address_of(f"{database}?connections=1"))

    async def main() -> None:
        link.open()
        await asyncio.gather(pid(link), pid(link), pid(link))
        await link.close()

    asyncio.run(main())
    asyncio.run(main())


@pytest.mark.slow
async def test_closing_ends_running_calls_and_refuses_waiting_ones(
    database: str, outside: Outside
) -> None:
    async with opened(database, connections=1) as link:
        await outside.ask("SELECT pg_advisory_lock(7)")
        callers = [asyncio.create_task(stand_in_line(link)) for _ in range(3)]
        await outside.wait_for(1)
        async with asyncio.timeout(LIMIT):
            await link.close()
            ends = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(end, Exception) for end in ends)
        assert len([end for end in ends if isinstance(end, Unavailable)]) >= 2
        await outside.ask("SELECT pg_advisory_unlock(7)")
        await outside.wait_for(0)


async def test_a_call_that_is_nearly_finished_at_close_is_finished(database: str) -> None:
    async with opened(database) as link:

        async def work() -> str:
            async with link.lend() as connection:
                begun.set()
                return await connection.execute("SELECT pg_sleep(0.05)")

        begun = asyncio.Event()
        task = asyncio.create_task(work())
        await begun.wait()
        await link.close()
        assert await task == "SELECT 1"


async def test_a_forked_process_is_refused_and_must_open_its_own_store(database: str) -> None:
    async with opened(database) as link:
        first = await pid(link)
        told = in_a_fork(lambda: trying(link))
        assert told.startswith("UsageError")
        assert "is a fork: open a store of its own after the fork" in told
        assert await pid(link) == first


async def test_a_forked_process_that_closes_does_not_affect_its_parent(database: str) -> None:
    async with opened(database) as link:
        async with link.lend() as connection:
            assert in_a_fork(link.close) == ""
            assert await connection.execute("SELECT 1") == "SELECT 1"
        assert await pid(link) > 0


async def trying(link: ServerConnection) -> None:
    await pid(link)


def in_a_fork(act: Any) -> str:
    """Run something on another loop in a fork of this process; return its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = ""
        try:
            asyncio.events._set_running_loop(None)
            asyncio.run(act())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


# Connections that cannot be made


@pytest.fixture(scope="module")
def guarded(postgres: PostgresServer) -> Iterator[str]:
    """Return the part of a URL after the user, of a server that asks for passwords."""
    rules = postgres.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    postgres.query(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")
    postgres.query("CREATE ROLE shielded LOGIN")
    rules.write_text(
        "host all guarded all scram-sha-256\nhostssl all shielded all trust\n"
        f"host all shielded all reject\n{before}"
    )
    postgres.query("SELECT pg_reload_conf()")
    yield f"@127.0.0.1:{postgres.port}/poolhand"
    rules.write_text(before)
    postgres.query("SELECT pg_reload_conf()")


async def failure(url: str) -> str:
    """Return the error of a connection; it must not contain a password."""
    async with opened(url) as link:
        with pytest.raises((StoreError, UsageError)) as caught:
            await pid(link)
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in f"{error} {error!r}"
        error = error.__cause__
    assert PASSWORD not in repr(link.address)
    return f"{type(caught.value).__name__}: {caught.value}"


async def test_the_right_password_opens(guarded: str) -> None:
    async with opened(f"postgresql://guarded:{PASSWORD}{guarded}") as link:
        assert await pid(link) > 0


async def test_a_wrong_password_is_reported_without_showing_it(guarded: str) -> None:
    told = await failure(f"postgresql://guarded:not-{PASSWORD}{guarded}")
    assert "Unavailable: postgresql://127.0.0.1" in told
    assert 'password authentication failed for user "guarded"' in told
    assert "check the user and the password" in told


async def test_a_server_that_requires_tls_is_reported(guarded: str) -> None:
    told = await failure(f"postgresql://shielded:{PASSWORD}{guarded}?sslmode=disable")
    assert "pg_hba.conf" in told
    assert "add sslmode=require" in told


async def test_a_server_without_tls_is_reported(guarded: str) -> None:
    told = await failure(f"postgresql://guarded:{PASSWORD}{guarded}?sslmode=require")
    assert "rejected SSL upgrade: turn TLS on there, or change sslmode" in told


async def test_an_unknown_sslmode_is_reported_as_a_url_error(guarded: str) -> None:
    told = await failure(f"postgresql://guarded:{PASSWORD}{guarded}?sslmode=perhaps")
    assert told.startswith("UsageError: store: ")
    assert "check the options after the ?" in told


async def test_a_setting_unknown_to_the_server_is_reported_as_a_url_error(guarded: str) -> None:
    told = await failure(f"postgresql://guarded:{PASSWORD}{guarded}?no_such_setting=1")
    assert told.startswith("UsageError: store: ")


async def test_an_unknown_database_is_reported(postgres: PostgresServer) -> None:
    told = await failure(postgres.url.removesuffix("poolhand") + "nowhere")
    assert 'database "nowhere" does not exist: make it with createdb' in told


async def test_an_unknown_host_is_reported() -> None:
    told = await failure(f"postgresql://me:{PASSWORD}@no-such-host.invalid/jobs")
    assert "Unavailable: postgresql://no-such-host.invalid/jobs: " in told
    assert "no such host is known; check the URL" in told


async def test_a_closed_port_is_reported(proxy: Proxy, database: str) -> None:
    proxy.refuse()
    told = await failure(proxy.through(database).replace("poolhand@", f"me:{PASSWORD}@"))
    assert "it cannot be reached; start it, or check host and port in the URL" in told


async def test_a_server_that_hangs_up_is_reported(proxy: Proxy, database: str) -> None:
    proxy.refuse(accepts=True)
    assert "Unavailable: " in await failure(proxy.through(database))


@pytest.mark.slow
async def test_a_server_that_never_answers_is_not_waited_for(
    proxy: Proxy, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert postgres_link.CONNECT_SECONDS < PATIENCE
    monkeypatch.setattr(postgres_link, "CONNECT_SECONDS", 1.5)
    proxy.half_open(new=True)
    async with asyncio.timeout(LIMIT):
        told = await failure(proxy.through(database))
    assert "no connection within 1.5 s: check host and port" in told


async def test_a_unix_socket_leads_to_the_server(postgres: PostgresServer) -> None:
    where = f"postgresql://poolhand@/poolhand?host={postgres.folder}&port={postgres.port}"
    async with opened(where) as link:
        assert await pid(link) > 0


async def test_a_missing_unix_socket_is_reported() -> None:
    told = await failure(f"postgresql://me:{PASSWORD}@/jobs?host=/nowhere")
    assert "it cannot be reached; start it, or check host and port" in told
