"""The locks between transactions on PostgreSQL; they end with the transaction.

They are advisory: locking a row would write to it, and there may be no row yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from poolhand.stores.sql.tables import Tables

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
