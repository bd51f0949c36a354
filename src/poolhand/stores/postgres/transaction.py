"""Transactions of a PostgreSQL store: their locks, their retries, commits in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct

from poolhand.contract import ClaimRequest
from poolhand.errors import Unavailable
from poolhand.stores.postgres.bridge import run
from poolhand.stores.postgres.locks import POOLS, HeldLocks, Locks
from poolhand.stores.postgres.log import Mark, PostgresLog, is_marked
from poolhand.stores.postgres.pools import LOAD, TAKE_AND_LOAD, PostgresPools, Unlocked
from poolhand.stores.postgres.server import errors as faults
from poolhand.stores.postgres.server.clock import AMEND, ClockStepped, ServerClock
from poolhand.stores.postgres.server.connections import RawConnection, ServerConnection
from poolhand.stores.postgres.tables import Dialect, Outdated, PostgresTables
from poolhand.stores.sql.rows import moment, sought
from poolhand.stores.sql.steps import OVERDUE, Steps
from poolhand.stores.sql.tables import Tables
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
        if self.pools.may_be_buried:
            super().forget_owners()

    def overdue(self) -> set[int]:
        may_be = self.pools.may_be_overdue or self.books.may_be_overdue
        return super().overdue() if may_be else set()

    def expire(self, limit: int) -> int:
        overdue = [no for (no,) in self.books.query(OVERDUE, (self.books.now,))]
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
        raise Unavailable(f"{self._link.address.shown}: others are always in the way; try again")

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
                f"{self._link.address.shown}: {error}: whether it was done is not known"
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
        books = UnitOfWork(tables, numbers, log, *self._clocks(held, asked))
        steps = PostgresSteps(books, PostgresPools(books, mine))
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
