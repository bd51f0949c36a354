"""The tables of a PostgreSQL store, as one connection sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from poolhand.stores.postgres_bridge import wait
from poolhand.stores.sql_tables import Delete, Insert, Values

_FOR_US = re.compile(r"/\*pg (.*?)\*/")
_VALUE = re.compile(r"\?(\d*)")
# SQLite is told by these words where to begin, and which index not to take.
_FOR_OTHERS = (("CROSS JOIN", "JOIN"), (" +j.", " j."))


class Connection(Protocol):
    """What is used of a connection of asyncpg."""

    async def fetch(self, text: str, *values: Any) -> list[Any]: ...

    async def execute(self, text: str) -> str: ...


class Dialect:
    """Turns the texts that all databases share into those of PostgreSQL, each once."""

    def __init__(self, schema: str) -> None:
        self.schema = '"{}"'.format(schema.replace('"', '""'))
        self._texts: dict[str, str] = {}
        self._inserts: dict[Insert, str] = {}

    def text(self, shared: str) -> str:
        """Return a statement with numbered values, its tables named with their schema."""
        text = self._texts.get(shared)
        if text is None:
            text = self._texts[shared] = self._translated(shared)
        return text

    def inserting(self, what: Insert) -> str:
        """Return a statement that takes one array for each column."""
        text = self._inserts.get(what)
        if text is None:
            arrays = ", ".join(f"?::{type}[]" for type in what.types)
            values = ", ".join(("given.*", *what.fixed))
            shared = f"{what.into} SELECT {values} FROM unnest({arrays}) AS given{what.conflict}"  # noqa: S608
            text = self._inserts[what] = self._translated(shared)
        return text

    def _translated(self, shared: str) -> str:
        text = _FOR_US.sub(r"\1", shared).replace("IN (?*)", "= ANY(?)")
        for theirs, ours in _FOR_OTHERS:
            text = text.replace(theirs, ours)
        count = 0

        def number(value: re.Match[str]) -> str:
            nonlocal count
            count += 1
            return f"${value[1] or count}"

        return _VALUE.sub(number, text).replace("poolhand_", f"{self.schema}.poolhand_")


class Found:
    """The rows that a statement found."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


class PostgresTables:
    """The tables within one transaction; every statement waits for the server."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self._fetch = connection.fetch
        self._dialect = dialect

    def execute(self, text: str, values: Values = (), /) -> Found:
        return Found(wait(self._fetch(self._dialect.text(text), *values)))

    def among(self, text: str, many: Values, first: Values = ()) -> Iterator[Any]:
        if not many:
            return iter(())
        return iter(wait(self._fetch(self._dialect.text(text), *first, list(many))))

    def insert(self, what: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            columns = zip(*rows, strict=True)
            wait(self._fetch(self._dialect.inserting(what), *columns))

    def delete(self, what: Delete, numbers: Sequence[int]) -> None:
        if numbers:
            text = self._dialect.text(f"{what.where} = ANY(?::bigint[])")
            wait(self._fetch(text, list(numbers)))
