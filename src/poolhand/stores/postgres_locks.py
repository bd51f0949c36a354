"""What transactions on PostgreSQL keep each other from, by locks that end with them.

They are advisory: a lock of a row would be a write to it, and there may be no row yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from zlib import crc32

from poolhand.stores.sql_tables import Tables

POOLS, STREAMS, DOCUMENTS, SCHEMA = "pools", "streams", "documents", "schema"
ALONE = "SELECT pg_advisory_xact_lock(?::int, no) FROM unnest(?::int[]) AS wanted(no)"
# All of them in their order, and what time it is when the last was got.
HOLD = """
SELECT count(held), extract(epoch FROM clock_timestamp())::double precision FROM (
    SELECT CASE WHEN alone THEN pg_advisory_xact_lock(?1::int, no)
        ELSE pg_advisory_xact_lock_shared(?1::int, no) END AS held
    FROM unnest(?2::int[], ?3::bool[]) AS wanted(no, alone)) locked
"""


class Locks:
    """The locks of one schema, which mean nothing to those of another in the same database."""

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def kind(self, name: str) -> int:
        """Return the number under which locks of a kind are taken."""
        return _number(f"poolhand {self._schema} {name}")

    def take(self, tables: Tables, kind: str, names: Iterable[str]) -> None:
        """Take what has these names, alone, until the transaction ends."""
        numbers = sorted({_number(name) for name in names})
        tables.execute(ALONE, (self.kind(kind), numbers))

    def hold(self, tables: Tables, pools: Mapping[int, bool]) -> float:
        """Take pools, each alone or with others; return the time of the server."""
        numbers = sorted(pools)
        asked = (self.kind(POOLS), numbers, [pools[no] for no in numbers])
        found: float = tables.execute(HOLD, asked).fetchone()[1]
        return found


def _number(name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass")) - 2**31
