"""The tables of a SQLite store.

Many rows are written per statement: a good half of a row's cost is the statement around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from sqlite3 import Connection
from typing import Any, TypeVar

from poolhand.stores.sql.tables import Delete, Insert, TableWrite, Values

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
