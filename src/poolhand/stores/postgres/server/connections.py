"""Connections to a PostgreSQL server: a few, made on demand.

An idle connection may have died silently, so it is pinged before it is lent. A connection that
broke, or was left in the middle of something, is ended before another replaces it: the server never
has more of them than allowed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import asyncpg

from poolhand.errors import Unavailable, Unsupported, UsageError
from poolhand.stores.postgres.server import errors as faults
from poolhand.stores.postgres.server.address import Address
from poolhand.stores.postgres.tables import TableConnection

CONNECT_SECONDS = 5.0
TRUSTED_SECONDS = 1.0  # for which a connection that was just used counts as alive
PING_SECONDS = 2.5
END_SECONDS = 1.0
NAME = "poolhand"
# How long to wait for a lock, and how long a transaction may be idle.
LIMITS = {"lock_timeout": "5s", "idle_in_transaction_session_timeout": "10s"}
# By default, a statement keeps a plan made when its tables were almost empty, or is planned on
# every use. All statements of this store are written to use indexes, however large the tables are.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        ("enable_seqscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
    ),
}
# Each statement must see what was committed while it waited for a lock: at a level where a
# transaction sees one snapshot, a turn would find its session busy when no job holds it.
LEVEL = "read committed"
BEGIN = f"BEGIN ISOLATION LEVEL {LEVEL.upper()}"
# A pooler lends another connection each time, without these settings.
BEGIN_POOLED = "; ".join(
    [BEGIN, *(f"SET LOCAL {name} = '{value}'" for name, value in LIMITS.items())]
)
SETTINGS = {
    "application_name": NAME,
    "default_transaction_isolation": LEVEL,
    **LIMITS,
    **PLANS,
}
OLDEST = (13,)  # the first version with pg_current_xact_id


class RawConnection(TableConnection, Protocol):
    """An asyncpg connection, as far as the store uses it."""

    def terminate(self) -> None: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    async def close(self, timeout: float) -> None: ...

    def get_server_version(self) -> tuple[int, ...]: ...


async def connect(address: Address, dsn: str | None = None) -> RawConnection:
    """Make one connection, or raise an error that says why it failed."""
    pooled = address.pooled and dsn is None
    try:
        made: RawConnection = await asyncpg.connect(
            dsn or address.dsn,
            timeout=CONNECT_SECONDS,
            statement_cache_size=0 if pooled else 500,
            server_settings={} if pooled else SETTINGS,
        )
    except Exception as error:
        raise faults.on_the_way(error, address.shown, CONNECT_SECONDS) from error
    version = made.get_server_version()
    if version < OLDEST:
        sever(made)
        raise Unsupported(
            f"{address.shown} is PostgreSQL {version[0]}.{version[1]}; poolhand needs "
            f"{OLDEST[0]} or newer"
        )
    return made


def sever(connection: Any) -> None:
    """Break off a connection at once, whatever it is doing."""
    try:
        connection.terminate()
    except asyncpg.InternalClientError:
        # A busy connection does not terminate, and would keep the socket.
        connection._transport.abort()


class ServerConnection:
    """Lends a limited number of connections, to the process and the loop that opened it."""

    def __init__(self, address: Address) -> None:
        self.begin = BEGIN_POOLED if address.pooled else BEGIN
        self.address = address
        self.closed = True
        self._process = 0
        self._reset()

    def _reset(self) -> None:
        self._permits = asyncio.Semaphore(self.address.connections)
        self._back = asyncio.Event()
        self._making = 0
        self._idle: list[tuple[RawConnection, float]] = []
        self._lent: set[RawConnection] = set()
        self._endings: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Start lending on the running loop; connections are made on demand."""
        if self.closed or not self.own:
            self._reset()
        self.closed = False
        self._process = os.getpid()

    @property
    def own(self) -> bool:
        """Whether this process opened it, not one of which this is a fork."""
        return self._process in (0, os.getpid())

    async def close(self) -> None:
        """Close all connections; work in progress has a moment to finish.

        In a fork nothing is touched: anything sent would reach the server as from the parent.
        """
        if self.closed or not self.own:
            return
        self.closed = True
        try:
            async with asyncio.timeout(END_SECONDS):
                while self._lent:
                    self._back.clear()
                    await self._back.wait()
        except TimeoutError:
            pass
        finally:
            idle, self._idle = self._idle, []
            for connection in self._lent:
                sever(connection)
            for connection, _ in idle:
                self._let_end(connection, permit=False)
        if self._endings:
            await asyncio.wait(self._endings)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[RawConnection]:
        """Lend a connection; one that is returned broken or in a transaction is not lent again."""
        self._expect_open()
        await self._permits.acquire()
        try:
            connection = await self._take()
        except BaseException:
            self._permits.release()
            raise
        sound = False
        try:
            yield connection
            sound = True
        except Exception as error:
            sound = not (faults.is_cut(error) or isinstance(error, TimeoutError))
            raise
        finally:
            # A cancelled caller left in the middle of something: the connection cannot be reused.
            self._take_back(connection, sound)

    def _expect_open(self) -> None:
        shown = self.address.shown
        if self.closed:
            raise Unavailable(f"{shown} is not open here")
        if not self.own:
            raise UsageError(
                f"{shown} was opened by process {self._process}, of which this one"
                f" ({os.getpid()}) is a fork: open a store of its own after the fork"
            )

    async def _take(self) -> RawConnection:
        while True:
            self._expect_open()
            try:
                connection = await self._idle_one() or await self._new_one()
            except Unavailable as error:
                ours = self._idle or self._lent or self._making
                if not ours or not faults.is_crowded(error.__cause__):
                    raise
                # The server has no connection left, but those of this process come back.
                if not self._idle:
                    self._back.clear()
                    await self._back.wait()
            else:
                self._lent.add(connection)
                return connection

    async def _new_one(self) -> RawConnection:
        self._making += 1
        try:
            return await connect(self.address)
        finally:
            self._making -= 1
            self._back.set()

    async def _idle_one(self) -> RawConnection | None:
        """Return a live connection that was used before, None if there is none."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                sever(connection)
            elif asyncio.get_running_loop().time() - since < TRUSTED_SECONDS or await self._answers(
                connection
            ):
                return connection
            else:
                # Other idle connections are probably dead, too, or not worth the time of a ping.
                others, self._idle = self._idle, []
                for other, _ in others:
                    sever(other)
        return None

    async def _answers(self, connection: RawConnection) -> bool:
        self._lent.add(connection)
        answered = False
        try:
            async with asyncio.timeout(PING_SECONDS):
                await connection.execute("SELECT 1")
            answered = True
        except Exception as error:
            if not isinstance(error, TimeoutError) and not faults.is_cut(error):
                raise
        finally:
            self._lent.discard(connection)
            if not answered:
                sever(connection)
        return answered

    def _take_back(self, connection: RawConnection, sound: bool) -> None:
        self._lent.discard(connection)
        self._back.set()
        if self.closed or connection.is_closed() or not sound or connection.is_in_transaction():
            self._let_end(connection, permit=True)
        else:
            self._idle.append((connection, asyncio.get_running_loop().time()))
            self._permits.release()

    def _let_end(self, connection: RawConnection, permit: bool) -> None:
        """End a connection in the background; only then may another replace it."""
        if connection.is_closed():
            sever(connection)
            if permit:
                self._permits.release()
            return
        task = asyncio.get_running_loop().create_task(_end(connection), name="poolhand-link")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        if permit:
            permits = self._permits
            task.add_done_callback(lambda _: permits.release())


async def _end(connection: RawConnection) -> None:
    """Have the server stop its work for a connection, and close it."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await connection.close(timeout=END_SECONDS)
    except Exception:
        # No answer: the server will notice when it writes.
        sever(connection)
