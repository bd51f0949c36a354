"""One write of a SQLite store: its steps, and the row that counts all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from sqlite3 import Connection

from poolhand.stores.sql.log import StreamLog
from poolhand.stores.sql.queue.pools import Pools
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.tables import Tables
from poolhand.stores.sql.unit_of_work import UnitOfWork
from poolhand.stores.sqlite.tables import SqliteTables

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
    books = UnitOfWork(tables, Counters(tables), StreamLog(tables), now, at)
    return Steps(books, Pools(books))
