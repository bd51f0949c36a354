"""The tables of a PostgreSQL store, as one connection sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from poolhand.stores.postgres_bridge import wait
from poolhand.stores.sql_tables import Delete, Insert, Values, Written

_FOR_US = re.compile(r"/\*pg (.*?)\*/", re.DOTALL)
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
        self._writes: dict[tuple[Insert | Delete, ...], str] = {}

    def text(self, shared: str) -> str:
        """Return a statement with numbered values, its tables named with their schema."""
        text = self._texts.get(shared)
        if text is None:
            text = self._texts[shared] = self._translated(shared)
        return text

    def writing(self, whats: tuple[Insert | Delete, ...]) -> str:
        """Return one statement that takes an array for each column, and tells its transaction."""
        text = self._writes.get(whats)
        if text is None:
            parts = ", ".join(f"w{n} AS ({_writing(what)})" for n, what in enumerate(whats))
            shared = f"WITH {parts} SELECT pg_current_xact_id()::text"
            text = self._writes[whats] = self._translated(shared)
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


def _writing(what: Insert | Delete) -> str:
    if isinstance(what, Delete):
        return f"{what.where} = ANY(?::bigint[])"
    arrays = ", ".join(f"?::{type}[]" for type in what.types)
    values = ", ".join(("given.*", *what.fixed))
    return f"{what.into} SELECT {values} FROM unnest({arrays}) AS given{what.conflict}"  # noqa: S608


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
    """The tables within one transaction, `xid` once it has written; each statement waits."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self.xid: str | None = None
        self._fetch = connection.fetch
        self._dialect = dialect

    def execute(self, text: str, values: Values = (), /) -> Found:
        return Found(wait(self._fetch(self._dialect.text(text), *values)))

    def among(self, text: str, many: Values, first: Values = ()) -> Iterator[Any]:
        if not many:
            return iter(())
        return iter(wait(self._fetch(self._dialect.text(text), *first, list(many))))

    def insert(self, what: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
        self.write([(what, rows)])

    def delete(self, what: Delete, numbers: Sequence[int]) -> None:
        self.write([(what, numbers)])

    def write(self, changes: Sequence[Written]) -> None:
        whats: list[Insert | Delete] = []
        values: list[Sequence[Any]] = []
        for what, rows in changes:
            if rows:
                whats.append(what)
                values += zip(*rows, strict=True) if isinstance(what, Insert) else [list(rows)]
        if whats:
            text = self._dialect.writing(tuple(whats))
            self.xid = wait(self._fetch(text, *values))[0][0]
