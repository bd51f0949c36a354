"""The tables of a PostgreSQL store as one transaction sees them, and locks between transactions.

The desk and its parts query in the middle of a decision. They run in a greenlet; the coroutine that
runs it awaits the answer on the event loop, where other tasks go on meanwhile. Locks end with the
transaction. They are advisory: locking a row would write to it, and there may be no row yet.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast
from zlib import crc32

import asyncpg
from greenlet import getcurrent, greenlet

from poolhand.stores.sql.tables import Delete, Insert, Tables, TableWrite, Values

T = TypeVar("T")


def wait(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable; only inside `run`."""
    return cast(T, getcurrent().parent.switch(awaitable))


async def run(call: Callable[[], T]) -> T:
    """Run a function that may call `wait`."""
    side = greenlet(call)
    side.gr_context = getcurrent().gr_context
    asked: Any = side.switch()
    while not side.dead:
        try:
            answer = await asked
        except BaseException as error:
            asked = side.throw(error)
        else:
            asked = side.switch(answer)
    return cast(T, asked)


_FOR_US = re.compile(r"/\*pg (.*?)\*/", re.DOTALL)
# Returns the xid, and the present versions of the pools that must not have changed.
WRITTEN = """
SELECT pg_current_xact_id()::text,
    ARRAY(SELECT xmin::text FROM poolhand_pools WHERE no = ANY(?::text::bigint[]) ORDER BY no)
"""
SESSION_USERS = "poolhand_session_users"
NUMBERS = frozenset({"bigint", "smallint", "double precision"})
_NAMED = (("None", "NULL"), ("True", "1"), ("False", "0"))
_VALUE = re.compile(r"\?(\d*)")
# Syntax that fixes the join order, or rules out an index, in SQLite only.
_FOR_OTHERS = (("CROSS JOIN", "JOIN"), (" +j.", " j."))


Part = tuple[Insert | Delete, tuple[bool, ...]]  # and which columns are the same in all rows


class Outdated(Exception):
    """Data read before a lock was taken has changed since: start again."""


class RawConnection(Protocol):
    """An asyncpg connection, as far as the store uses it."""

    async def fetch(self, text: str, *values: Any) -> list[Any]: ...

    async def execute(self, text: str) -> str: ...

    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: Iterable[tuple[Any, ...]],
        columns: Sequence[str],
        schema_name: str,
    ) -> str: ...

    def terminate(self) -> None: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    async def close(self, timeout: float) -> None: ...

    def get_server_version(self) -> tuple[int, ...]: ...

    async def add_listener(self, channel: str, heard: Callable[..., None]) -> None: ...

    def add_termination_listener(self, ended: Callable[..., None]) -> None: ...


class Dialect:
    """Translates shared statements into PostgreSQL's, each once.

    COPY prepares a named statement, which behind a pooler may belong to another client.
    """

    def __init__(self, schema: str, copies: bool = True) -> None:
        self.name = schema
        self.copies = copies
        self.schema = '"{}"'.format(schema.replace('"', '""'))
        self._texts: dict[str, str] = {}
        self._writes: dict[tuple[Part, ...], str] = {}

    def text(self, shared: str) -> str:
        """Return a statement with numbered values and with schema-qualified tables."""
        text = self._texts.get(shared)
        if text is None:
            text = self._texts[shared] = self._translated(shared)
        return text

    def about(self, shared: str, many: Values) -> str:
        """Return a statement for many values, which are all numbers or all texts."""
        if not isinstance(many[0], int):
            return self.text(shared)
        return self.text(shared.replace("IN (?*)", "= ANY(?::text::bigint[])"))

    def writing(self, parts: tuple[Part, ...]) -> str:
        """Return one statement that takes a value for each column, and returns its xid."""
        text = self._writes.get(parts)
        if text is None:
            named = ", ".join(f"w{n} AS ({_writing(*part)})" for n, part in enumerate(parts))
            shared = f"WITH {named} {WRITTEN}"
            text = self._writes[parts] = self._translated(shared)
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


def numbers(values: Values) -> str:
    """Return an array of numbers as text: asyncpg is slow at encoding other arrays."""
    text = str(list(values))[1:-1]
    for name, number in _NAMED:
        text = text.replace(name, number)
    return f"{{{text}}}"


def _writing(what: Insert | Delete, alike: tuple[bool, ...]) -> str:
    """Return how to write rows of a kind; a column that is the same in all is one value."""
    if isinstance(what, Delete):
        return f"{what.where} = ANY(?::text::bigint[])"
    columns = list(enumerate(zip(what.types, alike, strict=True)))
    values = [f"?::{type}" if same else f"c{n}" for n, (type, same) in columns]
    arrays = [
        f"?::text::{type}[]" if type in NUMBERS else f"?::{type}[]"
        for type, same in zip(what.types, alike, strict=True)
        if not same
    ]
    names = [f"c{n}" for n, (_, same) in columns if not same]
    given = f" FROM unnest({', '.join(arrays)}) AS given({', '.join(names)})" if arrays else ""
    return f"{what.into} SELECT {', '.join((*values, *what.fixed))}{given}{what.conflict}"


def _alike(what: Insert, columns: list[tuple[Any, ...]]) -> tuple[bool, ...]:
    """Return which columns have the same value in all rows; bytes only if all are NULL."""
    if len(columns[0]) == 1:
        return (True,) * len(columns)
    return tuple(
        (type != "bytea" or column[0] is None) and column.count(column[0]) == len(column)
        for type, column in zip(what.types, columns, strict=True)
    )


class Found:
    """The rows that a statement returned."""

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
    """The tables within one transaction; each statement waits for its result.

    `xid` is known after the first write. Every write checks that the pools in `proves` still have
    those versions.
    """

    def __init__(self, connection: RawConnection, dialect: Dialect) -> None:
        self.xid: str | None = None
        self.proves: dict[int, str] = {}
        self._fetch = connection.fetch
        self._copy = connection.copy_records_to_table
        self._dialect = dialect

    def execute(self, text: str, values: Values = (), /) -> Found:
        return Found(wait(self._fetch(self._dialect.text(text), *values)))

    def among(self, text: str, many: Values, first: Values = ()) -> Iterator[Any]:
        if not many:
            return iter(())
        asked = numbers(many) if isinstance(many[0], int) else list(many)
        return iter(wait(self._fetch(self._dialect.about(text, many), *first, asked)))

    def insert(self, what: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
        self.write([(what, rows)])

    def stream(self, what: Insert, rows: Iterable[tuple[Any, ...]]) -> None:
        if not self._dialect.copies:
            self.insert(what, list(rows))
            return
        name = self._dialect.name
        wait(self._copy(what.table, records=rows, columns=what.columns, schema_name=name))

    def delete(self, what: Delete, numbers: Sequence[int]) -> None:
        self.write([(what, numbers)])

    def write(self, changes: Sequence[TableWrite]) -> None:
        parts: list[Part] = []
        values: list[Any] = []
        for what, rows in changes:
            if not rows:
                continue
            if isinstance(what, Delete):
                parts.append((what, ()))
                values.append(numbers(rows))
                continue
            columns = list(zip(*rows, strict=True))
            alike = _alike(what, columns)
            parts.append((what, alike))
            three = list(zip(what.types, columns, alike, strict=True))
            values += [column[0] for _, column, same in three if same]
            values += [
                numbers(column) if type in NUMBERS else column
                for type, column, same in three
                if not same
            ]
        if parts:
            text = self._dialect.writing(tuple(parts))
            values.append(numbers(sorted(self.proves)))
            try:
                self.xid, versions = wait(self._fetch(text, *values))[0]
            except asyncpg.UniqueViolationError as error:
                if error.table_name == SESSION_USERS:
                    # Another transaction has begun the same session since it was looked up.
                    raise Outdated from error
                raise
            if versions != [self.proves[no] for no in sorted(self.proves)]:
                raise Outdated


POOLS, STREAMS, DOCUMENTS, SCHEMA = "pools", "streams", "documents", "schema"
ALONE = "SELECT pg_advisory_xact_lock(?::int, no) FROM unnest(?::int[]) AS wanted(no)"
# Takes all locks in order; returns the time when the last was taken, and new numbers.
HOLD = """
SELECT count(held), extract(epoch FROM clock_timestamp())::double precision,
    (SELECT skew FROM poolhand_counters),
    ARRAY(SELECT nextval('poolhand_job_numbers') FROM generate_series(1, ?4::int))
FROM (
    SELECT CASE WHEN alone THEN pg_advisory_xact_lock(?1::int, no)
        ELSE pg_advisory_xact_lock_shared(?1::int, no) END AS held
    FROM unnest(?2::int[], ?3::bool[]) AS wanted(no, alone)) locked
"""


class HeldLocks(NamedTuple):
    """Returned with locked pools: the time, and numbers for jobs and their turns.

    `wall` is the server's clock, `skew` the seconds by which it was set before.
    """

    wall: float
    skew: float
    numbers: list[int]


class Locks:
    """The locks of one schema; other schemas of the database have their own."""

    def __init__(self, schema: str) -> None:
        kinds = (POOLS, STREAMS, DOCUMENTS, SCHEMA)
        self._kinds = {name: _number(f"poolhand {schema} {name}") for name in kinds}

    def kind(self, name: str) -> int:
        """Return the number under which locks of a kind are taken."""
        return self._kinds[name]

    def take(self, tables: Tables, kind: str, names: Iterable[str]) -> None:
        """Lock names exclusively until the transaction ends."""
        numbers = sorted({_number(name) for name in names})
        tables.execute(ALONE, (self.kind(kind), numbers))

    def hold(self, tables: Tables, pools: Mapping[int, bool], jobs: int = 0) -> HeldLocks:
        """Lock pools, each exclusively or shared, and draw numbers for so many jobs."""
        numbers = sorted(pools)
        asked = (self.kind(POOLS), numbers, [pools[no] for no in numbers], jobs)
        return HeldLocks(*tables.execute(HOLD, asked).fetchone()[1:])


def _number(name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass")) - 2**31
