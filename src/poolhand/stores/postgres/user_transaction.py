"""A user's own transaction in the database of a PostgreSQL store, with jobs in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import asyncpg
from msgspec.structs import replace

from poolhand.contract import Added, JobBatch, Refusal
from poolhand.errors import Conflict, Unavailable, UsageError
from poolhand.stores.postgres import needs as postgres_needs
from poolhand.stores.postgres.bridge import run
from poolhand.stores.postgres.pools import Unlocked
from poolhand.stores.postgres.server import errors as faults
from poolhand.stores.postgres.server.clock import ClockStepped
from poolhand.stores.postgres.server.connections import RawConnection, ServerConnection, sever
from poolhand.stores.postgres.server.notify import PostgresSignals
from poolhand.stores.postgres.tables import Outdated, PostgresTables
from poolhand.stores.postgres.transaction import ANEW, CommittedWork, Transactions
from poolhand.stores.sql import verbs as sql_verbs
from poolhand.stores.sql.steps import Steps

T = TypeVar("T")

LONGEST = 5.0  # seconds; no other transaction can use the pools of its jobs meanwhile


class PostgresTransaction:
    """Statements and batches on one connection; each step is all or nothing.

    If it takes too long, it is rolled back, and its next step raises.
    """

    def __init__(
        self, link: ServerConnection, turns: Transactions, signals: PostgresSignals
    ) -> None:
        self._link = link
        self._turns = turns
        self._signals = signals
        self._lent = AsyncExitStack()
        self._connection: RawConnection | None = None
        self._topics: set[str] = set()
        self._pools: dict[int, bool] = {}
        self._late = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        self._connection = await self._lent.enter_async_context(self._link.lend())
        try:
            await self._connection.execute(self._link.begin)
        except BaseException:
            await self._end()
            raise
        self._timer = asyncio.get_running_loop().call_later(LONGEST, self._run_late)

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement, with values $1, $2 …, and return its rows."""
        async with self._step(lambda error: _users_fault(error, sql)) as connection:
            return [tuple(row) for row in await connection.fetch(sql, *parameters)]

    async def add(self, batch: JobBatch) -> tuple[Added, ...] | Refusal:
        """Add a batch; its verdict takes effect when the transaction commits."""
        for _ in range(ANEW):
            try:
                done = await self._add(batch)
            except Outdated:
                continue
            except ClockStepped as stepped:
                await self._turns.amend(stepped)
            except Unlocked as unlocked:
                self._pools.update(unlocked.pools)
            else:
                self._topics |= set(done.topics)
                return done.value[0]
        raise Unavailable(f"{self._link.address.shown}: others are always in the way; try again")

    async def _add(self, batch: JobBatch) -> CommittedWork[list[tuple[Added, ...] | Refusal]]:
        def act(steps: Steps) -> list[tuple[Added, ...] | Refusal]:
            return sql_verbs.add(steps, [replace(batch, owner=None)])

        look = postgres_needs.adding([batch], {})
        async with self._step(self._own_fault) as connection:
            tables = PostgresTables(connection, self._turns.dialect)
            return await run(lambda: self._turns.do(tables, act, look, self._pools))

    async def commit(self) -> None:
        """Commit everything, or, if that fails, nothing."""
        connection = self._usable()
        try:
            await self._bounded(connection.execute("COMMIT"))
        except Exception as error:
            raise self._own_fault(error) from error
        finally:
            await self._end()
        for topic in sorted(self._topics):
            self._signals.publish(topic)

    async def roll_back(self) -> None:
        """Roll everything back; a second call does nothing."""
        await self._end()

    @asynccontextmanager
    async def _step(
        self, meaning: Callable[[Exception], Exception]
    ) -> AsyncIterator[RawConnection]:
        """Yield the connection for one step; if the step fails, it is rolled back."""
        connection = self._usable()
        try:
            await self._bounded(connection.execute("SAVEPOINT poolhand_step"))
            try:
                async with asyncio.timeout(LONGEST):
                    yield connection
            except Exception:
                if not connection.is_closed():
                    await self._bounded(connection.execute("ROLLBACK TO SAVEPOINT poolhand_step"))
                raise
            await self._bounded(connection.execute("RELEASE SAVEPOINT poolhand_step"))
        except (Unlocked, Outdated, ClockStepped):
            raise
        except Exception as error:
            if connection.is_closed() or not connection.is_in_transaction():
                await self._end()
            told = self._over() if self._late else meaning(error)
            if told is error:
                raise
            raise told from error

    async def _bounded(self, awaitable: Awaitable[T]) -> T:
        async with asyncio.timeout(LONGEST):
            return await awaitable

    def _usable(self) -> RawConnection:
        if self._connection is None or self._connection.is_closed():
            raise self._over()
        return self._connection

    def _over(self) -> Unavailable:
        why = f"took longer than {LONGEST:g} s and was rolled back" if self._late else "is over"
        return Unavailable(
            f"this transaction on {self._link.address.shown} {why}; prepare what it needs before"
        )

    def _own_fault(self, error: Exception) -> Exception:
        return faults.at_the_wall(error, self._link.address.shown)

    def _run_late(self) -> None:
        """Break off a transaction that takes too long, whatever it is doing."""
        if self._connection is not None:
            self._late = True
            sever(self._connection)

    async def _end(self) -> None:
        """Release everything; uncommitted changes are rolled back."""
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if not connection.is_closed() and connection.is_in_transaction():
                await self._bounded(connection.execute("ROLLBACK"))
        except Exception:
            sever(connection)
        finally:
            await self._lent.aclose()


def _users_fault(error: Exception, sql: object) -> Exception:
    """Translate an error about a user's statement."""
    if faults.is_cut(error):
        return Unavailable(f"{error}: {sql}")
    told = f"{error}: {sql}".encode(errors="backslashreplace").decode()
    conflict = isinstance(error, asyncpg.IntegrityConstraintViolationError)
    return (Conflict if conflict else UsageError)(told)
