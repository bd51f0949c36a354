"""The memory store: SQLite tables without a file, for as long as the store is open."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar
from weakref import finalize

from poolhand.contract import Hint
from poolhand.errors import Unavailable
from poolhand.runtime import Runtime
from poolhand.stores.sql import migrations
from poolhand.stores.sqlite import errors as faults
from poolhand.stores.sqlite.database import Op
from poolhand.stores.sqlite.file import STATEMENTS
from poolhand.stores.sqlite.store import SqliteVerbs

T = TypeVar("T")


class MemoryStore(SqliteVerbs):
    """A store inside this process: no file, no lock, no log, no wake-up."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(MemoryTables(runtime), runtime)


class MemoryTables:
    """Tables in memory on one connection, with the interface of `StoreFile`.

    Every write is a transaction of its own: there is nothing to wait for, so sharing one gains
    nothing. While a user's transaction is open, reads see a copy from before it, and writes wait.
    """

    path = "memory://"
    read_only = None

    def __init__(self, runtime: Runtime) -> None:
        self.now = runtime.monotonic
        self._wall = runtime.wall
        self._connection: sqlite3.Connection | None = None
        self._before: sqlite3.Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Event()
        self._signals: dict[str, None] = {}
        self._hints: dict[object, Hint] = {}

    async def open(self) -> None:
        """Create the tables, unless they exist."""
        self._loop = asyncio.get_running_loop()
        if self._connection is None:
            self._free = asyncio.Event()
            self._free.set()
            # The connection may later be used by another store thread.
            self._connection = sqlite3.connect(
                ":memory:",
                isolation_level=None,
                cached_statements=STATEMENTS,
                check_same_thread=False,
            )
            # Closes an abandoned connection with its last user; Python 3.13 and later would warn.
            finalize(self, self._connection.close).atexit = False
            migrations.migrate(self._connection, migrations.steps(), self.path, self._wall())

    async def close(self) -> None:
        """Discard everything; a second call does nothing."""
        connection, self._connection = self._connection, None
        self._hints.clear()
        self._free.set()
        if connection is not None:
            connection.close()

    async def write(self, op: Op[T]) -> T:
        """Run `op` in a transaction; if it raises, its changes are rolled back."""
        self._usable()
        await self._wait()
        connection = self._usable()
        connection.execute("BEGIN")
        try:
            value = op(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._signals.clear()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        signals, self._signals = self._signals, {}
        for topic in signals:
            self.publish(topic)
        return value

    async def begin(self) -> sqlite3.Connection:
        """Begin a user's transaction; pass the connection to `end` afterwards."""
        self._usable()
        await self._wait()
        connection = self._usable()
        self._free.clear()
        self._before = sqlite3.connect(":memory:", isolation_level=None)
        connection.backup(self._before)
        connection.execute("BEGIN")
        return connection

    def end(self, connection: sqlite3.Connection) -> None:
        """End a user's transaction; uncommitted changes are rolled back."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.set_progress_handler(None, 0)
        if self._before is not None:
            self._before.close()
            self._before = None
        self._free.set()

    def read(self, op: Op[T]) -> T:
        """Run `op`, which only reads, on what is committed."""
        return op(self._before or self._usable())

    def tick(self, connection: sqlite3.Connection) -> None:
        """Do nothing: the clock lives as long as the tables do."""

    async def shorten(self) -> None:
        """Do nothing: there is no log."""

    def signal(self, topic: str) -> None:
        """Publish a topic after the commit of the calling op, unless the op is rolled back."""
        self._signals[topic] = None

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` for every topic."""
        key = object()
        self._hints[key] = hint

        def end() -> None:
            self._hints.pop(key, None)

        return end

    def publish(self, topic: str) -> None:
        """Publish a topic to all subscribers, soon; never raise, never wait."""
        if self._loop is not None and not self._loop.is_closed():
            for key in self._hints:
                self._loop.call_soon(self._tell, key, topic)

    async def check(self) -> None:
        self._usable()

    def failure(self, error: BaseException) -> Exception:
        """Return the error to raise to the caller."""
        if isinstance(error, sqlite3.Error):
            return faults.as_store_error(error, self.path) or error
        assert isinstance(error, Exception)
        return error

    def expect_own(self) -> None:
        """Do nothing: a fork has its own copy of the tables."""

    def _tell(self, key: object, topic: str) -> None:
        hint = self._hints.get(key)
        if hint is not None:
            hint(topic)

    async def _wait(self) -> None:
        while not self._free.is_set():
            await self._free.wait()

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise Unavailable("the memory store is not open; await open() first")
        return self._connection
