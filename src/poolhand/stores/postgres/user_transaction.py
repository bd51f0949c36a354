"""A user's own transaction with jobs in it: on a connection of the store, or on the user's own.

On the user's own connection jobs are written as scheduled, due at once, and take no lock: neither
the user's work nor that of other transactions waits for the other. They are admitted when they are
promoted, after the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import asyncpg
from msgspec.structs import replace

from poolhand.contract import Added, JobBatch, JobRequest, Refusal
from poolhand.errors import Conflict, Unavailable, UsageError
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Policy
from poolhand.rules.queue.entry import arrival, seconds
from poolhand.rules.queue.stored_desk import PoolSpec, may_refuse
from poolhand.stores.postgres import errors as faults
from poolhand.stores.postgres import needs
from poolhand.stores.postgres.connections import ClockStepped, ServerConnection, sever
from poolhand.stores.postgres.notify import PostgresSignals
from poolhand.stores.postgres.pools import Unlocked
from poolhand.stores.postgres.tables import Dialect, Outdated, PostgresTables, RawConnection, run
from poolhand.stores.postgres.transaction import ANEW, CommittedWork, Transactions, conflicting
from poolhand.stores.sql.admission import StoredAdmission
from poolhand.stores.sql.rows import encode_terms
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
        raise conflicting(self._link.address.shown)

    async def _add(self, batch: JobBatch) -> CommittedWork[list[tuple[Added, ...] | Refusal]]:
        def act(steps: Steps) -> list[tuple[Added, ...] | Refusal]:
            return StoredAdmission(steps).add([replace(batch, owner=None)])

        look = needs.adding([batch], {})
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
            translated = self._over() if self._late else meaning(error)
            if translated is error:
                raise
            raise translated from error

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
        return faults.translate(error, self._link.address.shown)

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
    text = f"{error}: {sql}".encode(errors="backslashreplace").decode()
    conflict = isinstance(error, asyncpg.IntegrityConstraintViolationError)
    return (Conflict if conflict else UsageError)(text)


STORE = "SELECT store FROM poolhand_counters"
INSERT = """
WITH given AS MATERIALIZED (
    SELECT nextval('poolhand_job_numbers') AS seq, one.* FROM unnest(
        ?3::text[], ?4::bigint[], ?5::text[], ?6::text[], ?7::text[], ?8::text[],
        ?9::double precision[], ?10::bytea[], ?11::bytea[], ?12::double precision[],
        ?13::double precision[], ?14::bigint[], ?15::double precision[], ?16::text[]
    ) AS one(id, pool, name, key, session, tenant, closes_at, ordered, brief, opens_at, again,
        by_wall, submitted, user_name)
    WHERE EXISTS (SELECT 1 FROM poolhand_counters WHERE store = ?1)
), jobs AS (
    INSERT INTO poolhand_jobs (seq, id, pool, name, key, session, tenant, closes_at, ordered, brief,
        submitted, user_name)
    SELECT seq, id, pool, name, key, session, tenant, closes_at, ordered, brief, submitted,
        user_name
    FROM given
), waits AS (
    INSERT INTO poolhand_waits (seq, pool, place, rank, turn, since, ready_at, due_at, by_wall)
    SELECT seq, pool, 1, again, by_wall, extract(epoch FROM clock_timestamp()) - skew, opens_at,
        -1, 0
    FROM given, poolhand_counters
), sent AS (
    SELECT pg_notify(?2, E'\\ndue')
)
SELECT count(*) FROM given, sent
"""


class Insertion:
    """Job requests prepared for writing on any connection to this database."""

    def __init__(self, statement: str, head: tuple[str, str], where: str) -> None:
        self._statement = statement
        self._head = head
        self._where = where
        self._rows: list[tuple[Any, ...]] = []

    def add(
        self, request: JobRequest, pool: tuple[int, PoolSpec], now: float, at: datetime
    ) -> None:
        """Prepare one job request."""
        no, spec = pool
        _check_policy(spec.name, spec.backpressure)
        if request.revives is not None:
            raise UsageError("a dead job cannot be retried in a transaction; retry it by itself")
        job = replace(request.job, pool_id=spec.id, status=Status.QUEUED)
        job, window, by_wall = arrival(job, request.delay, request.expires, now, at)
        opens_at = 0.0 if window is None else window.opens_at or 0.0
        closes_at = None if window is None else window.closes_at
        terms = (job.id, no, job.name, job.key, job.session, job.tenant, closes_at)
        how = (opens_at, float(request.rerun_failed), int(by_wall))
        by = (seconds(job.submitted_at), job.user)
        self._rows.append((*terms, encode_terms(job), request.call_record, *how, *by))

    async def write(self, connection: Any) -> None:
        """Write the jobs in a connection's open transaction; call it from the connection's loop."""
        if not connection.is_in_transaction():
            raise UsageError(
                "submit_in: no transaction is open on this connection; submit within `async with "
                "connection.transaction():`"
            )
        columns = zip(*self._rows, strict=True)
        try:
            rows = await connection.fetch(self._statement, *self._head, *columns)
        except asyncpg.UndefinedTableError as error:
            raise self._elsewhere() from error
        except Exception as error:
            translated = faults.translate(error, self._where)
            if translated is error:
                raise
            raise translated from error
        if rows[0][0] != len(self._rows):
            raise self._elsewhere()

    def _elsewhere(self) -> UsageError:
        return UsageError(
            f"submit_in: this connection is to another database than the store {self._where}; "
            "jobs can only be written with what is in the same database"
        )


def insertion(dialect: Dialect, store: str, channel: str, where: str) -> Insertion:
    """Return an empty insertion."""
    return Insertion(dialect.text(INSERT), (store, channel), where)


def names_of(requests: Sequence[JobRequest]) -> list[str]:
    """Return the pools of job requests, each once."""
    return list(dict.fromkeys(request.job.pool for request in requests))


def _check_policy(name: str, policy: Policy) -> None:
    if may_refuse(policy, may_block=False):
        raise UsageError(
            f"submit_in: pool {name!r} ({policy}) may refuse a job or block its submitter, which is"
            " not known before the transaction commits; submit after the commit, or use a pool that"
            " accepts every job"
        )
