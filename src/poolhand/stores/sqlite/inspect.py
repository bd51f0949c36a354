"""Inspects a SQLite store from outside: read-only, without opening it as a store."""

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
    """Return the schema number of a file, 0 if there is none, and the newest known here."""
    taken = _look(path, migrations.applied) if os.path.exists(path) else {}
    return max(taken, default=0), len(migrations.steps())


def damage_of(path: str) -> list[str]:
    """Read a whole file; return the problems of its pages."""
    return _look(path, lambda connection: list(faults.problems(connection)))


def _look(path: str, op: Callable[[sqlite3.Connection], T]) -> T:
    # A read-only connection makes no checkpoint, not even when it closes.
    try:
        with closing(sqlite3.connect(faults.uri(path, "ro"), uri=True)) as connection:
            return op(connection)
    except sqlite3.Error as error:
        failure = faults.as_store_error(error, path, writing=False)
        if failure is None:
            raise
        raise failure from error
