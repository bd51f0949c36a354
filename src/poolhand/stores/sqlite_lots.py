"""Many rows in one statement: what a row costs is, for a good half, the statement around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from sqlite3 import Connection
from typing import Any, TypeVar

V = TypeVar("V")

# Few sizes, so that statements are of few kinds, and prepared once.
FEW = 10
MANY = 100
ROWS = 20


def lots(values: Sequence[V]) -> Iterator[tuple[V | None, ...]]:
    """Yield values in lots of these sizes, filled up with None."""
    start = 0
    while start < len(values):
        size = FEW if len(values) - start <= FEW else MANY
        lot = tuple(values[start : start + size])
        yield lot if len(lot) == size else (*lot, *(None,) * (size - len(lot)))
        start += size


def by_lot(before: str, after: str = "") -> dict[int, str]:
    """Return a statement for each size of lots, with that many place holders in brackets."""
    return {size: f"{before} ({', '.join('?' * size)}) {after}" for size in (FEW, MANY)}


class Insert:
    """Inserts rows of one kind; `row` is how one of them is written."""

    def __init__(self, into: str, row: str) -> None:
        self._one = f"{into} VALUES {row}"
        self._lot = f"{into} VALUES {', '.join([row] * ROWS)}"

    def write(self, connection: Connection, rows: list[tuple[Any, ...]]) -> None:
        start = 0
        while len(rows) - start >= ROWS:
            values = list(chain.from_iterable(rows[start : start + ROWS]))
            connection.execute(self._lot, values)
            start += ROWS
        if start < len(rows):
            connection.executemany(self._one, rows[start:])


class Delete:
    """Deletes rows by their numbers."""

    def __init__(self, where: str) -> None:
        self._lots = by_lot(f"{where} IN")
        self._one = f"{where} = ?"

    def write(self, connection: Connection, numbers: list[int]) -> None:
        if len(numbers) == 1:
            connection.execute(self._one, numbers)
            return
        for lot in lots(numbers):
            connection.execute(self._lots[len(lot)], lot)
