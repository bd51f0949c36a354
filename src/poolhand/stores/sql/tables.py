"""The database interface of the code that SQL stores share, in SQL that all of them accept.

In a statement `?` stands for a value, `(?*)` for many. Clauses for PostgreSQL alone are written as
comments: `/*pg FOR UPDATE */`. In statements for PostgreSQL alone `?2` is the second value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

Values = Sequence[Any]


class Insert:
    """Rows to insert into a table: the columns set per row, with their types, and fixed columns.

    A row with the `key` of an existing row replaces it.
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
    """Rows to delete by the numbers in a column."""

    def __init__(self, table: str, column: str) -> None:
        self.where = f"DELETE FROM {table} WHERE {column}"  # noqa: S608


TableWrite = tuple[Insert | Delete, Sequence[Any]]  # with rows to insert, or numbers to delete


class Rows(Protocol):
    """The result of a statement."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Tables(Protocol):
    """The tables of a store within one transaction."""

    def execute(self, text: str, values: Values = (), /) -> Rows:
        """Run one statement."""

    def among(self, text: str, many: Values, first: Values = ()) -> Iterator[Any]:
        """Query for many values, in as many statements as needed; may be lazy, so consume it."""

    def insert(self, what: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows."""

    def stream(self, what: Insert, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert many rows while they are generated; the generator must not use the tables.

        Only for an `Insert` without fixed columns and without a key.
        """

    def delete(self, what: Delete, numbers: Sequence[int]) -> None:
        """Delete rows."""

    def write(self, changes: Sequence[TableWrite]) -> None:
        """Insert and delete rows of several kinds that do not depend on each other."""
