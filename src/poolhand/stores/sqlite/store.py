"""The SQLite store: one file that all processes of a machine can share, or tables in memory."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar
from weakref import finalize

from poolhand.contract import (
    Added,
    Change,
    Claim,
    ClaimRequest,
    Document,
    Extended,
    Filter,
    Hint,
    JobBatch,
    JobPage,
    JobRequest,
    Lease,
    LogEntry,
    LogLine,
    Owner,
    PoolRow,
    Promoted,
    Put,
    Refusal,
    ReplacedJob,
    Stored,
    UserInsertion,
)
from poolhand.errors import Unavailable, Unsupported
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.runtime import Runtime
from poolhand.stores.sql import documents as sql_documents
from poolhand.stores.sql import find as sql_find
from poolhand.stores.sql import migrations
from poolhand.stores.sql import sessions as sql_sessions
from poolhand.stores.sql import upkeep as sql_upkeep
from poolhand.stores.sql.admission import StoredAdmission
from poolhand.stores.sql.claims import StoredLeases, all_leases
from poolhand.stores.sql.log import StreamLog, is_good
from poolhand.stores.sql.pools import pool_rows
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.tables import Tables
from poolhand.stores.sqlite import errors as faults
from poolhand.stores.sqlite.file import STATEMENTS, StoreFile
from poolhand.stores.sqlite.place import OWNER
from poolhand.stores.sqlite.tables import Database, Op, SqliteTables, steps_on
from poolhand.stores.sqlite.transaction import SqliteTransaction

T = TypeVar("T")


class SqliteVerbs:
    """The verbs of a store on SQLite tables, in a file or in memory."""

    def __init__(self, file: Database, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime
        self._wall = runtime.wall

    @property
    def place(self) -> str:
        return self._file.path

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()

    async def check(self) -> None:
        await self._file.check()

    async def _steps(self, act: Callable[[Steps], T]) -> T:
        """Run steps in one write; publish their topics after the commit."""
        file = self._file

        def op(connection: Connection) -> T:
            steps = steps_on(connection, file.now(), self._wall())
            value = act(steps)
            for topic in sorted(steps.close()):
                file.signal(topic)
            return value

        return await self._write(op)

    async def _write(self, op: Callable[[Connection], T]) -> T:
        with self._translated_errors():
            return await self._file.write(op)

    def _read(self, op: Callable[[Tables], T]) -> T:
        with self._translated_errors():
            return self._file.read(lambda connection: op(SqliteTables(connection)))

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors into poolhand's own."""
        try:
            yield
        except Exception as error:
            translated = faults.translate(error, self._file.path)
            if translated is error:
                raise
            raise translated from error

    # Pools

    async def declare(self, spec: PoolSpec) -> None:
        await self._steps(lambda steps: steps.declare(spec))

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        return self._read(lambda tables: pool_rows(tables, names))

    async def set_pool(
        self,
        pool: str,
        by: str,
        *,
        paused: bool | None = None,
        slots: int | None = None,
        declared: bool = False,
    ) -> None:
        await self._steps(lambda steps: steps.set_pool(pool, by, paused, slots, declared))

    # Jobs

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        return await self._steps(lambda steps: StoredAdmission(steps).add(batches))

    async def begin(self) -> SqliteTransaction:
        transaction = SqliteTransaction(self._file, self._runtime)
        await transaction.begin()
        return transaction

    async def insertion(self, requests: Sequence[JobRequest]) -> UserInsertion:
        raise Unsupported(
            "submit_in: a SQLite file has one writer at a time; write to it within `async with "
            "app.transaction()`"
        )

    async def replace(
        self,
        changes: Sequence[Change] = (),
        wanted: ClaimRequest | None = None,
        released: Sequence[int] = (),
    ) -> ReplacedJob:
        return await self._steps(
            lambda steps: StoredLeases(steps).replace(changes, wanted, released)
        )

    async def cancel(
        self, ids: Sequence[str], by: str, blocked_only: bool = False
    ) -> list[Stored | None]:
        if blocked_only:
            return await self._steps(lambda steps: steps.withdraw(ids))
        asked = [(id, by) for id in ids]
        return await self._steps(lambda steps: steps.cancel_all(asked))

    # Owners

    async def enroll(self, owner: Owner) -> None:
        await self._steps(lambda steps: StoredLeases(steps).enroll(owner))

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        return await self._steps(lambda steps: StoredLeases(steps).extend(owner, tokens))

    async def leases(self) -> list[Lease]:
        return self._read(all_leases)

    async def expire_owner(self, owner: str, renewal: int) -> list[Claim]:
        return await self._steps(lambda steps: StoredLeases(steps).expire_owner(owner, renewal))

    # Reads

    async def get(self, ids: Sequence[str], calls: bool = False) -> list[Stored | None]:
        return self._read(lambda db: sql_find.get(db, ids, calls))

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> JobPage:
        return self._read(lambda db: sql_find.find(db, which, after, limit))

    async def count(self, which: Filter) -> Mapping[Status, int]:
        return self._read(lambda db: sql_find.count(db, which))

    async def users_of(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        return self._read(lambda db: sql_sessions.users_of(db, sessions))

    # Time

    async def causes(self) -> Mapping[str, Mapping[str, int]]:
        return self._read(sql_upkeep.causes)

    async def wake(self, cause: str, by: str, limit: int = 1000) -> int:
        return await self._steps(lambda steps: sql_upkeep.wake(steps, cause, by, limit))

    async def promote(self, limit: int = 1000) -> Promoted:
        return await self._steps(lambda steps: sql_upkeep.promote(steps, limit))

    async def prune(self, keep: Keep, limit: int = 1000) -> int:
        return await self._steps(lambda steps: sql_upkeep.prune(steps, keep, limit))

    async def unheld(self, free: bool = False) -> list[tuple[str, str]]:
        found = self._read(sql_upkeep.unheld)
        if found and free:
            return await self._steps(sql_upkeep.free)
        return sql_upkeep.named(found)

    async def erase(
        self, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str] = ()
    ) -> list[str]:
        erased = await self._steps(
            lambda steps: sql_upkeep.erase(steps, ids, streams, by, documents)
        )
        with self._translated_errors():
            await self._file.shorten()
        return erased

    # Documents and log

    async def get_document(self, key: str) -> Document | None:
        return self._read(lambda db: sql_documents.get(db, key, self._file.now()))

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        def op(connection: Connection) -> tuple[int, ...] | None:
            tables = SqliteTables(connection)
            if not is_good(tables, token):
                return None
            versions = sql_documents.put(tables, puts, self._file.now())
            if versions is not None and log:
                StreamLog(tables).append(log, self._wall())
            return versions

        return await self._write(op)

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        return self._read(lambda db: sql_documents.scan(db, prefix, after, limit, self._file.now()))

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        def op(connection: Connection) -> frozenset[int]:
            return StreamLog(SqliteTables(connection)).append_good(lines, self._wall())

        return await self._write(op)

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]:
        return self._read(lambda db: StreamLog(db).read(stream, after, limit, kind))

    async def trim(self, stream: str, before: int) -> int:
        return await self._write(lambda db: StreamLog(SqliteTables(db)).trim(stream, before))

    # Signals

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        return self._file.subscribe(hint)

    def publish(self, topic: str) -> None:
        self._file.publish(topic)


class SqliteStore(SqliteVerbs):
    """A store in one file that all processes of a machine can share."""

    _file: StoreFile

    def __init__(self, path: str | Path, runtime: Runtime, permissions: int = OWNER) -> None:
        super().__init__(StoreFile(path, runtime, permissions), runtime)
        self.permissions = permissions

    # Usable without opening the store

    @property
    def path(self) -> Path:
        return Path(self._file.path)

    async def schema(self) -> tuple[int, int]:
        return schema_of(self._file.path)

    async def damage(self) -> list[str]:
        return damage_of(self._file.path)


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
        self._one_writer = threading.Lock()

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
        # A store thread that is being closed may still write while the next one begins.
        with self._one_writer:
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
                self._loop.call_soon(self._deliver, key, topic)

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

    def _deliver(self, key: object, topic: str) -> None:
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


def schema_of(path: str) -> tuple[int, int]:
    """Return the schema number of a file, 0 if there is none, and the newest known here."""
    taken = _look(path, migrations.applied) if os.path.exists(path) else {}
    return max(taken, default=0), len(migrations.steps())


def damage_of(path: str) -> list[str]:
    """Read a whole file; return the problems of its pages."""
    return _look(path, lambda connection: list(faults.problems(connection)))


def _look(path: str, op: Callable[[sqlite3.Connection], T]) -> T:
    faults.expect_file(path)
    # A read-only connection makes no checkpoint, not even when it closes.
    try:
        with closing(sqlite3.connect(faults.uri(path, "ro"), uri=True)) as connection:
            return op(connection)
    except sqlite3.Error as error:
        failure = faults.as_store_error(error, path, writing=False)
        if failure is None:
            raise
        raise failure from error
