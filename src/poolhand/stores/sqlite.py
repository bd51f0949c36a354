"""The SQLite store: one file that all processes of a machine may share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from poolhand.contract import (
    Added,
    Batch,
    Change,
    Claim,
    Extended,
    Filter,
    Hint,
    Lease,
    Line,
    Owner,
    Page,
    PoolRow,
    Promoted,
    Put,
    Refusal,
    Replaced,
    Stored,
    Wanted,
    Written,
)
from poolhand.rules import audit
from poolhand.rules.job import Status
from poolhand.rules.spec import PoolSpec
from poolhand.runtime import Runtime
from poolhand.stores import faults, sql_documents, sql_find, sql_upkeep, survey
from poolhand.stores.file import StoreFile
from poolhand.stores.sql_intake import Intake
from poolhand.stores.sql_leases import Leases, all_leases
from poolhand.stores.sql_log import StreamLog
from poolhand.stores.sql_pools import IN_ORDER, pool_row
from poolhand.stores.sql_steps import Steps
from poolhand.stores.sql_tables import Tables
from poolhand.stores.sqlite_steps import steps_on
from poolhand.stores.sqlite_tables import SqliteTables
from poolhand.stores.sqlite_transaction import SqliteTransaction

T = TypeVar("T")

GOOD = "SELECT 1 FROM poolhand_claims WHERE token = ? AND stuck = 0"


class SqliteStore:
    """A whole store in one file; its rows are placed by the desk that places those in memory."""

    def __init__(self, path: str | Path, runtime: Runtime) -> None:
        self._file = StoreFile(path, runtime)
        self._runtime = runtime
        self._wall = runtime.wall

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()

    async def check(self) -> None:
        await self._file.check()

    # Told without being open

    @property
    def path(self) -> Path:
        return Path(self._file.path)

    async def schema(self) -> tuple[int, int]:
        return survey.schema_of(self._file.path)

    async def damage(self) -> list[str]:
        return survey.damage_of(self._file.path)

    async def _steps(self, act: Callable[[Steps], T]) -> T:
        """Take steps that are written together."""
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
        """Let no error out that is not one of ours."""
        try:
            yield
        except Exception as error:
            told = faults.at_the_wall(error, self._file.path)
            if told is error:
                raise
            raise told from error

    # Pools

    async def declare(self, spec: PoolSpec) -> None:
        def act(steps: Steps) -> None:
            pool = steps.pools.named(spec.name)
            if pool is None:
                steps.act(audit.CREATE, steps.pools.open(spec), "", "")
            elif pool.spec != spec:
                pool = steps.pools.declare(pool, spec)
                steps.freed.add(pool.no)
                steps.welcome(pool)

        await self._steps(act)

    async def pools(self) -> list[PoolRow]:
        return self._read(lambda db: [pool_row(row) for row in db.execute(IN_ORDER)])

    async def pause(self, pool: str, paused: bool, by: str) -> None:
        def act(steps: Steps) -> None:
            kept = steps.pools.known(pool)
            steps.act(audit.PAUSE if paused else audit.RESUME, kept, by, "")
            kept.paused = paused
            steps.freed.add(kept.no)
            steps.welcome(kept)

        await self._steps(act)

    async def resize(self, pool: str, slots: int | None, by: str) -> None:
        def act(steps: Steps) -> None:
            kept = steps.pools.known(pool)
            steps.act(audit.RESIZE, kept, by, "" if slots is None else str(slots))
            kept.resized = slots
            kept.resize(kept.spec.slots if slots is None else slots, steps.books.now)
            steps.freed.add(kept.no)
            steps.welcome(kept)

        await self._steps(act)

    # Jobs

    async def add(self, batches: Sequence[Batch]) -> list[tuple[Added, ...] | Refusal]:
        def act(steps: Steps) -> list[tuple[Added, ...] | Refusal]:
            intake = Intake(steps)
            owners = {batch.owner for batch in batches}
            numbers = {owner: steps.owner(owner) for owner in owners}
            return [intake.take(batch, numbers[batch.owner]) for batch in batches]

        return await self._steps(act)

    async def begin(self) -> SqliteTransaction:
        transaction = SqliteTransaction(self._file, self._runtime)
        await transaction.begin()
        return transaction

    async def unpark(self, ids: Sequence[str]) -> list[str]:
        def act(steps: Steps) -> list[str]:
            rows = [row for row in map(steps.books.row_named, ids) if row is not None]
            came_in = [row.job.id for row in rows if not row.parked]
            steps.unpark(*dict.fromkeys(row for row in rows if row.parked))
            return came_in

        return await self._steps(act)

    async def claim(self, wanted: Wanted) -> list[Claim]:
        return await self._steps(lambda steps: Leases(steps).claim(wanted))

    async def replace(self, changes: Sequence[Change], wanted: Wanted | None = None) -> Replaced:
        def act(steps: Steps) -> Replaced:
            leases = Leases(steps)
            made = leases.change_all(changes)
            return Replaced(made, () if wanted is None else tuple(leases.claim(wanted)))

        return await self._steps(act)

    async def release(self, tokens: Sequence[int]) -> None:
        await self._steps(lambda steps: Leases(steps).release(tokens))

    async def cancel(self, ids: Sequence[str], by: str) -> list[Stored | None]:
        def act(steps: Steps) -> list[Stored | None]:
            rows = [steps.cancel(id, by) for id in ids]
            return [None if row is None else row.stored() for row in rows]

        return await self._steps(act)

    # Owners

    async def enroll(self, owner: Owner) -> None:
        await self._steps(lambda steps: Leases(steps).enroll(owner))

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        return await self._steps(lambda steps: Leases(steps).extend(owner, tokens))

    async def leases(self) -> list[Lease]:
        return self._read(all_leases)

    async def bury(self, owner: str, renewal: int) -> list[Claim]:
        return await self._steps(lambda steps: Leases(steps).bury(owner, renewal))

    # What can be seen

    async def get(self, ids: Sequence[str]) -> list[Stored | None]:
        return self._read(lambda db: sql_find.get(db, ids))

    async def brief(self, id: str) -> bytes | None:
        return self._read(lambda db: sql_find.brief(db, id))

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> Page:
        return self._read(lambda db: sql_find.find(db, which, after, limit))

    async def count(self, which: Filter) -> Mapping[Status, int]:
        return self._read(lambda db: sql_find.count(db, which))

    # Time

    async def promote(self, limit: int = 1000) -> Promoted:
        return await self._steps(lambda steps: sql_upkeep.promote(steps, limit))

    async def prune(self, keep: float, limit: int = 1000) -> int:
        return await self._steps(lambda steps: sql_upkeep.prune(steps, keep, limit))

    # Documents and log

    async def get_document(self, key: str) -> tuple[bytes, int] | None:
        return self._read(lambda db: sql_documents.get(db, key, self._file.now()))

    async def put(self, puts: Sequence[Put]) -> bool:
        return await self._write(
            lambda db: sql_documents.put(SqliteTables(db), puts, self._file.now())
        )

    async def delete(self, key: str, expect: int | None = None) -> bool:
        return await self._write(
            lambda db: sql_documents.delete(SqliteTables(db), key, expect, self._file.now())
        )

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        return self._read(lambda db: sql_documents.scan(db, prefix, after, limit, self._file.now()))

    async def append(self, lines: Sequence[Line], token: int | None = None) -> bool:
        def op(connection: Connection) -> bool:
            if token is not None and connection.execute(GOOD, (token,)).fetchone() is None:
                return False
            StreamLog(SqliteTables(connection)).append(lines, self._wall())
            return True

        return await self._write(op)

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[Written]:
        return self._read(lambda db: StreamLog(db).read(stream, after, limit, kind))

    async def trim(self, stream: str, before: int) -> int:
        return await self._write(lambda db: StreamLog(SqliteTables(db)).trim(stream, before))

    # Signals

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        return self._file.subscribe(hint)

    def publish(self, topic: str) -> None:
        self._file.publish(topic)
