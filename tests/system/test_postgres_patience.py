"""A PostgreSQL that is suspended, locked, full or read-only: every verb answers in time."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from poolhand.contract import Change, Claim, ClaimRequest, Filter, JobBatch, LogLine, Put
from poolhand.errors import PoolhandError, ReadOnly, StoreError, Unavailable
from poolhand.rules import lifecycle
from poolhand.rules.audit import STREAM
from poolhand.runtime import Runtime
from poolhand.stores.postgres import connections as postgres_link
from poolhand.stores.postgres.connections import address_of
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.postgres.tables import Dialect
from tests.contract.support import Clock, Hand, ids, order, over, owner, spec
from tests.faults.proxy import Proxy
from tests.preload import preload
from tests.private_servers.postgres_server import PostgresServer
from tests.private_servers.programs import ServerMissing
from tests.servers import do_without
from tests.unit.stores.tables import postgres_faults

pytestmark = pytest.mark.slow

LIMIT = 15  # seconds within which every verb must answer; 10 are promised, machines are busy
SOURCE = Path(__file__).with_name("full_disk.c")


WAITING_FOR = """
SELECT bool_or(pg_cancel_backend(pid)) FROM pg_locks
WHERE NOT granted AND relation = to_regclass($1)
"""


def verbs(store: PostgresStore, claim: Claim) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return every verb of a store, applied to a claim."""
    change = Change(lifecycle.hand_back(claim.job), claim.token)
    return {
        "check": store.check,
        "declare": lambda: store.declare(spec("new", slots=3)),
        "pools": store.pools,
        "pause": lambda: store.set_pool("pool", "me", paused=False),
        "resize": lambda: store.set_pool("pool", "me", slots=7),
        "add": lambda: store.add([JobBatch((order("added"),))]),
        "add with a key": lambda: store.add([JobBatch((order("k", idempotency_key="k"),))]),
        "begin": store.begin,
        "withdraw": lambda: store.cancel(["a"], "me", blocked_only=True),
        "claim": lambda: store.replace((), ClaimRequest("hand", (0,))),
        "replace": lambda: store.replace([change], ClaimRequest("hand", (0,))),
        "release": lambda: store.replace(released=[claim.token]),
        "cancel": lambda: store.cancel(["a"], "me"),
        "enroll": lambda: store.enroll(owner("other")),
        "extend": lambda: store.extend("hand", [claim.token]),
        "leases": store.leases,
        "expire_owner": lambda: store.expire_owner("dead", 0),
        "get": lambda: store.get(["a"]),
        "get with calls": lambda: store.get(["a"], calls=True),
        "find": lambda: store.find(Filter()),
        "count": lambda: store.count(Filter()),
        "promote": store.promote,
        "prune": lambda: store.prune(over(0.0)),
        "get_document": lambda: store.get_document("d"),
        "put": lambda: store.put([Put("d", b"")]),
        "delete": lambda: store.put([Put("d", None)]),
        "scan": lambda: store.scan("d"),
        "append": lambda: store.append([LogLine("s", "kind", b"")]),
        "read": lambda: store.read(STREAM),
        "trim": lambda: store.trim("s", 5),
    }


async def all_of(store: PostgresStore, claim: Claim) -> dict[str, BaseException | None]:
    """Call every verb at once; return the error of each, if all have answered in time."""
    asked = verbs(store, claim)
    async with asyncio.timeout(LIMIT):
        ends = await asyncio.gather(*[verb() for verb in asked.values()], return_exceptions=True)
    for end in ends:
        if hasattr(end, "roll_back"):
            await end.roll_back()
    return {
        name: end if isinstance(end, BaseException) else None
        for name, end in zip(asked, ends, strict=True)
    }


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[PostgresStore, Claim]]:
    """Return a store with a claim."""
    store = PostgresStore(url, Runtime())
    await store.open()
    try:
        await store.enroll(owner("hand"))
        await store.declare(spec(slots=5))
        claim = await Hand(store, Clock()).start("a")
        yield store, claim
    finally:
        await store.close()


@contextmanager
def impatient() -> Iterator[None]:
    """Shorten the time after which a verb is refused; one test measures the real time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poolhand.stores.postgres.store.PATIENCE", 2.5)
        yield


def expect_only(ends: dict[str, BaseException | None], *kinds: type[PoolhandError]) -> None:
    wrong = {name: end for name, end in ends.items() if not isinstance(end, kinds)}
    assert wrong == {}


def expect_none(ends: dict[str, BaseException | None]) -> None:
    assert {name: end for name, end in ends.items() if end is not None} == {}


async def test_a_suspended_server_raises_unavailable_in_time(own_postgres: PostgresServer) -> None:
    async with opened(own_postgres.url) as (store, claim):
        own_postgres.pause()
        expect_only(await all_of(store, claim), Unavailable)
        own_postgres.resume()
        expect_none(await all_of(store, claim))
    assert await postgres_faults(own_postgres.url) == []


async def test_a_silently_dead_connection_raises_unavailable_in_time(
    postgres: PostgresServer, store_schema: str
) -> None:
    with Proxy("127.0.0.1", postgres.port) as proxy:
        async with opened(proxy.through(store_schema)) as (store, claim):
            proxy.half_open(new=True)
            with impatient():
                expect_only(await all_of(store, claim), Unavailable)
            proxy.mend()
            expect_none(await all_of(store, claim))


@pytest.mark.parametrize("table", ["poolhand_pools", "poolhand_jobs"])
async def test_a_table_locked_by_another_client_raises_unavailable_in_time(
    store_schema: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_link.LIMITS, "lock_timeout", "1s")
    address = address_of(store_schema)
    async with opened(store_schema) as (store, claim):
        stranger: Any = await asyncpg.connect(address.dsn)
        await stranger.execute("BEGIN")
        await stranger.execute(Dialect(address.schema).text(f"LOCK TABLE {table}"))
        with impatient():
            ends = await all_of(store, claim)
        assert isinstance(ends["add"], Unavailable)
        expect_only({name: end for name, end in ends.items() if end is not None}, Unavailable)
        await stranger.execute("ROLLBACK")
        await stranger.close()
        expect_none(await all_of(store, claim))
    assert await postgres_faults(store_schema) == []


async def test_a_submit_made_while_the_server_did_not_answer_is_not_repeated(
    own_postgres: PostgresServer,
) -> None:
    async with opened(own_postgres.url) as (store, _):
        own_postgres.pause()
        async with asyncio.timeout(LIMIT):
            with impatient(), pytest.raises(Unavailable):
                await store.add([JobBatch((order("b", idempotency_key="b"),))])
        own_postgres.resume()
        await store.add([JobBatch((order("again", idempotency_key="b"),))])
        found = await store.find(Filter())
        assert len(found.jobs) == 2


async def test_a_read_only_server_is_reported_and_can_be_read(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.url
    async with opened(url) as (store, claim):
        own_postgres.query("ALTER DATABASE poolhand SET default_transaction_read_only = on")
        await end_all(url)
        expect_read_only(await all_of(store, claim))
        assert ids((await store.find(Filter())).jobs) == ["a"]
        own_postgres.query("ALTER DATABASE poolhand RESET default_transaction_read_only")
        await end_all(url)
        expect_none(await all_of(store, claim))


READS = {
    "pools",
    "begin",
    "leases",
    "get",
    "get with calls",
    "find",
    "count",
    "get_document",
    "scan",
    "read",
}
# Verbs that write nothing if there is nothing to change.
IDLE = {"withdraw", "release", "trim", "expire_owner", "claim", "promote", "delete"}


def expect_read_only(ends: dict[str, BaseException | None]) -> None:
    for name, end in ends.items():
        if name in READS:
            assert end is None, name
        elif name in IDLE:
            assert end is None or isinstance(end, ReadOnly), name
        else:
            assert isinstance(end, ReadOnly), name


async def end_all(url: str) -> None:
    """End all connections to the database, so that new ones have the new settings."""
    outside: Any = await asyncpg.connect(url)
    await outside.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await outside.close()


@pytest.fixture
def standby(
    own_postgres: PostgresServer, copying_binaries: Path, postgres_binaries: Path
) -> Iterator[PostgresServer]:
    """Return a standby of the server; its changes reach the standby."""
    with PostgresServer(binaries=copying_binaries) as copy:
        copy.stop()
        data, ids_of = copy.folder / "data", (copy.folder / "data").stat()
        shutil.rmtree(data)
        subprocess.run(
            [
                *(postgres_binaries / "pg_basebackup", "-D", data, "-R", "-X", "stream"),
                *("-c", "fast", "-d", own_postgres.url),
            ],
            check=True,
        )
        if os.geteuid() == 0:
            for path in (data, *data.rglob("*")):
                os.chown(path, ids_of.st_uid, ids_of.st_gid, follow_symlinks=False)
        copy.start()
        yield copy


async def test_a_standby_is_reported_as_read_only(
    own_postgres: PostgresServer, standby: PostgresServer
) -> None:
    async with opened(own_postgres.url) as (_, claim):
        copied = PostgresStore(standby.url, Runtime())
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    await copied.open()
                    if await copied.get(["a"]) != [None]:
                        break
                except StoreError:
                    continue
        expect_read_only(await all_of(copied, claim))
        await copied.close()


async def test_a_query_cancelled_by_an_administrator_is_reported_and_changes_nothing(
    store_schema: str,
) -> None:
    address = address_of(store_schema)
    async with opened(store_schema) as (store, claim):
        outside: Any = await asyncpg.connect(address.dsn)
        await outside.execute("BEGIN")
        await outside.execute(Dialect(address.schema).text("LOCK TABLE poolhand_waits"))
        adding = asyncio.create_task(store.add([JobBatch((order("b"),))]))
        async with asyncio.timeout(LIMIT):
            while not await outside.fetchval(WAITING_FOR, f"{address.schema}.poolhand_waits"):
                pass
            with pytest.raises(Unavailable, match="canceling statement due to user request"):
                await adding
        await outside.execute("ROLLBACK")
        await outside.close()
        assert await store.get(["b"]) == [None]
        expect_none(await all_of(store, claim))


async def test_constantly_killed_connections_cause_no_error(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.url
    async with opened(url) as (store, _):
        for round in range(10):
            adding = [
                asyncio.create_task(store.add([JobBatch((order(f"{round}-{number}"),))]))
                for number in range(10)
            ]
            await end_all(url)
            await asyncio.gather(*adding)
        assert sum((await store.count(Filter())).values()) == 101
    assert await postgres_faults(url) == []


@pytest.fixture
def full_disk(postgres_binaries: Path) -> Iterator[tuple[PostgresServer, Path]]:
    """Return a server and a file: while the file exists, no table of the server can grow."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # If this is root, the server runs as another user.
        folder.chmod(0o755)
        switch = folder / "switch"
        try:
            library = preload(SOURCE, folder)
        except ServerMissing as missing:
            do_without(missing)
        for program in ("initdb", "psql"):
            (folder / program).symlink_to(postgres_binaries / program)
        wrapped = folder / "postgres"
        settings = f"LD_PRELOAD={library} FULL_DISK={switch}"
        wrapped.write_text(f'#!/bin/sh\n{settings} exec {postgres_binaries}/postgres "$@"\n')
        wrapped.chmod(0o755)
        with PostgresServer(binaries=folder) as server:
            yield server, switch


async def test_a_full_disk_makes_the_store_read_only_until_there_is_space(
    full_disk: tuple[PostgresServer, Path],
) -> None:
    server, switch = full_disk
    async with opened(server.url) as (store, claim):
        switch.touch()
        with pytest.raises(ReadOnly, match="no new jobs are accepted until there is free space"):
            await asyncio.gather(*[store.add([JobBatch((big(f"b{n}"),))]) for n in range(20)])
        # Existing jobs can be read, and work on them continues.
        assert ids((await store.find(Filter())).jobs)[-1] == "a"
        switch.unlink()
        expect_none(await all_of(store, claim))
    assert await postgres_faults(server.url) == []


def big(id: str) -> Any:
    made = order(id)
    return type(made)(made.job, os.urandom(200_000))
