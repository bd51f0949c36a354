"""What SQL stores have in common asks a database through this, in words that all of them know.

A `?` in a text stands for a value, `(?*)` for many. What PostgreSQL alone wants to hear stands in a
comment: `/*pg FOR UPDATE */`; in texts for it alone, `?2` is the second value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

Values = Sequence[Any]


class Insert:
    """Rows to be inserted into a table: the columns that differ, with their types, and the others.

    A row that has the `key` of one that is there takes its place.
    """

    def __init__(
        self,
        table: str,
        columns: Mapping[str, str],
        fixed: Mapping[str, str] | None = None,
        key: Sequence[str] = (),
    ) -> None:
        self.table = table
        self.columns = tuple(columns)
        self.types = tuple(columns.values())
        fixed = fixed or {}
        self.fixed = tuple(fixed.values())
        self.into = f"INSERT INTO {table} ({', '.join([*columns, *fixed])})"
        others = [f"{name} = excluded.{name}" for name in columns if name not in key]
        self.conflict = ""
        if key:
            self.conflict = f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {', '.join(others)}"


class Delete:
    """Rows to be deleted by their numbers."""

    def __init__(self, table: str, column: str) -> None:
        self.where = f"DELETE FROM {table} WHERE {column}"  # noqa: S608


TableWrite = tuple[Insert | Delete, Sequence[Any]]  # with the rows to insert, or the numbers


class Rows(Protocol):
    """What a statement found."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Tables(Protocol):
    """The tables of a store within one transaction."""

    def execute(self, text: str, values: Values = (), /) -> Rows:
        """Run one statement."""

    def among(self, text: str, many: Values, first: Values = ()) -> Iterator[Any]:
        """Ask about many values at once, in as many statements as it takes."""

    def insert(self, what: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows."""

    def stream(self, what: Insert, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert many rows while they are made; whoever makes them cannot ask anything meanwhile.

        Of a kind that has neither fixed columns nor a key.
        """

    def delete(self, what: Delete, numbers: Sequence[int]) -> None:
        """Delete rows."""

    def write(self, changes: Sequence[TableWrite]) -> None:
        """Insert and delete rows of several kinds, none of which has to do with another."""
