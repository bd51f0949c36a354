"""The database interface of the code that SQL stores share, in SQL that all of them accept.

In a statement `?` stands for a value, `(?*)` for many. Clauses for PostgreSQL alone are written as
comments: `/*pg FOR UPDATE */`. In statements for PostgreSQL alone `?2` is the second value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from poolhand.errors import Conflict, UsageError

Values = Sequence[Any]


class Insert:
    """Rows to insert into a table: the columns set per row, with their types, and fixed columns.

    A row with the `key` of an existing row replaces it.
    """

    def __init__(
        self,
        table: str,
        columns: str,
        fixed: Mapping[str, str] | None = None,
        key: Sequence[str] = (),
    ) -> None:
        self.table = table
        names, types = zip(*(column.split(" ", 1) for column in columns.split(", ")), strict=True)
        self.columns: tuple[str, ...] = names
        self.types: tuple[str, ...] = types
        fixed = fixed or {}
        self.fixed = tuple(fixed.values())
        self.into = f"INSERT INTO {table} ({', '.join([*names, *fixed])})"
        others = [f"{name} = excluded.{name}" for name in names if name not in key]
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


MOST = 2**63 - 1  # the largest number that every store can hold
EXPIRED_AT_ONCE = 100  # overdue jobs that one claim expires at most


def cannot_be_kept(error: Exception) -> UsageError:
    """Return the error for a value that no store can hold."""
    return UsageError(f"a value cannot be stored: {error}")


def known_already(id: str = "") -> Conflict:
    """Return the error for a new job whose id is taken."""
    which = f"id={id!r} is" if id else "an id is"
    return Conflict(f"{which} already used by another job; ids must be unique")


def check_page(after: int | None, limit: int) -> None:
    """Raise UsageError for an invalid cursor or limit of a page."""
    if after is not None and not 0 <= after <= MOST:
        raise UsageError(f"after={after} is not allowed; pass the cursor of the page before")
    if not 0 <= limit < MOST:
        raise UsageError(f"limit={limit} is not allowed; it must be from 0 to {MOST - 1:,}")
