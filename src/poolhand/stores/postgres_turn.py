"""One transaction of a PostgreSQL store: what it holds, what it does, and whether it was done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct

from poolhand.errors import Unavailable
from poolhand.stores import postgres_faults as faults
from poolhand.stores.postgres_bridge import run
from poolhand.stores.postgres_link import Link, Raw
from poolhand.stores.postgres_locks import Locks
from poolhand.stores.postgres_log import PostgresLog
from poolhand.stores.postgres_pools import PostgresPools, Unlocked
from poolhand.stores.postgres_tables import Dialect, PostgresTables
from poolhand.stores.sql_books import ENDS, JOBS, TOKENS, TURNS, Books
from poolhand.stores.sql_rows import moment
from poolhand.stores.sql_steps import OVERDUE, Steps
from poolhand.stores.sql_tables import Tables

T = TypeVar("T")

PATIENCE = 9.0  # within which a verb is done, or refused
ANEW = 20  # times that a transaction is begun, as others are in its way or it needs more
AT_LEAST = 4  # numbers drawn at once where nobody said how many
BEGIN = (
    "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL idle_in_transaction_session_timeout = '10s'"
)
NUMBERS = """
SELECT 0, nextval('poolhand_job_numbers') FROM generate_series(1, ?::int)
UNION ALL SELECT 1, nextval('poolhand_turn_numbers') FROM generate_series(1, ?::int)
UNION ALL SELECT 2, nextval('poolhand_token_numbers') FROM generate_series(1, ?::int)
UNION ALL SELECT 3, nextval('poolhand_end_numbers') FROM generate_series(1, ?::int)
"""
BECAME = "SELECT pg_xact_status(?::text::xid8)"
LOOK_AGAIN = 0.1

Clock = Callable[[], tuple[float, datetime]]


class Need(Struct, frozen=True):
    """What a transaction is known to need: pools, whether alone, which may have work, numbers."""

    pools: Mapping[int, bool] = {}
    busy: Collection[int] = ()
    numbers: Mapping[int, int] = {}


NOTHING = Need()


class Sequences:
    """Numbers drawn by one transaction; those it does not use are nobody's.

    `last_pool` is kept by the process: what takes turns are the pools as one worker sees them.
    """

    def __init__(self, tables: Tables, need: Mapping[int, int], last_pool: int) -> None:
        self.last_pool = last_pool
        self._tables = tables
        self._need = dict(need)
        self._drawn: dict[int, list[int]] = {JOBS: [], TURNS: [], TOKENS: [], ENDS: []}

    def next(self, kind: int) -> int:
        if not self._drawn[kind]:
            self._draw(kind, AT_LEAST)
        return self._drawn[kind].pop()

    def take(self, kind: int, count: int) -> Sequence[int]:
        drawn = self._drawn[kind]
        if len(drawn) < count:
            self._draw(kind, count)
        taken = drawn[-count:][::-1] if count else []
        del drawn[len(drawn) - len(taken) :]
        return taken

    def save(self) -> None:
        pass

    def reload(self) -> None:
        pass

    def _draw(self, kind: int, count: int) -> None:
        """Draw so many of a kind, and with them what will be needed of others."""
        self._need[kind] = max(count, self._need.get(kind, 0))
        counts = [self._need.get(one, 0) for one in self._drawn]
        self._need.clear()
        drawn: dict[int, list[int]] = {one: [] for one in self._drawn}
        for one, number in self._tables.execute(NUMBERS, counts):
            drawn[one].append(number)
        for one, numbers in drawn.items():
            # The lowest last, where they are taken from. What is left of before is lower still.
            if numbers:
                self._drawn[one][:0] = sorted(numbers, reverse=True)


class Done(Struct, Generic[T], frozen=True):
    """What a transaction gave, what it has to tell, and how to ask later whether it was done."""

    value: T
    topics: Collection[str]
    last_pool: int
    xid: str | None


class PostgresSteps(Steps):
    """The steps of one transaction; what waited too long may be of any pool."""

    pools: PostgresPools

    def expire(self, limit: int) -> int:
        overdue = [no for (no,) in self.books.query(OVERDUE, (self.books.now,))]
        missing = [no for no in overdue if not self.pools.holds(no)]
        if missing:
            raise Unlocked(*missing)
        return super().expire(limit) if overdue else 0


class Unsure(Exception):
    """The connection broke while a transaction was being committed."""

    def __init__(self, done: Done[Any], cause: BaseException) -> None:
        super().__init__(str(cause))
        self.done = done


class Turns:
    """Carries transactions out: again when others were in the way, and to a certain end."""

    def __init__(self, link: Link, clock: Clock | None) -> None:
        self._link = link
        self.clock = clock
        self.dialect = Dialect(link.address.schema)
        self.locks = Locks(link.address.schema)

    async def write(
        self,
        act: Callable[[Steps], T],
        look: Callable[[Tables], Need] | None = None,
        last_pool: int = 0,
    ) -> Done[T]:
        """Do something in one transaction; `look` says before what it will need."""
        pools: dict[int, bool] = {}
        for _ in range(ANEW):
            try:
                return await self._once(act, look, pools, last_pool)
            except Unlocked as unlocked:
                pools.update(dict.fromkeys(unlocked.numbers, True))
            except Exception as error:
                if not faults.is_passing(error):
                    raise
        raise Unavailable(f"{self._link.address.shown}: others are always in the way; try again")

    async def read(self, act: Callable[[Tables], T]) -> T:
        """Ask something that changes nothing."""
        async with self._link.lend() as connection:
            tables = PostgresTables(connection, self.dialect)
            return await run(lambda: act(tables))

    async def change(self, act: Callable[[Tables, float, datetime], T]) -> T:
        """Do something in one transaction that has to do with no job."""

        def do(tables: Tables) -> T:
            return act(tables, *self._time(tables, {}))

        async with self._link.lend() as connection:
            await connection.execute(BEGIN)
            try:
                value = await run(lambda: do(PostgresTables(connection, self.dialect)))
            except Exception:
                await self._roll_back(connection)
                raise
            await connection.execute("COMMIT")
            return value

    async def became(self, xid: str) -> bool:
        """Tell whether a transaction was committed, as soon as it is decided."""
        while True:
            try:
                status = await self.read(lambda tables: tables.execute(BECAME, (xid,)).fetchone())
            except Exception as error:
                if not faults.is_cut(error):
                    raise
                status = ("unknown",)
            if status[0] in ("committed", "aborted"):
                return bool(status[0] == "committed")
            await asyncio.sleep(LOOK_AGAIN)

    async def _once(
        self,
        act: Callable[[Steps], T],
        look: Callable[[Tables], Need] | None,
        pools: dict[int, bool],
        last_pool: int,
    ) -> Done[T]:
        async with self._link.lend() as connection:
            await connection.execute(BEGIN)
            try:
                tables = PostgresTables(connection, self.dialect)
                done = await run(lambda: self.do(tables, act, look, pools, last_pool))
            except Exception:
                await self._roll_back(connection)
                raise
            try:
                await connection.execute("COMMIT")
            except Exception as error:
                if faults.is_cut(error):
                    raise Unsure(done, error) from error
                raise
            return done

    def do(
        self,
        tables: Tables,
        act: Callable[[Steps], T],
        look: Callable[[Tables], Need] | None,
        pools: Mapping[int, bool],
        last_pool: int = 0,
    ) -> Done[T]:
        """Take steps in a transaction that has been begun; below `run`."""
        need = NOTHING if look is None else look(tables)
        held = {**need.pools, **pools}
        now, at = self._time(tables, held)
        log = PostgresLog(tables, self.locks)
        numbers = Sequences(tables, need.numbers, last_pool)
        books = Books(tables, numbers, log, now, at)
        steps = PostgresSteps(books, PostgresPools(books, held, need.busy))
        value = act(steps)
        topics = steps.close()
        return Done(value, topics, numbers.last_pool, log.xid)

    def _time(self, tables: Tables, held: Mapping[int, bool]) -> tuple[float, datetime]:
        """Take pools, and say what time it is when that is done."""
        stamp = self.locks.hold(tables, held)
        return (stamp, moment(stamp)) if self.clock is None else self.clock()

    async def _roll_back(self, connection: Raw) -> None:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
