"""The PostgreSQL store: one database that processes on all machines can share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct

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
)
from poolhand.contract.records import ServerSurvey
from poolhand.errors import ReadOnly
from poolhand.rules import lifecycle
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.runtime import Runtime
from poolhand.stores.postgres import errors as faults
from poolhand.stores.postgres import migrations, needs, user_transaction
from poolhand.stores.postgres.connections import ServerConnection, address_of
from poolhand.stores.postgres.migrations import migrate
from poolhand.stores.postgres.notify import PostgresSignals
from poolhand.stores.postgres.pools import TALLIED, date_jobs, fold_tallies, pool_rows, with_remains
from poolhand.stores.postgres.tables import DOCUMENTS
from poolhand.stores.postgres.transaction import (
    PATIENCE,
    AddBatcher,
    Clock,
    CommittedWork,
    Needs,
    PostgresLog,
    PostgresSteps,
    Transactions,
    Unsure,
)
from poolhand.stores.postgres.user_transaction import Insertion, PostgresTransaction
from poolhand.stores.sql import documents as sql_documents
from poolhand.stores.sql import find as sql_find
from poolhand.stores.sql import sessions as sql_sessions
from poolhand.stores.sql import upkeep as sql_upkeep
from poolhand.stores.sql.admission import StoredAdmission
from poolhand.stores.sql.claims import StoredLeases, all_leases
from poolhand.stores.sql.log import is_good
from poolhand.stores.sql.tables import Tables

T = TypeVar("T")

MOST_EXPECTED = 16  # pools remembered as recently busy
CANCELS_AT_ONCE = 500  # jobs; a transaction locks their pools exclusively


class Exchange(Struct, frozen=True):
    """What was claimed, and the tokens of the claims settled with it."""

    replaced: ReplacedJob
    tokens: frozenset[int]


class PostgresStore:
    """A store in a database; the desk that decides for pools in memory decides here, too."""

    def __init__(self, url: str, runtime: Runtime, clock: Clock | None = None) -> None:
        self._address = address_of(url)
        self._runtime = runtime
        self._link = ServerConnection(self._address)
        self._turns = Transactions(self._link, runtime.since_boot, clock)
        self._signals = PostgresSignals(self._address, runtime)
        self._adds = AddBatcher(self._add)
        self._cancels = AddBatcher(self._cancel, CANCELS_AT_ONCE)
        self._last_pool = 0
        self._made: set[int] = set()
        self._known: dict[str, tuple[int, bool]] = {}
        self._busy: dict[int, bool] = {}

    async def open(self) -> None:
        async with self._translated_errors():
            self._link.open()
            try:
                await migrate(self._link, self._address, self._runtime.wall())
                await self._signals.open()
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        if self._link.own:
            await self._signals.close()
            await self._link.close()

    async def check(self) -> None:
        await self._change(lambda tables, now, at: migrations.try_to_write(tables))

    # Usable without opening the store

    @property
    def place(self) -> str:
        return self._address.shown

    async def schema(self) -> tuple[int, int]:
        async with self._translated_errors():
            return await migrations.schema_of(self._address)

    async def survey(self) -> ServerSurvey:
        async with self._translated_errors():
            return await migrations.survey_of(self._address, self._runtime)

    # Transactions

    async def _steps(
        self, act: Callable[[PostgresSteps], T], look: Callable[[Tables], Needs] | None = None
    ) -> T:
        """Run steps in one transaction; publish their topics after the commit."""
        async with self._translated_errors():
            done = await self._certain(act, look)
        self._last_pool = done.last_pool or self._last_pool
        for topic in sorted(done.topics):
            self._signals.publish(topic)
        return done.value

    async def _certain(
        self, act: Callable[[PostgresSteps], T], look: Callable[[Tables], Needs] | None
    ) -> CommittedWork[T]:
        """Run it once: if the result of a commit was lost, find out before repeating it."""
        while True:
            try:
                return await self._turns.write(act, look, self._last_pool)
            except Unsure as unsure:
                if unsure.xid is not None:
                    async with self._found_out(unsure.xid) as (done, was_committed):
                        if was_committed:
                            return done

    @asynccontextmanager
    async def _found_out(self, xid: str) -> AsyncIterator[tuple[CommittedWork[Any], bool]]:
        """Yield a transaction and whether it was committed.

        No other task checks it meanwhile; if interrupted, it is left to others.
        """
        done = self._turns.unsure.pop(xid)
        try:
            yield done, await self._turns.became(done)
        except BaseException:
            self._turns.unsure[xid] = done
            raise

    async def _look_back(self) -> None:
        """Resolve transactions whose commit was in doubt when their caller got the error.

        Jobs that they claimed have no worker, so they are given back. Settled tokens are
        remembered, as the caller will settle them again.
        """
        while self._turns.unsure:
            async with self._found_out(next(iter(self._turns.unsure))) as (done, was_committed):
                if was_committed and isinstance(done.value, Exchange):
                    await self._give_back(done.value.replaced.claims)
                    self._made.update(done.value.tokens)

    async def _give_back(self, claims: Sequence[Claim]) -> None:
        if claims:
            changes = [Change(lifecycle.hand_back(one.job), one.token) for one in claims]
            await self._certain(
                lambda steps: StoredLeases(steps).replace(changes),
                needs.changing(changes, None, (), self._known, {}),
            )

    async def _change(
        self, act: Callable[[Tables, float, datetime], T], repeatable: bool = False
    ) -> T:
        async with self._translated_errors():
            return await self._turns.change(act, repeatable)

    async def _read(self, act: Callable[[Tables], T]) -> T:
        async with self._translated_errors():
            return await self._turns.read(act)

    @asynccontextmanager
    async def _translated_errors(self) -> AsyncIterator[None]:
        """Limit the time of a verb, and translate errors into poolhand's own."""
        try:
            async with asyncio.timeout(PATIENCE):
                yield
        except Exception as error:
            translated = faults.translate(error, self._address.shown)
            if translated is error:
                raise
            raise translated from error

    # Pools

    async def declare(self, spec: PoolSpec) -> None:
        known = await self._read(lambda tables: needs.named(tables, [spec.name]))
        if spec.name in known and known[spec.name][1] == spec:
            # Nearly always the case: no lock is needed.
            return
        await self._steps(lambda steps: steps.declare(spec), needs.alone([spec.name]))

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        return await self._read(lambda tables: pool_rows(tables, names))

    async def set_pool(
        self,
        pool: str,
        by: str,
        *,
        paused: bool | None = None,
        slots: int | None = None,
        declared: bool = False,
    ) -> None:
        await self._steps(
            lambda steps: steps.set_pool(pool, by, paused, slots, declared), needs.alone([pool])
        )

    # Jobs

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        async with self._translated_errors():
            return await self._adds.ask(batches)

    async def _add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        def act(steps: PostgresSteps) -> list[tuple[Added, ...] | Refusal]:
            answers = StoredAdmission(steps).add(batches)
            self._known.update(steps.pools.met())
            return answers

        return await self._steps(act, needs.adding(batches, self._known))

    async def begin(self) -> PostgresTransaction:
        transaction = PostgresTransaction(self._link, self._turns, self._signals)
        async with self._translated_errors():
            await transaction.begin()
        return transaction

    async def insertion(self, requests: Sequence[JobRequest]) -> Insertion:
        for name in user_transaction.names_of(requests):
            if name not in self._known:
                await self._know(name)
        return await self._change(
            lambda tables, now, at: self._insertion(tables, requests, now, at)
        )

    async def _know(self, name: str) -> None:
        """Create a pool beforehand: a user's transaction creates none."""
        await self._steps(lambda steps: steps.know(name), needs.alone([name]))

    def _insertion(
        self, tables: Tables, requests: Sequence[JobRequest], now: float, at: datetime
    ) -> Insertion:
        (store,) = tables.execute(user_transaction.STORE).fetchone()
        dialect, channel = self._turns.dialect, self._signals.channel
        made = user_transaction.insertion(dialect, store, channel, self._address.shown)
        pools = needs.named(tables, user_transaction.names_of(requests))
        for request in requests:
            made.add(request, pools[request.job.pool], now, at)
        return made

    async def replace(
        self,
        changes: Sequence[Change] = (),
        wanted: ClaimRequest | None = None,
        released: Sequence[int] = (),
    ) -> ReplacedJob:
        if not (self._turns.unsure or self._made):
            return await self._exchange(changes, wanted, released)
        async with self._translated_errors():
            await self._look_back()
            return await self._replace_anew(changes, wanted, released)

    async def _replace_anew(
        self, changes: Sequence[Change], wanted: ClaimRequest | None, released: Sequence[int]
    ) -> ReplacedJob:
        """Settle claims of which some may have been settled before."""
        known = self._made.intersection(change.token for change in changes)
        left = [change for change in changes if change.token not in known]
        replaced = await self._exchange(left, wanted, released)
        self._made -= known
        answers = iter(replaced.made)
        made = [change.token in known or next(answers) for change in changes]
        return ReplacedJob(tuple(made), replaced.claims)

    async def _exchange(
        self, changes: Sequence[Change], wanted: ClaimRequest | None, released: Sequence[int]
    ) -> ReplacedJob:
        keys = [put.key for change in changes for put in change.documents]
        tokens = [change.token for change in changes]

        def act(steps: PostgresSteps) -> Exchange:
            if keys:
                self._turns.locks.take(steps.unit.tables, DOCUMENTS, keys)
            self._known.update(steps.pools.met())
            self._expect(steps.pools.with_work())
            replaced = StoredLeases(steps).replace(changes, wanted, released)
            settled = [token for token, made in zip(tokens, replaced.made, strict=True) if made]
            return Exchange(replaced, frozenset(settled))

        busy = self._busy if wanted is not None else {}
        look = needs.changing(changes, wanted, released, self._known, busy)
        return (await self._steps(act, look)).replaced

    def _expect(self, pools: Mapping[int, bool]) -> None:
        """Remember which pools had work recently: there may be more."""
        for no in pools:
            self._busy.pop(no, None)
        self._busy.update(pools)
        for no in list(self._busy)[:-MOST_EXPECTED]:
            del self._busy[no]

    async def cancel(
        self, ids: Sequence[str], by: str, blocked_only: bool = False
    ) -> list[Stored | None]:
        if blocked_only:
            return await self._steps(lambda steps: steps.withdraw(ids), needs.jobs(ids))
        async with self._translated_errors():
            return await self._cancels.ask([(id, by) for id in ids])

    async def _cancel(self, asked: Sequence[tuple[str, str]]) -> list[Stored | None]:
        look = needs.jobs([id for id, _ in asked])
        return await self._steps(lambda steps: steps.cancel_all(asked), look)

    # Owners

    async def enroll(self, owner: Owner) -> None:
        await self._steps(lambda steps: StoredLeases(steps).enroll(owner))

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        async with self._translated_errors():
            await self._look_back()
            return await self._steps(lambda steps: StoredLeases(steps).extend(owner, tokens))

    async def leases(self) -> list[Lease]:
        return await self._read(all_leases)

    async def expire_owner(self, owner: str, renewal: int) -> list[Claim]:
        return await self._steps(
            lambda steps: StoredLeases(steps).expire_owner(owner, renewal),
            needs.expiring_owner(owner),
        )

    # Reads

    async def get(self, ids: Sequence[str], calls: bool = False) -> list[Stored | None]:
        return await self._read(lambda tables: sql_find.get(tables, ids, calls))

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> JobPage:
        return await self._read(lambda tables: sql_find.find(tables, which, after, limit))

    async def count(self, which: Filter) -> Mapping[Status, int]:
        return await self._read(lambda tables: sql_find.count(tables, which, TALLIED))

    async def users_of(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        return await self._read(lambda tables: sql_sessions.users_of(tables, sessions))

    # Time

    async def causes(self) -> Mapping[str, Mapping[str, int]]:
        return await self._read(sql_upkeep.causes)

    async def wake(self, cause: str, by: str, limit: int = 1000) -> int:
        return await self._steps(
            lambda steps: sql_upkeep.wake(steps, cause, by, limit), needs.waking(cause)
        )

    async def promote(self, limit: int = 1000) -> Promoted:
        return await self._steps(
            lambda steps: sql_upkeep.promote(steps, limit),
            needs.promoting(limit, self._turns.clock),
        )

    async def prune(self, keep: Keep, limit: int = 1000) -> int:
        async with self._translated_errors():
            await self._change(lambda tables, now, at: sql_documents.sweep(tables, now), True)
            await self._change(fold_tallies, True)
            await self._change(date_jobs, True)
            for no in await self._read(with_remains):
                await self._sweep(no)
            return await self._steps(lambda steps: sql_upkeep.forget(steps, keep, limit))

    async def _sweep(self, no: int) -> None:
        await self._steps(
            lambda steps: sql_upkeep.sweep(steps, no), lambda tables: Needs({no: True})
        )

    async def unheld(self, free: bool = False) -> list[tuple[str, str]]:
        found = await self._read(sql_upkeep.unheld)
        if found and free:
            return await self._steps(
                sql_upkeep.free, lambda tables: Needs({one.pool: True for one in found})
            )
        return sql_upkeep.named(found)

    async def erase(
        self, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str] = ()
    ) -> list[str]:
        def act(steps: PostgresSteps) -> list[str]:
            if documents:
                self._turns.locks.take(steps.unit.tables, DOCUMENTS, documents)
            return sql_upkeep.erase(steps, ids, streams, by, documents)

        return await self._steps(act, needs.jobs(ids))

    # Documents and log

    async def get_document(self, key: str) -> Document | None:
        return await self._change(lambda tables, now, at: sql_documents.get(tables, key, now), True)

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        def op(tables: Tables, now: float, at: datetime) -> tuple[int, ...] | None:
            if not is_good(tables, token):
                return None
            self._turns.locks.take(tables, DOCUMENTS, [put.key for put in puts])
            versions = sql_documents.put(tables, puts, now)
            if versions is not None and log:
                PostgresLog(tables, self._turns.locks).append(log, at)
            return versions

        return await self._change(op)

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        return await self._change(
            lambda tables, now, at: sql_documents.scan(tables, prefix, after, limit, now), True
        )

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        return await self._change(
            lambda tables, now, at: PostgresLog(tables, self._turns.locks).append_good(lines, at)
        )

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]:
        async with self._translated_errors():
            if stream == STREAM:
                await self._number()
            return await self._read(
                lambda tables: PostgresLog(tables, self._turns.locks).read(
                    stream, after, limit, kind
                )
            )

    async def _number(self) -> None:
        """Number the new records of the audit log."""
        try:
            await self._change(
                lambda tables, now, at: PostgresLog(tables, self._turns.locks).number(), True
            )
        except ReadOnly as error:
            # On a full disk or a standby, the records already numbered can still be read.
            if faults.is_denied(error):
                raise

    async def trim(self, stream: str, before: int) -> int:
        return await self._change(
            lambda tables, now, at: PostgresLog(tables, self._turns.locks).trim(stream, before)
        )

    # Signals

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        return self._signals.subscribe(hint)

    def publish(self, topic: str) -> None:
        self._signals.publish(topic)
