"""The way to a PostgreSQL server: a few connections, made as they are needed.

A connection that stood idle may be dead without a word, so that it is asked before it is lent. One
that broke, or was left in the middle of something, is ended before another takes its place: there
are never more on the server than were allowed.
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
TRUSTED_SECONDS = 1.0  # for which a connection that was just used is taken to be alive
PING_SECONDS = 2.5
END_SECONDS = 1.0
NAME = "poolhand"
# How long a lock is waited for, and how long a transaction may be left alone.
LIMITS = {"lock_timeout": "5s", "idle_in_transaction_session_timeout": "10s"}
# A statement keeps the plan that was made for it when its tables were all but empty, or is planned
# each time it is used. All of ours are written to go along indexes, however large the tables are.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        ("enable_seqscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
    ),
}
# Each statement has to see what was committed while it waited for a lock: at a level where all of a
# transaction sees one moment, a turn would be told that its session is busy when nobody holds it.
LEVEL = "read committed"
BEGIN = f"BEGIN ISOLATION LEVEL {LEVEL.upper()}"
# A pooler lends another connection each time, on which nothing is set.
BEGIN_POOLED = "; ".join(
    [BEGIN, *(f"SET LOCAL {name} = '{value}'" for name, value in LIMITS.items())]
)
SETTINGS = {
    "application_name": NAME,
    "default_transaction_isolation": LEVEL,
    **LIMITS,
    **PLANS,
}
OLDEST = (13,)  # pg_current_xact_id


class RawConnection(TableConnection, Protocol):
    """A connection of asyncpg, with what is known of it."""

    def terminate(self) -> None: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    async def close(self, timeout: float) -> None: ...

    def get_server_version(self) -> tuple[int, ...]: ...


async def connect(address: Address, dsn: str | None = None) -> RawConnection:
    """Make one connection, or raise an error that says what is wrong with the way."""
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
    """Break a connection off at once, whatever it is doing."""
    try:
        connection.terminate()
    except asyncpg.InternalClientError:
        # It will not say goodbye while it is busy, and would keep the socket.
        connection._transport.abort()


class ServerConnection:
    """Lends connections, at most so many at a time, to the process and the loop that opened it."""

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
        """Lend from now on, on the loop that runs; connections are made when they are needed."""
        if self.closed or not self.own:
            self._reset()
        self.closed = False
        self._process = os.getpid()

    @property
    def own(self) -> bool:
        """Whether it was opened by this process, not by one of which this is a fork."""
        return self._process in (0, os.getpid())

    async def close(self) -> None:
        """Let go of all connections; work that is under way has a moment to be done.

        In a fork nothing is touched: what is sent here would reach the server as from the parent.
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
        """Lend a connection; one that is left broken, or in a transaction, is not lent again."""
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
            # Who was cancelled left in the middle of something: nobody can go on where it stands.
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
                # There are no more to be had, but ours come back.
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
        """Return a connection that was used before, if there is one that lives."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                sever(connection)
            elif asyncio.get_running_loop().time() - since < TRUSTED_SECONDS or await self._answers(
                connection
            ):
                return connection
            else:
                # What stood idle beside it went the same way, or is not worth the time to ask.
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
        """End a connection beside all else; only then may there be another."""
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
    """Have the server stop what it does for a connection, and say goodbye."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await connection.close(timeout=END_SECONDS)
    except Exception:
        # It does not answer: it will notice when it writes.
        sever(connection)
