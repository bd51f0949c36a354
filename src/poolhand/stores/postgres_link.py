"""The way to a PostgreSQL server: a few connections, made as they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
from msgspec import Struct

from poolhand.errors import Unavailable, UsageError
from poolhand.stores import postgres_faults as faults

CONNECT_SECONDS = 5.0
MOST = 4
NAME = "poolhand"
OURS = ("schema", "pooler", "listen", "connections")


class Address(Struct, frozen=True):
    """Where the tables are, and how to get there.

    Behind a pooler that lends connections for a transaction at a time nothing may be left on one;
    `listen` is then the way round it, or there is none.
    """

    dsn: str
    shown: str
    schema: str = "public"
    pooled: bool = False
    listen: str | None = None
    connections: int = MOST


def address_of(url: str) -> Address:
    """Read a URL; what it says beside the usual is ours."""
    parts = urlsplit(url)
    words = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: words.pop(name) for name in OURS if name in words}
    pooler, many = own.get("pooler"), own.get("connections", str(MOST))
    faults = []
    if pooler not in (None, "transaction"):
        faults.append(f"pooler={pooler!r} is not allowed; it can be transaction")
    if not many.isdecimal() or not 1 <= int(many) <= 100:
        faults.append(f"connections={many!r} is not allowed; give a number from 1 to 100")
        many = str(MOST)
    if not own.get("schema", "public"):
        faults.append("schema='' is not allowed; name one")
    try:
        port = parts.port
    except ValueError as error:
        faults.append(str(error))
        port = None
    if faults:
        raise UsageError("store: " + "; ".join(faults))
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(words), ""))
    place = f"{parts.hostname or 'localhost'}:{port or 5432}{parts.path}"
    shown = f"postgresql://{place}"
    pooled = pooler is not None
    schema = own.get("schema", "public")
    return Address(dsn, shown, schema, pooled, own.get("listen"), int(many))


class Raw(Protocol):
    """What is used of a connection of asyncpg."""

    async def fetch(self, text: str, *values: Any) -> list[Any]: ...

    async def execute(self, text: str) -> str: ...

    def terminate(self) -> None: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    async def close(self, timeout: float) -> None: ...


async def connect(address: Address, dsn: str | None = None) -> Raw:
    """Make one connection."""
    settings = {} if address.pooled and dsn is None else {"application_name": NAME}
    made: Raw = await asyncpg.connect(
        dsn or address.dsn,
        timeout=CONNECT_SECONDS,
        statement_cache_size=0 if address.pooled and dsn is None else 500,
        server_settings=settings,
    )
    return made


class Link:
    """Lends connections, at most so many at a time; one that broke is not lent again."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Raw] = []
        self._lent = asyncio.Semaphore(address.connections)
        self._open: set[Raw] = set()
        self.closed = False

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Raw]:
        """Lend a connection; whoever leaves by an error of its own leaves nothing open on it."""
        if self.closed:
            raise Unavailable(f"{self.address.shown} is not open here")
        async with self._lent:
            connection = await self._take()
            try:
                yield connection
            except BaseException as error:
                if not isinstance(error, Exception) or faults.is_cut(error):
                    # In the middle of something: nobody can go on where it stands.
                    self._drop(connection)
                raise
            finally:
                self._put_back(connection)

    async def _take(self) -> Raw:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._drop(connection)
        connection = await connect(self.address)
        self._open.add(connection)
        return connection

    def _put_back(self, connection: Raw) -> None:
        if connection not in self._open:
            return
        if self.closed or connection.is_closed():
            self._drop(connection)
        else:
            self._idle.append(connection)

    def _drop(self, connection: Raw) -> None:
        self._open.discard(connection)
        connection.terminate()

    async def close(self) -> None:
        """Let go of all connections."""
        self.closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            self._open.discard(connection)
            try:
                await connection.close(timeout=1.0)
            except Exception:
                connection.terminate()
