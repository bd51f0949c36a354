"""The SQLite store: one file that all processes of a machine can share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from poolhand.contract import (
    Added,
    Change,
    Claim,
    ClaimRequest,
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
from poolhand.errors import Unsupported
from poolhand.rules.job import Status
from poolhand.rules.queue.pool_spec import PoolSpec
from poolhand.rules.retention import Keep
from poolhand.runtime import Runtime
from poolhand.stores.sql import documents as sql_documents
from poolhand.stores.sql import find as sql_find
from poolhand.stores.sql import upkeep as sql_upkeep
from poolhand.stores.sql import users as sql_users
from poolhand.stores.sql import verbs as sql_verbs
from poolhand.stores.sql.claims import StoredLeases, all_leases
from poolhand.stores.sql.log import StreamLog, is_good
from poolhand.stores.sql.queue.pools import pool_rows
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.tables import Tables
from poolhand.stores.sqlite import errors as faults
from poolhand.stores.sqlite import inspect as survey
from poolhand.stores.sqlite.database import Database
from poolhand.stores.sqlite.file import StoreFile
from poolhand.stores.sqlite.rights import OWNER
from poolhand.stores.sqlite.steps import steps_on
from poolhand.stores.sqlite.tables import SqliteTables
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
        with self._wall_between():
            return await self._file.write(op)

    def _read(self, op: Callable[[Tables], T]) -> T:
        with self._wall_between():
            return self._file.read(lambda connection: op(SqliteTables(connection)))

    @contextmanager
    def _wall_between(self) -> Iterator[None]:
        """Translate errors into poolhand's own."""
        try:
            yield
        except Exception as error:
            told = faults.at_the_wall(error, self._file.path)
            if told is error:
                raise
            raise told from error

    # Pools

    async def declare(self, spec: PoolSpec) -> None:
        await self._steps(lambda steps: sql_verbs.declare(steps, spec))

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        return self._read(lambda tables: pool_rows(tables, names))

    async def pause(self, pool: str, paused: bool, by: str) -> None:
        await self._steps(lambda steps: sql_verbs.pause(steps, pool, paused, by))

    async def resize(self, pool: str, slots: int | None, by: str) -> None:
        await self._steps(lambda steps: sql_verbs.resize(steps, pool, slots, by))

    # Jobs

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        return await self._steps(lambda steps: sql_verbs.add(steps, batches))

    async def begin(self) -> SqliteTransaction:
        transaction = SqliteTransaction(self._file, self._runtime)
        await transaction.begin()
        return transaction

    async def insertion(self, orders: Sequence[JobRequest]) -> UserInsertion:
        raise Unsupported(
            "submit_in: a SQLite file has one writer at a time; write to it within `async with "
            "app.transaction()`"
        )

    async def unpark(self, ids: Sequence[str]) -> list[str]:
        return await self._steps(lambda steps: sql_verbs.unpark(steps, ids))

    async def claim(self, wanted: ClaimRequest) -> list[Claim]:
        return await self._steps(lambda steps: StoredLeases(steps).claim(wanted))

    async def replace(
        self, changes: Sequence[Change], wanted: ClaimRequest | None = None
    ) -> ReplacedJob:
        return await self._steps(lambda steps: sql_verbs.replace(steps, changes, wanted))

    async def release(self, tokens: Sequence[int]) -> None:
        await self._steps(lambda steps: StoredLeases(steps).release(tokens))

    async def cancel(self, ids: Sequence[str], by: str) -> list[Stored | None]:
        asked = [(id, by) for id in ids]
        return await self._steps(lambda steps: sql_verbs.cancel(steps, asked))

    # Owners

    async def enroll(self, owner: Owner) -> None:
        await self._steps(lambda steps: StoredLeases(steps).enroll(owner))

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        return await self._steps(lambda steps: StoredLeases(steps).extend(owner, tokens))

    async def leases(self) -> list[Lease]:
        return self._read(all_leases)

    async def bury(self, owner: str, renewal: int) -> list[Claim]:
        return await self._steps(lambda steps: StoredLeases(steps).bury(owner, renewal))

    # Reads

    async def get(self, ids: Sequence[str]) -> list[Stored | None]:
        return self._read(lambda db: sql_find.get(db, ids))

    async def brief(self, id: str) -> bytes | None:
        return self._read(lambda db: sql_find.brief(db, id))

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> JobPage:
        return self._read(lambda db: sql_find.find(db, which, after, limit))

    async def count(self, which: Filter) -> Mapping[Status, int]:
        return self._read(lambda db: sql_find.count(db, which))

    async def users_of(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        return self._read(lambda db: sql_users.users_of(db, sessions))

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
        with self._wall_between():
            await self._file.shorten()
        return erased

    # Documents and log

    async def get_document(self, key: str) -> tuple[bytes, int] | None:
        return self._read(lambda db: sql_documents.get(db, key, self._file.now()))

    async def expires_in(self, key: str) -> float | None:
        return self._read(lambda db: sql_documents.expires_in(db, key, self._file.now()))

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

    async def delete(self, key: str, expect: int | None = None) -> bool:
        return await self._write(
            lambda db: sql_documents.delete(SqliteTables(db), key, expect, self._file.now())
        )

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
        return survey.schema_of(self._file.path)

    async def damage(self) -> list[str]:
        return survey.damage_of(self._file.path)
