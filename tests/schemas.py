"""Schemas of the PostgreSQL that all tests of a process share, and connections to it.

`schema` is new and empty. `store_schema` has the empty tables of a store: schemas are migrated once
and emptied after each test, which is a hundred times cheaper than making them.
Stores of tests that share an event loop hand their connections on to each other (`kept`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import count
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from poolhand.runtime import Runtime
from poolhand.stores.postgres.connections import sever
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.postgres.tables import RawConnection
from poolhand.stores.postgres.transaction import Clock
from tests.private_servers.postgres_server import PostgresServer

# What a test might change in a schema besides the rows of its tables.
FINGERPRINT = """
SELECT string_agg(concat_ws(' ', relname, relkind, relnatts, relacl, relowner, relhastriggers,
    relrowsecurity, reloptions), ',' ORDER BY relname)
FROM pg_class WHERE relnamespace = to_regnamespace($1)
"""
STEPS = """
SELECT string_agg(concat_ws(' ', number, checksum, compatible), ',') FROM {schema}.poolhand_schema
"""
TABLES = """
SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'poolhand_schema'
"""
SEQUENCES = "SELECT sequencename FROM pg_sequences WHERE schemaname = $1"
DELETE = "DELETE FROM {{schema}}.{name};"
RESTART = "SELECT setval('{{schema}}.{name}', 1, false);"
# As the first migration writes it.
COUNTERS = "INSERT INTO {schema}.poolhand_counters VALUES (0, gen_random_uuid()::text);"
LOCK_TIMEOUT = "SET lock_timeout = '5s'"


class Schemas:
    """Makes and empties schemas, over one connection, on its own thread and event loop."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = count(1)
        self._free: list[str] = []
        self._fingerprint = self._steps = ""
        self._emptying = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-schemas")
        self._thread.start()
        self._connection = self._run(asyncpg.connect(server.url))
        self._run(self._connection.execute(LOCK_TIMEOUT))

    def close(self) -> None:
        self._run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def new(self) -> str:
        """Return a name that no schema has."""
        return f"test_{next(self._numbers)}"

    def url(self, schema: str) -> str:
        return f"{self._server.url}?schema={schema}"

    def drop(self, schema: str) -> None:
        self._run(self._connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))

    def take(self) -> str:
        """Return the name of a schema with empty tables."""
        return self._free.pop() if self._free else self._run(self._migrate())

    def give_back(self, schema: str) -> None:
        """Empty the tables of a schema; a schema with other changes is dropped."""
        if self._run(self._empty(schema)):
            self._free.append(schema)
        else:
            self.drop(schema)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _migrate(self) -> str:
        schema = self.new()
        store = PostgresStore(self.url(schema), Runtime())
        await store.open()
        await store.close()
        if not self._fingerprint:
            self._fingerprint = await self._connection.fetchval(FINGERPRINT, schema)
            self._steps = await self._connection.fetchval(STEPS.format(schema=schema))
            tables = await self._connection.fetch(TABLES, schema)
            sequences = await self._connection.fetch(SEQUENCES, schema)
            texts = [DELETE.format(name=name) for (name,) in tables]
            texts += [RESTART.format(name=name) for (name,) in sequences]
            self._emptying = "".join([*texts, COUNTERS])
        return schema

    async def _empty(self, schema: str) -> bool:
        """Return False for a schema whose tables or migrations have changed."""
        found = await self._connection.fetchval(FINGERPRINT, schema)
        if found != self._fingerprint:
            return False
        if await self._connection.fetchval(STEPS.format(schema=schema)) != self._steps:
            return False
        await self._connection.execute(self._emptying.format(schema=schema))
        return True


@pytest.fixture(scope="session")
def schemas(postgres: PostgresServer) -> Iterator[Schemas]:
    made = Schemas(postgres)
    yield made
    made.close()


@pytest.fixture
def schema(schemas: Schemas) -> Iterator[str]:
    """Return the URL of a new and empty schema, which is faster to make than a database."""
    name = schemas.new()
    yield schemas.url(name)
    schemas.drop(name)


@pytest.fixture
def store_schema(schemas: Schemas) -> Iterator[str]:
    """Return the URL of a schema with the empty tables of a store."""
    name = schemas.take()
    yield schemas.url(name)
    schemas.give_back(name)


class Kept:
    """Connections of the event loop of the session, by the URL of their store."""

    MOST = 2

    def __init__(self) -> None:
        self._idle: dict[str, list[RawConnection]] = defaultdict(list)

    def take(self, url: str) -> list[RawConnection]:
        return [one for one in self._idle.pop(url, []) if not one.is_closed()]

    def keep(self, url: str, connections: list[RawConnection]) -> list[RawConnection]:
        """Keep some connections; return those that are too many."""
        kept = self._idle[url]
        room = self.MOST - len(kept)
        kept += connections[:room]
        return connections[room:]

    def close(self) -> None:
        for url in list(self._idle):
            for connection in self.take(url):
                sever(connection)


class KeptStore(PostgresStore):
    """A store that begins with connections which others have left, and leaves its own.

    On a new connection the server plans every statement anew, which costs it more than the test.
    """

    def __init__(self, url: str, runtime: Runtime, clock: Clock | None, kept: Kept) -> None:
        super().__init__(url, runtime, clock)
        self._url = url
        self._kept = kept

    async def open(self) -> None:
        self._link.open()
        now = asyncio.get_running_loop().time()
        self._link._idle += [(one, now) for one in self._kept.take(self._url)]
        await super().open()

    async def close(self) -> None:
        idle = self._link._idle
        idle[:] = [(one, 0.0) for one in self._kept.keep(self._url, [one for one, _ in idle])]
        await super().close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kept(schemas: Schemas) -> AsyncIterator[Kept]:
    """Give the connections that stores on the event loop of the session leave to each other."""
    made = Kept()
    yield made
    made.close()
