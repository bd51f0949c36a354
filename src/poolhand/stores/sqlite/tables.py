"""The tables of a SQLite store, in a file or in memory, and the steps of one write.

Many rows are written per statement: a good half of a row's cost is the statement around it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from itertools import chain
from sqlite3 import Connection
from typing import Any, Protocol, TypeVar

from poolhand.contract import Hint
from poolhand.stores.sql.log import StreamLog
from poolhand.stores.sql.pools import Pools
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.tables import Delete, Insert, Tables, TableWrite, Values
from poolhand.stores.sql.unit_of_work import UnitOfWork

V = TypeVar("V")

# Few sizes, so that there are few different statements, each prepared once.
FEW = 10
MANY = 100
ROWS = 20


def lots(values: Sequence[V]) -> Iterator[tuple[V | None, ...]]:
    """Yield values in lots of these sizes, padded with None."""
    start = 0
    while start < len(values):
        size = FEW if len(values) - start <= FEW else MANY
        lot = tuple(values[start : start + size])
        yield lot if len(lot) == size else (*lot, *(None,) * (size - len(lot)))
        start += size


@cache
def for_lot(text: str, size: int) -> str:
    """Return a statement with placeholders for `size` values."""
    return text.replace("?*", ", ".join("?" * size))


@cache
def _inserting(what: Insert, rows: int) -> str:
    row = f"({', '.join([*('?' * len(what.types)), *what.fixed])})"
    return f"{what.into} VALUES {', '.join([row] * rows)}{what.conflict}"


class SqliteTables:
    """The tables as one connection sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.execute = connection.execute

    def among(self, text: str, many: Values, first: Values = ()) -> Iterator[Any]:
        for lot in lots(many):
            yield from self.execute(for_lot(text, len(lot)), (*first, *lot)).fetchall()

    def insert(self, what: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
        start = 0
        while len(rows) - start >= ROWS:
            values = list(chain.from_iterable(rows[start : start + ROWS]))
            self.execute(_inserting(what, ROWS), values)
            start += ROWS
        if start < len(rows):
            self._connection.executemany(_inserting(what, 1), rows[start:])

    def stream(self, what: Insert, rows: Iterable[tuple[Any, ...]]) -> None:
        self.insert(what, list(rows))

    def delete(self, what: Delete, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            self.execute(f"{what.where} = ?", numbers)
            return
        for lot in lots(numbers):
            self.execute(for_lot(f"{what.where} IN (?*)", len(lot)), lot)

    def write(self, changes: Sequence[TableWrite]) -> None:
        for what, rows in changes:
            if isinstance(what, Insert):
                self.insert(what, rows)
            else:
                self.delete(what, rows)


T = TypeVar("T")
Op = Callable[[sqlite3.Connection], T]


class Database(Protocol):
    """The operations that a SQLite store needs of its file or memory."""

    @property
    def path(self) -> str: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None: ...

    async def write(self, op: Op[T]) -> T: ...

    def read(self, op: Op[T]) -> T: ...

    async def begin(self) -> sqlite3.Connection: ...

    def end(self, connection: sqlite3.Connection) -> None: ...

    def now(self) -> float: ...

    def tick(self, connection: sqlite3.Connection) -> None:
        """Store the current time in the transaction that is being committed."""

    async def shorten(self) -> None:
        """Remove all remains of erased data."""

    def signal(self, topic: str) -> None: ...

    def subscribe(self, hint: Hint) -> Callable[[], None]: ...

    def publish(self, topic: str) -> None: ...

    def failure(self, error: BaseException) -> Exception: ...

    def expect_own(self) -> None: ...


COUNTERS = "SELECT jobs, turns, tokens, pool FROM poolhand_counters"
COUNT = "UPDATE poolhand_counters SET jobs = ?, turns = ?, tokens = ?, pool = ?"


class Counters:
    """The last number of each kind; no other write counts at the same time."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._counted: list[int] = []
        self._last: list[int] = []
        self.last_pool = 0
        self.reload()

    def next(self, kind: int) -> int:
        self._last[kind] = number = self._last[kind] + 1
        return number

    def take(self, kind: int, count: int) -> Sequence[int]:
        last = self._last[kind]
        self._last[kind] = last + count
        return range(last + 1, last + count + 1)

    def save(self) -> None:
        counted = [*self._last, self.last_pool]
        if counted != self._counted:
            self._tables.execute(COUNT, counted)
            self._counted = counted

    def reload(self) -> None:
        self._counted = list(self._tables.execute(COUNTERS).fetchone())
        *self._last, self.last_pool = self._counted


def steps_on(connection: Connection, now: float, at: datetime) -> Steps:
    """Return the steps of one write."""
    tables = SqliteTables(connection)
    unit = UnitOfWork(tables, Counters(tables), StreamLog(tables), now, at)
    return Steps(unit, Pools(unit))
