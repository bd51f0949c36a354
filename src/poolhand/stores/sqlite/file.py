"""The file of a SQLite store: the lock between processes, shared commits, the store's clock.

Callers of one process share a commit, each isolated by a savepoint. Every commit, checkpoint and
close is made under a lock between processes: many versions of SQLite can damage a file if one
connection makes a checkpoint while another commits. Nothing is awaited under that lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from poolhand.contract import Hint
from poolhand.errors import Corrupt, ReadOnly, StoreError, Unavailable, UsageError
from poolhand.runtime import Runtime
from poolhand.stores.sql import migrations
from poolhand.stores.sqlite import errors as faults
from poolhand.stores.sqlite.lock import LOCK_SECONDS, FileLock, LockPatience
from poolhand.stores.sqlite.place import OWNER, FilePlace, FileReplaced, LogGone, Rights, Wal
from poolhand.stores.sqlite.tables import Op
from poolhand.stores.sqlite.wake import Wake

T = TypeVar("T")
# The future of an op, and what the op returned or raised.
_Outcome = tuple["asyncio.Future[object]", object, Exception | None]

STATEMENTS = 256
CACHE_KIB = 16_000
BUSY_SECONDS = 0.02  # readers wait only while the log of a dead process is being recovered
BUSY_READS = 50

CLOCK = """
CREATE TABLE IF NOT EXISTS poolhand_clock (
    id INTEGER PRIMARY KEY CHECK (id = 1), boot TEXT NOT NULL, offset REAL NOT NULL,
    latest REAL NOT NULL
)
"""
SET_CLOCK = "INSERT OR REPLACE INTO poolhand_clock VALUES (1, ?, ?, ?)"
TICK = "UPDATE poolhand_clock SET latest = max(latest, ?)"


class StoreFile:
    """One file, opened by one process, used from the event loop that opened it.

    `read_only` is the reason why nothing can be written, until a write succeeds again.
    """

    def __init__(self, path: str | Path, runtime: Runtime, permissions: int = OWNER) -> None:
        # Resolved: processes that reach the file by different links must use the same lock.
        self.path = os.path.realpath(path)
        self.lock_seconds = LOCK_SECONDS
        self.read_only: StoreError | None = None
        self._runtime = runtime
        self._rights = Rights(self.path, permissions)
        self._lock = FileLock(f"{self.path}-lock", self._rights.make)
        self._wake = Wake(self.path, runtime.salt(), self._rights)
        self._wal = Wal(f"{self.path}-wal")
        self._steps: tuple[migrations.Migration, ...] = ()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._place = FilePlace(self.path, self._lock.path)
        self._replaced: FileReplaced | None = None
        self._offset = 0.0
        self._closing = False
        self._waiting: list[tuple[Op[object], asyncio.Future[object]]] = []
        self._patience: LockPatience | None = None
        self._signals: dict[str, None] = {}
        self._damage: str | None = None
        self._holder = self._lock.path
        self._begun: dict[sqlite3.Connection, FileLock] = {}

    async def open(self) -> None:
        """Connect, create the file if it is missing, and migrate its schema."""
        if self._connection is not None:
            return
        self._steps = migrations.steps()
        self._holder = self._lock.path
        faults.expect_file(self.path)
        try:
            await self._connect_in_time(self._new_patience())
            self._wake.open()
        except BaseException as error:
            self._disconnect()
            self._lock.close()
            self._wake.close()
            if isinstance(error, OSError):
                raise faults.of_system(error, self.path) from error
            raise
        self._lock.release()
        self._closing = False
        self._process = os.getpid()

    async def close(self) -> None:
        """Write pending ops and close the file; a second call does nothing."""
        if self._process != os.getpid() or (self._connection is None and self._replaced is None):
            # Closing what the parent process has open would release the parent's locks.
            return
        self._closing = True
        try:
            if self._waiting:
                await asyncio.wait([future for _, future in self._waiting])
            locked = await self._lock.wait(self._new_patience())
        except OSError:
            locked = False
        except BaseException:
            # A cancelled close has closed nothing: the file is still open.
            self._closing = False
            raise
        try:
            # Without the lock: its holder has the file open, so closing makes no checkpoint.
            self._disconnect(shorten=locked and self._may_work_off())
        finally:
            self._lock.close()
            self._wake.close()

    async def write(self, op: Op[T]) -> T:
        """Run `op` in a commit shared with all pending ops; return its result.

        If `op` raises, only its own changes are undone; if the commit fails, every caller that
        shared it gets the StoreError. `op` awaits nothing and neither begins nor ends a
        transaction.
        """
        self._expect_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._waiting.append((op, future))
        if self._patience is None:
            self._patience = self._new_patience()
            loop.call_soon(self._flush)
        return cast(T, await future)

    async def begin(self) -> sqlite3.Connection:
        """Begin a transaction on a connection of its own, under a lock of its own.

        No other write is made until the connection is passed to `end`.
        """
        self._expect_open()
        lock, patience = FileLock(self._lock.path, self._rights.make), self._new_patience()
        try:
            while (connection := self._begin(lock, patience, self._another)) is None:
                pause = lock.pause(patience)
                if pause is None:
                    raise self._held()
                await asyncio.sleep(pause)
                self._expect_open()
        except BaseException as error:
            lock.close()
            failure = self.failure(error) if isinstance(error, Exception) else error
            if failure is error:
                raise
            raise failure from error
        self._begun[connection] = lock
        return connection

    def end(self, connection: sqlite3.Connection) -> None:
        """End a transaction; uncommitted changes are rolled back."""
        lock = self._begun.pop(connection)
        try:
            # Under the lock, like every close.
            connection.close()
        finally:
            lock.close()

    def read(self, op: Op[T]) -> T:
        """Run `op`, which only reads, on one snapshot of what is committed."""
        connection = self._usable()
        if connection.in_transaction:
            return op(connection)
        for _ in range(BUSY_READS):
            try:
                return self._read(connection, op)
            except sqlite3.Error as error:
                if faults.is_busy(error):
                    continue
                failure = self._translated(error, writing=False)
                if failure is error:
                    raise
                raise failure from error
        raise Unavailable(f"{self.path}: another program blocks reading it; try again")

    def now(self) -> float:
        """Return the store's time in seconds; it never goes back, whatever a clock says.

        Within one boot of the machine no change of its wall clock affects it.
        """
        return self._runtime.monotonic() + self._offset

    def tick(self, connection: sqlite3.Connection) -> None:
        """Store the current time in the transaction that is being committed."""
        connection.execute(TICK, (self.now(),))

    def signal(self, topic: str) -> None:
        """Publish a topic after the commit of the calling op, unless the op is rolled back."""
        self._signals[topic] = None

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the loop for every topic, from this process or another."""
        return self._wake.subscribe(hint)

    def publish(self, topic: str) -> None:
        """Publish a topic to all processes on the file; never raise, never wait."""
        self._wake.publish((topic,))

    async def check(self) -> None:
        """Try a write: return if the file can be written to now, else raise what a write would."""

        def touch(connection: sqlite3.Connection) -> None:
            connection.execute(TICK, (0.0,))

        await self.write(touch)

    async def shorten(self) -> None:
        """Checkpoint the log and truncate it: it holds old versions of pages.

        Raises Unavailable if another program prevents that for long by reading.
        """
        self._expect_open()
        patience = self._new_patience()
        while not await self._cut_log(patience):
            pause = self._lock.pause(patience)
            if pause is None:
                raise Unavailable(
                    f"{self.path}: the erased data is gone from it, but {self._wal.path} still "
                    "holds pages from before, as another program reads the file; end that, and the "
                    "next erase, or the last close, removes them"
                )
            await asyncio.sleep(pause)

    async def _cut_log(self, patience: LockPatience) -> bool:
        if not await self._lock.wait(patience):
            raise self._held()
        try:
            self._wal.shorten(self._usable())
        finally:
            self._lock.release()
        return self._wal.size() == 0

    def failure(self, error: BaseException) -> Exception:
        """Return the error to raise to the caller."""
        if isinstance(error, sqlite3.Error):
            return self._translated(error)
        if isinstance(error, OSError):
            return faults.of_system(error, self.path)
        if isinstance(error, StopIteration) or not isinstance(error, Exception):
            # A future accepts neither of them.
            failure = Unavailable(f"{self.path}: a write failed with {error!r}")
            failure.__cause__ = error
            return failure
        return error

    def expect_own(self) -> None:
        """Raise if the file was opened by another process, of which this one is a fork."""
        if self._process != os.getpid():
            raise UsageError(
                f"{self.path} was opened by process {self._process}, of which this one"
                f" ({os.getpid()}) is a fork: open a store of its own after the fork"
            )

    def _expect_open(self) -> None:
        self._usable()
        if self._closing:
            raise Unavailable(f"{self.path} is being closed")

    def _usable(self) -> sqlite3.Connection:
        if self._replaced is not None:
            raise _own(self._replaced)
        if self._connection is None:
            raise Unavailable(f"{self.path} is not open")
        self.expect_own()
        return self._connection

    async def _connect_in_time(self, patience: LockPatience) -> None:
        """Take the lock and connect; wait for programs that write without the lock."""
        while await self._lock.wait(patience):
            try:
                return self._connect()
            except Unavailable as error:
                cause = error.__cause__
                if not (isinstance(cause, sqlite3.Error) and faults.is_busy(cause)):
                    raise
                self._disconnect()
                self._lock.release()
                pause = self._lock.pause(patience)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
        raise self._held()

    def _connect(self) -> None:
        self._expect_no_remains()
        self._place.expect_sound()
        self._damage = self._replaced = None
        try:
            used = self._wal.size() > 0
            if used:
                # Inspecting a file that is then refused must not checkpoint its log.
                with contextlib.closing(faults.reader(self.path)) as reader:
                    self._inspect(reader)
            # SQLite creates its log and the log's index with the permissions of the file.
            self._rights.make(self.path)
            connection = self._connection = sqlite3.connect(
                self.path,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                cached_statements=STATEMENTS,
            )
            if not used:
                self._inspect(connection)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise Unavailable(
                    f"{self.path}: this kind of disk cannot share a file between processes (journal"
                    f" mode {mode}); keep it on a local disk"
                )
            _tune(connection)
            migrations.migrate(connection, self._steps, self.path, self._runtime.wall())
            self._set_clock(connection)
            self._wal.open()
            self._place.remember(connection)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _another(self) -> sqlite3.Connection:
        """Connect once more to the open file; do not create it if it is gone."""
        connection = sqlite3.connect(
            faults.uri(self.path, "rw"), timeout=BUSY_SECONDS, isolation_level=None, uri=True
        )
        try:
            # Before the first read: SQLite deletes the log of a file that it considers new.
            self._expect_in_place()
            _tune(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _inspect(self, connection: sqlite3.Connection) -> None:
        """Raise if a file is damaged or too new, before anything in it is changed."""
        faults.look(connection, self.path)
        migrations.inspect(connection, self._steps, self.path)

    def _disconnect(self, *, shorten: bool = False) -> None:
        connection, self._connection = self._connection, None
        self._wal.close()
        if connection is None:
            return
        if self._damage is not None:
            # The last connection to close checkpoints the log, unless it is read-only.
            with contextlib.closing(faults.reader(self.path)):
                connection.close()
            return
        if shorten:
            self._wal.shorten(connection)
        connection.close()

    def _may_work_off(self) -> bool:
        """Return whether the content of the log belongs into the file."""
        try:
            self._expect_in_place()
        except LogGone:
            # Only if no other process has created a new log.
            return not self._place.has_log
        except StoreError:
            return False
        return True

    def _expect_no_remains(self) -> None:
        """Raise if the file is gone but its log is not: SQLite would delete the log."""
        if self._wal.size() and not (os.path.exists(self.path) and os.path.getsize(self.path)):
            raise Corrupt(
                f"{self.path} is missing or empty, but {self._wal.path} still holds changes made to"
                " it; nothing was changed. Put the file back, or, to begin with an empty one,"
                f" remove {self._wal.path}"
            )

    def _set_clock(self, connection: sqlite3.Connection) -> None:
        # Stored as the machine has it: a process in a time namespace reads another clock.
        ahead = self._runtime.clock_ahead()
        boot, monotonic = self._runtime.identity()[1], self._runtime.monotonic() - ahead
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(CLOCK)
            row = connection.execute("SELECT boot, offset, latest FROM poolhand_clock").fetchone()
            if row is None or row[0] != boot or monotonic + row[1] < row[2]:
                latest = self._runtime.wall().timestamp()
                if row is not None:
                    latest = max(latest, row[2])
                row = (boot, latest - monotonic, latest)
                connection.execute(SET_CLOCK, row)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self._offset = row[1] - ahead

    def _flush(self) -> None:
        """Commit all pending ops if the lock is free; else try again soon."""
        assert self._patience is not None
        if not self._waiting:
            self._patience = None
            return
        try:
            if self._begin(self._lock, self._patience, self._usable) is None:
                pause = self._lock.pause(self._patience)
                if pause is None:
                    raise self._held()
                asyncio.get_running_loop().call_later(pause, self._flush)
                return
        except BaseException as error:
            self._fail(self._taken(), self.failure(error))
            if not isinstance(error, Exception):
                raise
            return
        group, connection = self._taken(), self._usable()
        before = connection.total_changes
        try:
            outcomes = self._run(group, connection)
        except BaseException as error:
            self._signals.clear()
            _roll_back(connection)
            if faults.wants_room(error):
                # The log is checkpointed only after a commit, and a log that cannot grow gets none.
                self._wal.shorten(connection)
                self._place.note(connection)
            self._fail(group, self.failure(error))
            if not isinstance(error, Exception):
                raise
        else:
            # Report what was committed, whatever happens to the log.
            self._settle(outcomes)
            if connection.total_changes != before and self._wal.tidy(connection):
                self._place.note(connection)
        finally:
            self._lock.release()

    def _begin(
        self, lock: FileLock, patience: LockPatience, connect: Callable[[], sqlite3.Connection]
    ) -> sqlite3.Connection | None:
        """Take the lock and begin; None while another process holds either."""
        if self._damage is not None:
            raise Corrupt(f"{self.path} is damaged; no new jobs are accepted. {self._damage}")
        self._holder = lock.path
        if not lock.take(patience):
            return None
        connection = None
        try:
            self._expect_in_place()
            connection = connect()
            connection.execute("BEGIN IMMEDIATE")
            self._expect_schema(connection)
        except BaseException as error:
            if connection is not None:
                _roll_back(connection)
                if connection is not self._connection:
                    connection.close()
            lock.release()
            if isinstance(error, sqlite3.OperationalError) and faults.is_busy(error):
                self._holder = self.path
                return None
            raise
        return connection

    def _run(
        self,
        group: list[tuple[Op[object], asyncio.Future[object]]],
        connection: sqlite3.Connection,
    ) -> list[_Outcome]:
        execute = connection.execute
        outcomes: list[_Outcome] = []
        before = connection.total_changes
        for op, future in group:
            if future.done():
                continue
            signals = len(self._signals)
            execute("SAVEPOINT op")
            try:
                value = op(connection)
            except Exception as error:
                while len(self._signals) > signals:
                    self._signals.popitem()
                if not connection.in_transaction:
                    # Some disk errors end the whole transaction.
                    raise
                execute("ROLLBACK TO op")
                outcomes.append((future, None, error))
            else:
                outcomes.append((future, value, None))
            execute("RELEASE op")
        changed = connection.total_changes != before
        if changed:
            self.tick(connection)
        execute("COMMIT")
        if changed:
            self.read_only = None
        return outcomes

    def _settle(self, outcomes: list[_Outcome]) -> None:
        if self._signals:
            self._wake.publish(self._signals)
            self._signals.clear()
        for future, value, error in outcomes:
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(self.failure(error))

    def _taken(self) -> list[tuple[Op[object], asyncio.Future[object]]]:
        group, self._waiting, self._patience = self._waiting, [], None
        return group

    def _fail(
        self, group: list[tuple[Op[object], asyncio.Future[object]]], error: Exception
    ) -> None:
        for _, future in group:
            if not future.done():
                future.set_exception(_own(error))

    def _translated(self, error: sqlite3.Error, *, writing: bool = True) -> Exception:
        failure = faults.as_store_error(error, self.path, writing=writing)
        if failure is None:
            return error
        if isinstance(failure, ReadOnly):
            self.read_only = failure
        if isinstance(failure, Corrupt) and self._connection is not None:
            if self._damage is None:
                _roll_back(self._connection)
                self._damage = faults.survey(self._connection, self.path)
            failure = Corrupt(f"{failure}. {self._damage}")
        failure.__cause__ = error
        return failure

    def _read(self, connection: sqlite3.Connection, op: Op[T]) -> T:
        before = connection.total_changes
        connection.execute("BEGIN")
        try:
            value = op(connection)
        finally:
            _roll_back(connection)
        assert connection.total_changes == before, "a read has written"
        return value

    def _expect_in_place(self) -> None:
        """Raise if the files are not those that were opened; call it only under the lock."""
        try:
            self._place.check(self._connection)
        except FileReplaced as replaced:
            # Staying would mix two contents; so would a later process that finds the log.
            self._replaced = replaced
            self._place.set_log_aside()
            self._disconnect()
            raise

    def _expect_schema(self, connection: sqlite3.Connection) -> None:
        """Raise if a newer poolhand has migrated the file meanwhile."""
        (needs,) = connection.execute(migrations.OLDEST_CODE).fetchone()
        if needs is not None and needs > len(self._steps):
            raise migrations.too_new(self.path, needs, len(self._steps))

    def _new_patience(self) -> LockPatience:
        return LockPatience(self._runtime.monotonic, self.lock_seconds)

    def _held(self) -> Unavailable:
        return Unavailable(
            f"{self.path}: another process has held {self._holder} for {self.lock_seconds:g} s;"
            " perhaps it is suspended. Resume or end it, then try again"
        )


def _tune(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA foreign_keys = OFF")
    # Deleted content is overwritten, so that no bytes of erased data are left.
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")


def _roll_back(connection: sqlite3.Connection) -> None:
    # Suppressed: the first error matters, and must reach the waiting callers.
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _own(error: Exception) -> Exception:
    """Return a copy for one caller, so that each raises it with its own traceback."""
    if not isinstance(error, StoreError):
        return error
    own = type(error)(*error.args)
    own.__cause__ = error.__cause__
    return own
