"""What transactions on PostgreSQL keep each other from, by locks that end with them.

They are advisory: a lock of a row would be a write to it, and there may be no row yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from poolhand.stores.sql.tables import Tables

POOLS, STREAMS, DOCUMENTS, SCHEMA = "pools", "streams", "documents", "schema"
ALONE = "SELECT pg_advisory_xact_lock(?::int, no) FROM unnest(?::int[]) AS wanted(no)"
# All of them in their order; when the last was got, what time it is, and new numbers.
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
    """What comes with pools that are held: numbers for jobs and their turns, and the time.

    That is what the server's clock says, and the `skew` by which it was set before.
    """

    wall: float
    skew: float
    numbers: list[int]


class Locks:
    """The locks of one schema, which mean nothing to those of another in the same database."""

    def __init__(self, schema: str) -> None:
        kinds = (POOLS, STREAMS, DOCUMENTS, SCHEMA)
        self._kinds = {name: _number(f"poolhand {schema} {name}") for name in kinds}

    def kind(self, name: str) -> int:
        """Return the number under which locks of a kind are taken."""
        return self._kinds[name]

    def take(self, tables: Tables, kind: str, names: Iterable[str]) -> None:
        """Take what has these names, alone, until the transaction ends."""
        numbers = sorted({_number(name) for name in names})
        tables.execute(ALONE, (self.kind(kind), numbers))

    def hold(self, tables: Tables, pools: Mapping[int, bool], jobs: int = 0) -> HeldLocks:
        """Take pools, each alone or with others, and numbers for so many jobs."""
        numbers = sorted(pools)
        asked = (self.kind(POOLS), numbers, [pools[no] for no in numbers], jobs)
        return HeldLocks(*tables.execute(HOLD, asked).fetchone()[1:])


def _number(name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass")) - 2**31
