"""A SQLite store looked at from outside: read only, without opening it as a store would."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from poolhand.stores.sql import migrations
from poolhand.stores.sqlite import errors as faults

T = TypeVar("T")


def schema_of(path: str) -> tuple[int, int]:
    """Return the number of a file's schema, 0 where there is none, and the newest known here."""
    taken = _look(path, migrations.applied) if os.path.exists(path) else {}
    return max(taken, default=0), len(migrations.steps())


def damage_of(path: str) -> list[str]:
    """Read a file through; return what is wrong with its pages."""
    return _look(path, lambda connection: list(faults.problems(connection)))


def _look(path: str, op: Callable[[sqlite3.Connection], T]) -> T:
    # A connection that only reads makes no checkpoint, not even when it closes.
    try:
        with closing(sqlite3.connect(faults.uri(path, "ro"), uri=True)) as connection:
            return op(connection)
    except sqlite3.Error as error:
        failure = faults.as_store_error(error, path, writing=False)
        if failure is None:
            raise
        raise failure from error
