"""Transactions of a PostgreSQL store: their locks, retries and log, and commits in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from poolhand.contract import ClaimRequest
from poolhand.errors import Conflict, StoreError, Unavailable
from poolhand.rules.audit import STREAM
from poolhand.stores.postgres import errors as faults
from poolhand.stores.postgres.connections import AMEND, ClockStepped, ServerClock, ServerConnection
from poolhand.stores.postgres.pools import LOAD, TAKE_AND_LOAD, PostgresPools, Unlocked
from poolhand.stores.postgres.tables import (
    POOLS,
    STREAMS,
    Dialect,
    HeldLocks,
    Locks,
    Outdated,
    PostgresTables,
    RawConnection,
    run,
)
from poolhand.stores.sql.log import StreamLines, StreamLog
from poolhand.stores.sql.rows import moment, sought
from poolhand.stores.sql.steps import OVERDUE, Steps
from poolhand.stores.sql.tables import Insert, Tables, TableWrite
from poolhand.stores.sql.unit_of_work import JOBS, TOKENS, TURNS, UnitOfWork

T = TypeVar("T")

PATIENCE = 9.0  # seconds within which a verb succeeds or raises
ANEW = 20  # attempts at a transaction, if others conflict or it needs more locks
CUTS = 3  # retries after the connection broke
AT_LEAST, AT_MOST = 4, 256  # numbers drawn at once if no count was given
MORE = tuple(
    f"SELECT nextval('poolhand_{kind}_numbers') FROM generate_series(1, ?::int)"  # noqa: S608
    for kind in ("job", "job", "token")
)
BECAME = "SELECT pg_xact_status(?::text::xid8)"
LOOK_AGAIN = 0.1

Clock = Callable[[], tuple[float, datetime]]


class Needs(Struct, frozen=True):
    """What a transaction is expected to need: pools (True: exclusively), numbers for its jobs.

    With `loads`, the pools are loaded, and those that have jobs for the claim request `wanted`.
    """

    pools: Mapping[int, bool] = {}
    numbers: int = 0
    loads: bool = False
    wanted: ClaimRequest | None = None


NOTHING = Needs()


class Sequences:
    """Numbers drawn by one transaction; those it does not use are lost.

    `last_pool` is kept by the process: pools take turns as one worker sees them.
    """

    def __init__(self, tables: Tables, held: HeldLocks, last_pool: int) -> None:
        self.last_pool = last_pool
        self._tables = tables
        # The lowest number last, because numbers are taken from the end.
        drawn = held.numbers[::-1]
        self._drawn = {JOBS: drawn, TURNS: drawn.copy(), TOKENS: []}
        self._at_once = AT_LEAST

    def next(self, kind: int) -> int:
        return self.take(kind, 1)[0]

    def take(self, kind: int, count: int) -> Sequence[int]:
        drawn = self._drawn[kind]
        if len(drawn) < count:
            self._draw(kind, max(count - len(drawn), self._at_once))
            # A transaction that needed more than expected may need many more.
            self._at_once = min(2 * self._at_once, AT_MOST)
        taken = drawn[-count:][::-1] if count else []
        del drawn[len(drawn) - len(taken) :]
        return taken

    def save(self) -> None:
        pass

    def reload(self) -> None:
        pass

    def _draw(self, kind: int, count: int) -> None:
        more = [number for (number,) in self._tables.execute(MORE[kind], (count,))]
        self._drawn[kind][:0] = more[::-1]


class CommittedWork(Struct, Generic[T], frozen=True):
    """The result of a transaction, its topics, and how to check later that it was committed."""

    value: T
    topics: Collection[str]
    last_pool: int
    xid: str | None
    mark: Mark | None


class PostgresSteps(Steps):
    """The steps of one transaction; overdue jobs may be in any pool."""

    pools: PostgresPools

    def owner(self, id: str | None) -> int | None:
        claimant, no = self.pools.claimant
        return no if id and id == claimant else super().owner(id)

    def forget_owners(self) -> None:
        if self.pools.owner_may_have_expired:
            super().forget_owners()

    def overdue(self) -> set[int]:
        may_be = self.pools.may_be_overdue or self.unit.may_be_overdue
        return super().overdue() if may_be else set()

    def expire(self, limit: int) -> int:
        overdue = [no for (no,) in self.unit.query(OVERDUE, (self.unit.now,))]
        missing = [no for no in overdue if not self.pools.holds(no)]
        if missing:
            raise Unlocked(dict.fromkeys(missing, True))
        return super().expire(limit) if overdue else 0


class Unsure(Exception):
    """The connection broke during a commit; `xid` serves to find out whether it happened.

    Without an `xid` the transaction wrote nothing that could be done twice.
    """

    def __init__(self, xid: str | None) -> None:
        super().__init__(xid)
        self.xid = xid


class Transactions:
    """Runs transactions, and repeats them after conflicts.

    `unsure` holds, by xid, the transactions whose commit is in doubt.
    """

    def __init__(
        self, link: ServerConnection, tick: Callable[[], float], clock: Clock | None
    ) -> None:
        self._link = link
        self._server_clock = ServerClock(tick)
        self.clock = clock
        self.dialect = Dialect(link.address.schema, copies=not link.address.pooled)
        self.locks = Locks(link.address.schema)
        self.unsure: dict[str, CommittedWork[Any]] = {}

    async def write(
        self,
        act: Callable[[PostgresSteps], T],
        look: Callable[[Tables], Needs] | None = None,
        last_pool: int = 0,
    ) -> CommittedWork[T]:
        """Run steps in one transaction; `look` estimates before what it will need."""
        pools: dict[int, bool] = {}

        async def once() -> CommittedWork[T]:
            try:
                return await self._once(act, look, pools, last_pool)
            except Unlocked as unlocked:
                pools.update(unlocked.pools)
                raise

        return await self._anew(once)

    async def read(self, act: Callable[[Tables], T]) -> T:
        """Run queries that change nothing."""

        async def once() -> T:
            async with self._link.lend() as connection:
                tables = PostgresTables(connection, self.dialect)
                return await run(lambda: act(tables))

        return await self._anew(once)

    async def _anew(self, once: Callable[[], Awaitable[T]]) -> T:
        """Repeat until there is no conflict; also if a connection broke before the commit.

        Nothing was committed then. If no new connection can be made, that is raised at once.
        """
        cuts = 0
        for _ in range(ANEW):
            try:
                return await once()
            except (Unlocked, Outdated):
                continue
            except ClockStepped as stepped:
                await self.amend(stepped)
            except Exception as error:
                cuts += faults.is_cut(error)
                if cuts > CUTS or not (faults.is_cut(error) or faults.is_passing(error)):
                    raise
        raise conflicting(self._link.address.shown)

    async def change(
        self, act: Callable[[Tables, float, datetime], T], repeatable: bool = False
    ) -> T:
        """Run a change that involves no job in one transaction.

        A `repeatable` change may be made twice; for any other a commit in doubt is raised.
        """

        def do(tables: Tables) -> T:
            asked = self._server_clock.tick()
            return act(tables, *self._clocks(self.locks.hold(tables, {}), asked))

        async def once() -> T:
            async with self._link.lend() as connection:
                await connection.execute(self._link.begin)
                try:
                    value = await run(lambda: do(PostgresTables(connection, self.dialect)))
                except Exception:
                    await self._roll_back(connection)
                    raise
                if repeatable:
                    await connection.execute("COMMIT")
                else:
                    await self._commit(connection, None)
                return value

        return await self._anew(once)

    async def amend(self, stepped: ClockStepped) -> None:
        """Record that the server's clock was set, unless another process has."""
        async with self._link.lend() as connection:
            tables = PostgresTables(connection, self.dialect)
            await connection.execute(self._link.begin)
            try:
                await run(lambda: tables.execute(AMEND, (stepped.skew, stepped.by)))
            except Exception:
                await self._roll_back(connection)
                raise
            await connection.execute("COMMIT")

    async def became(self, done: CommittedWork[Any]) -> bool:
        """Return whether a transaction was committed, as soon as that is decided.

        A server that crashed may give the same xid to another transaction. So if there is a mark, a
        committed xid alone proves nothing: the mark must be there as well.
        """
        mark = done.mark
        while True:
            try:
                status = await self.read(lambda tables: _status(tables, done.xid))
                if status in ("committed", None):
                    return mark is None or await self.read(lambda tables: is_marked(tables, mark))
            except Exception as error:
                unreachable = faults.is_cut(error) or isinstance(error, Unavailable)
                if self._link.closed or not unreachable:
                    raise
                status = "unknown"
            if status == "aborted":
                return False
            await asyncio.sleep(LOOK_AGAIN)

    async def _once(
        self,
        act: Callable[[PostgresSteps], T],
        look: Callable[[Tables], Needs] | None,
        pools: dict[int, bool],
        last_pool: int,
    ) -> CommittedWork[T]:
        async with self._link.lend() as connection:
            await connection.execute(self._link.begin)
            try:
                tables = PostgresTables(connection, self.dialect)
                done = await run(lambda: self.do(tables, act, look, pools, last_pool))
            except Exception:
                await self._roll_back(connection)
                raise
            await self._commit(connection, done)
            return done

    async def _commit(self, connection: RawConnection, done: CommittedWork[Any] | None) -> None:
        try:
            await connection.execute("COMMIT")
        except BaseException as error:
            if isinstance(error, Exception) and not faults.is_cut(error):
                raise
            xid = None if done is None else done.xid
            if done is not None and xid is not None:
                self.unsure[xid] = done
            if not isinstance(error, Exception):
                raise
            if done is not None:
                raise Unsure(xid) from error
            raise Unavailable(
                f"{self._link.address.shown}: {error}: the change may or may not have been made"
            ) from error

    def do(
        self,
        tables: PostgresTables,
        act: Callable[[PostgresSteps], T],
        look: Callable[[Tables], Needs] | None,
        pools: Mapping[int, bool],
        last_pool: int = 0,
    ) -> CommittedWork[T]:
        """Run steps in a transaction that has begun; only inside `run`."""
        need = NOTHING if look is None else look(tables)
        mine = {**need.pools, **pools}
        asked = self._server_clock.tick()
        held, rows = self._held(tables, mine, need)
        numbers = Sequences(tables, held, last_pool)
        log = PostgresLog(tables, self.locks)
        unit = UnitOfWork(tables, numbers, log, *self._clocks(held, asked))
        steps = PostgresSteps(unit, PostgresPools(unit, mine))
        if rows:
            steps.pools.load(rows, "" if need.wanted is None else need.wanted.owner)
            if not any(mine.values()):
                tables.proves = steps.pools.versions
        value = act(steps)
        topics = steps.close()
        return CommittedWork(value, topics, numbers.last_pool, tables.xid, log.mark)

    def _held(
        self, tables: PostgresTables, pools: Mapping[int, bool], need: Needs
    ) -> tuple[HeldLocks, list[Any]]:
        """Lock pools, and load them if that is needed."""
        if not need.loads:
            return self.locks.hold(tables, pools, need.numbers), []
        wanted = need.wanted
        many, names = 0 if wanted is None else len(wanted.slots), None
        if wanted is not None and wanted.pools is not None:
            names = [sought(name) for name in wanted.pools]
        owner = "" if wanted is None else sought(wanted.owner)
        now = None if self.clock is None else self.clock()[0]
        asked = (owner, many, list(pools), many > 0, names, now, need.numbers)
        if any(pools.values()):
            self.locks.hold(tables, pools)
            rows = tables.execute(LOAD, asked).fetchall()
        else:
            taken = tables.execute(TAKE_AND_LOAD, (*asked, self.locks.kind(POOLS)))
            rows = [row[1:] for row in taken]
        return HeldLocks(*rows[0][:3]), [row[3:] for row in rows]

    def _clocks(self, held: HeldLocks, asked: float) -> tuple[float, datetime]:
        """Return the time of the store and the wall-clock time."""
        if self.clock is not None:
            return self.clock()
        return self._server_clock.now(held.wall, held.skew, asked), moment(held.wall)

    async def _roll_back(self, connection: RawConnection) -> None:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")


def _status(tables: Tables, xid: str | None) -> str | None:
    """Return the status of a transaction, None if it is too old to be known."""
    try:
        found: str | None = tables.execute(BECAME, (xid,)).fetchone()[0]
    except Exception as error:
        if not faults.is_future(error):
            raise
        # Assigned, and forgotten in a crash.
        return "aborted"
    return found


AUDIT = Insert("poolhand_audit", "at double precision, count bigint, lines bytea")
# Transactions not yet committed, and those begun after the oldest of them, have an xid from xmin
# on: their records are numbered later. Records of other transactions that are visible have an xid
# below xmax, unless they were restored here and another server assigned it.
UNNUMBERED = """
DELETE FROM poolhand_audit WHERE no IN (
    SELECT no FROM poolhand_audit WHERE xid < pg_snapshot_xmin(pg_current_snapshot())
    OR xid >= pg_snapshot_xmax(pg_current_snapshot())
        AND xid IS DISTINCT FROM pg_current_xact_id_if_assigned()
    ORDER BY no LIMIT ?)
RETURNING no, at, count, lines
"""
NUMBER = """
INSERT INTO poolhand_log (stream, first, last, at, lines)
SELECT ?, given.* FROM unnest(?::bigint[], ?::bigint[], ?::double precision[], ?::bytea[]) AS given
"""
# Numbered or not. The records asked for were written not long ago.
MARKED = """
SELECT EXISTS (SELECT 1 FROM (
        SELECT at, lines FROM poolhand_audit ORDER BY no DESC LIMIT 200000) unnumbered
    WHERE at = ?1 AND lines = ?2)
OR EXISTS (SELECT 1 FROM (
        SELECT at, lines FROM poolhand_log WHERE stream = ?3 ORDER BY last DESC LIMIT 200000) read
    WHERE at = ?1 AND lines = ?2)
"""
AT_ONCE = 1000


def conflicting(where: str) -> Unavailable:
    """Return the error after the last attempt at a transaction."""
    return Unavailable(
        f"{where}: gave up after {ANEW} attempts: concurrent transactions kept conflicting;"
        " try again"
    )


class Mark(NamedTuple):
    """The first audit records that a transaction wrote: no other wrote the same ones."""

    at: float
    lines: bytes


class PostgresLog(StreamLog):
    """Streams numbered without gaps; `mark` proves that this transaction wrote to the audit."""

    def __init__(self, tables: Tables, locks: Locks) -> None:
        super().__init__(tables)
        self._locks = locks
        self.mark: Mark | None = None

    def gather(
        self, streams: Mapping[str, StreamLines], stamp: float, into: list[TableWrite]
    ) -> None:
        others = {name: lines for name, lines in streams.items() if name != STREAM}
        audit = [(stamp, *packed) for packed in streams.get(STREAM, StreamLines()).pack()]
        if audit:
            into.append((AUDIT, audit))
            self.mark = Mark(stamp, audit[0][2])
        if others:
            self._locks.take(self._tables, STREAMS, others)
            super().gather(others, stamp, into)

    def trim(self, stream: str, before: int) -> int:
        self._locks.take(self._tables, STREAMS, [stream])
        return super().trim(stream, before)

    def number(self) -> None:
        """Number the new audit records."""
        self._locks.take(self._tables, STREAMS, [STREAM])
        while found := self._tables.execute(UNNUMBERED, (AT_ONCE,)).fetchall():
            last = self.last(STREAM)
            rows = []
            for _, at, count, lines in sorted(found):
                rows.append((last + 1, last + count, at, lines))
                last += count
            self._tables.execute(NUMBER, (STREAM, *zip(*rows, strict=True)))
            if len(found) < AT_ONCE:
                return


def is_marked(tables: Tables, mark: Mark) -> bool:
    """Return whether the records of a mark exist."""
    return bool(tables.execute(MARKED, (mark.at, mark.lines, STREAM)).fetchone()[0])


A = TypeVar("A")
B = TypeVar("B")

MOST = 5_000  # items per batch, or a few more: those of one caller stay together


class AddBatcher(Generic[A, B]):
    """Passes on the items of many callers at once; each caller gets its own answers."""

    def __init__(
        self, act: Callable[[Sequence[A]], Awaitable[Sequence[B]]], most: int = MOST
    ) -> None:
        self._act = act
        self._most = most
        self._waiting: dict[asyncio.Future[list[B]], Sequence[A]] = {}
        self._task: asyncio.Task[None] | None = None

    async def ask(self, things: Sequence[A]) -> list[B]:
        """Pass on items in a batch; a caller that is cancelled before withdraws its items."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[list[B]] = loop.create_future()
        self._waiting[reply] = things
        if self._task is None:
            self._task = loop.create_task(self._run(), name="poolhand-together")
        try:
            return await reply
        finally:
            self._waiting.pop(reply, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._pass_on(self._taken())
        finally:
            self._task = None

    def _taken(self) -> list[tuple[Sequence[A], asyncio.Future[list[B]]]]:
        taken, count = [], 0
        while self._waiting and count < self._most:
            reply = next(iter(self._waiting))
            things = self._waiting.pop(reply)
            taken.append((things, reply))
            count += len(things)
        return taken

    async def _pass_on(self, taken: list[tuple[Sequence[A], asyncio.Future[list[B]]]]) -> None:
        try:
            answers = iter(await self._act([thing for things, _ in taken for thing in things]))
        except BaseException as error:
            if len(taken) > 1 and _is_of_one(error):
                # One caller's items caused the error: repeat each by itself, to spare the others.
                for asked in taken:
                    await self._pass_on([asked])
                return
            for _, reply in taken:
                if not reply.done():
                    reply.set_exception(_for_caller(error))
            if not isinstance(error, Exception):
                raise
            return
        for things, reply in taken:
            own = [next(answers) for _ in things]
            if not reply.done():
                reply.set_result(own)


def _is_of_one(error: BaseException) -> bool:
    """Return whether an error is about a caller's items, not about the store."""
    if isinstance(error, StoreError):
        return isinstance(error, Conflict)
    return isinstance(error, Exception)


def _for_caller(error: BaseException) -> BaseException:
    """Translate an error for the callers: a cancellation of the batch becomes Unavailable."""
    if isinstance(error, Exception):
        return error
    return Unavailable("the store was closed before it could answer")
