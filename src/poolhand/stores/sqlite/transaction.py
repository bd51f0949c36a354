"""A user's own transaction in the file of a SQLite store, with jobs in it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from poolhand.contract import Added, JobBatch, Refusal
from poolhand.errors import Conflict, Unavailable, UsageError
from poolhand.runtime import Runtime
from poolhand.stores.sql.admission import StoredAdmission
from poolhand.stores.sqlite import errors as faults
from poolhand.stores.sqlite.tables import Database, steps_on

LONGEST = 5.0  # seconds; it blocks all writes, even renewing the leases of running jobs
LOOK_EVERY = 10_000  # SQLite instructions between two checks of the clock

# Actions that would end the transaction, change its settings, or reach another file.
KEPT_FROM_USERS = frozenset(
    {
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
        sqlite3.SQLITE_ATTACH,
        sqlite3.SQLITE_DETACH,
        sqlite3.SQLITE_PRAGMA,
    }
)
ASKED_BY_ALTER = "quick_check"  # a pragma that ALTER TABLE runs by itself


class SqliteTransaction:
    """A transaction that blocks all other writes until it ends.

    If it takes too long, it is rolled back, and its next step raises.
    """

    def __init__(self, file: Database, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime
        self._connection: sqlite3.Connection | None = None
        self._topics: set[str] = set()
        self._deadline = 0.0
        self._late = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        self._connection = await self._file.begin()
        self._deadline = self._runtime.monotonic() + LONGEST
        self._connection.set_progress_handler(self._is_late, LOOK_EVERY)
        self._timer = asyncio.get_running_loop().call_later(LONGEST, self._run_late)

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with self._step(lambda error: _users_fault(error, sql)) as connection:
            connection.set_authorizer(_authorize)
            try:
                return connection.execute(sql, parameters).fetchall()
            finally:
                connection.set_authorizer(None)

    async def add(self, batch: JobBatch) -> tuple[Added, ...] | Refusal:
        """Add a batch; its verdict takes effect when the transaction commits."""
        with self._step(self._own_fault) as connection:
            connection.execute("SAVEPOINT added")
            try:
                steps = steps_on(connection, self._file.now(), self._runtime.wall())
                answer = StoredAdmission(steps).take(replace(batch, owner=None))
                topics = steps.close()
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK TO added")
                    connection.execute("RELEASE added")
                raise
            connection.execute("RELEASE added")
        self._topics |= topics
        return answer

    async def commit(self) -> None:
        """Commit everything, or, if that fails, nothing."""
        with self._step(self._own_fault) as connection:
            if connection.total_changes:
                self._file.tick(connection)
            connection.set_progress_handler(None, 0)
            try:
                connection.execute("COMMIT")
            finally:
                self._end()
        for topic in sorted(self._topics):
            self._file.publish(topic)

    async def roll_back(self) -> None:
        """Roll everything back; a second call does nothing."""
        self._end()

    @contextmanager
    def _step(self, meaning: Callable[[Exception], Exception]) -> Iterator[sqlite3.Connection]:
        """Yield the connection for one step; translate the errors it raises.

        The transaction ends if the disk failed, its time is up, or SQLite has rolled it back.
        """
        connection = self._usable()
        try:
            yield connection
        except Exception as error:
            if faults.code_of(error) == sqlite3.SQLITE_INTERRUPT:
                self._run_late()
                raise self._over() from error
            failure = self._file.failure(error)
            if failure is not error:
                self._end()
            else:
                failure = meaning(error)
            self._end_if_undone()
            if failure is error:
                raise
            raise failure from error
        if self._end_if_undone():
            raise self._over()

    def _usable(self) -> sqlite3.Connection:
        self._file.expect_own()
        if self._is_late():
            self._run_late()
        if self._connection is None:
            raise self._over()
        return self._connection

    def _over(self) -> Unavailable:
        why = f"took longer than {LONGEST:g} s and was rolled back" if self._late else "is over"
        return Unavailable(
            f"this transaction on {self._file.path} {why}; no other process can write while one"
            " is open, so prepare its data before"
        )

    def _own_fault(self, error: Exception) -> Exception:
        return faults.translate(error, self._file.path)

    def _is_late(self) -> bool:
        return self._runtime.monotonic() >= self._deadline

    def _run_late(self) -> None:
        self._late = self._late or self._connection is not None
        self._end()

    def _end_if_undone(self) -> bool:
        """End a transaction that a statement has rolled back, as `INSERT OR ROLLBACK` may."""
        if self._connection is None or self._connection.in_transaction:
            return False
        self._end()
        return True

    def _end(self) -> None:
        """Release everything; uncommitted changes are rolled back."""
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._file.end(connection)


def _authorize(action: int, name: str | None, *_: str | None) -> int:
    if action in KEPT_FROM_USERS and name != ASKED_BY_ALTER:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _users_fault(error: Exception, sql: object) -> Exception:
    """Translate an error about a user's statement."""
    if faults.code_of(error) == sqlite3.SQLITE_AUTH:
        return UsageError(
            "this statement would end the transaction: leave the block to commit, or raise to roll"
            " back"
        )
    text = f"{error}: {sql}".encode(errors="backslashreplace").decode()
    return (Conflict if isinstance(error, sqlite3.IntegrityError) else UsageError)(text)
