"""Tables in memory exist as long as their store."""

from __future__ import annotations

import gc
import sqlite3

import pytest

from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import MemoryTables


async def test_a_memory_store_dropped_without_a_close_is_freed() -> None:
    tables = MemoryTables(Runtime())
    await tables.open()
    connection = tables.read(lambda connection: connection)
    del tables
    gc.collect()
    # Closed explicitly: from Python 3.13 on an unclosed connection is a warning.
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
