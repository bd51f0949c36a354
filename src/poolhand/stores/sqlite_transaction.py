"""A transaction of the user's own in the file of a SQLite store, and the jobs that go with it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from poolhand.contract import Added, Batch, Refusal
from poolhand.errors import Conflict, Unavailable, UsageError
from poolhand.runtime import Runtime
from poolhand.stores import faults
from poolhand.stores.lock import LOCK_SECONDS, FileLock, Patience
from poolhand.stores.sqlite_intake import Intake
from poolhand.stores.sqlite_steps import Steps

# Statements that would end the transaction, or change how it is kept. Comments may go before.
_ENDS = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
    r"(?:begin|commit|end|rollback|savepoint|release|pragma|vacuum|attach|detach)\b",
    re.IGNORECASE | re.DOTALL,
)
LONGEST = 5.0  # nobody else can write meanwhile, not even the leases of running jobs


class SharedFile(Protocol):
    """What is needed of the file."""

    path: str

    def now(self) -> float: ...

    def publish(self, topic: str) -> None: ...


class SqliteTransaction:
    """Holds the file's lock from its begin to its end, on a connection of its own.

    One that takes too long is rolled back, and says so at the next step.
    """

    def __init__(self, file: SharedFile, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime
        # A lock of its own: the store of this process has to wait as others do.
        self._lock = FileLock(f"{file.path}-lock")
        self._connection: sqlite3.Connection | None = None
        self._topics: set[str] = set()
        self._late = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        if not await self._lock.wait(Patience(self._runtime.monotonic, LOCK_SECONDS)):
            self._lock.close()
            raise Unavailable(
                f"{self._file.path}: another process holds it for longer than {LOCK_SECONDS:g} s,"
                " and may be stopped; try again"
            )
        try:
            connection = sqlite3.connect(self._file.path, isolation_level=None)
            self._connection = connection
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._end()
            raise self._fault(error) from error
        self._timer = asyncio.get_running_loop().call_later(LONGEST, self._run_late)

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        connection = self._usable()
        if _ENDS.match(sql):
            raise UsageError("leave the block to commit, or raise to roll back; not by statement")
        try:
            return connection.execute(sql, parameters).fetchall()
        except sqlite3.IntegrityError as error:
            raise Conflict(f"{error}: {sql}") from error
        except (sqlite3.ProgrammingError, sqlite3.OperationalError) as error:
            if connection.in_transaction:
                raise UsageError(f"{error}: {sql}") from error
            self._end()
            raise self._fault(error) from error

    async def add(self, batch: Batch) -> tuple[Added, ...] | Refusal:
        """Take a batch in, if the transaction commits; its verdict holds then."""
        connection = self._usable()
        connection.execute("SAVEPOINT batch")
        try:
            steps = Steps(connection, self._file.now(), self._wall())
            answer = Intake(steps).take(batch, None)
            self._topics |= steps.close()
        except BaseException:
            connection.execute("ROLLBACK TO batch")
            connection.execute("RELEASE batch")
            raise
        connection.execute("RELEASE batch")
        return answer

    async def commit(self) -> None:
        connection = self._usable()
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._fault(error) from error
        finally:
            self._end()
        for topic in sorted(self._topics):
            self._file.publish(topic)

    async def roll_back(self) -> None:
        self._end()

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            why = f"took longer than {LONGEST:g} s and was rolled back" if self._late else "is over"
            raise Unavailable(
                f"this transaction on {self._file.path} {why}; nobody else can write while one is"
                " open, so prepare what it needs before"
            )
        return self._connection

    def _wall(self) -> datetime:
        return self._runtime.wall()

    def _fault(self, error: sqlite3.Error) -> Exception:
        return faults.as_store_error(error, self._file.path) or error

    def _run_late(self) -> None:
        self._late = self._connection is not None
        self._end()

    def _end(self) -> None:
        """Let go of everything; what was not committed is gone."""
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            # Under the lock, as every close.
            connection.close()
        self._lock.release()
        self._lock.close()
