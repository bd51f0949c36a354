"""What is tidied up in a PostgreSQL store beside what all SQL stores forget."""

from __future__ import annotations

from datetime import datetime

from poolhand.stores.sql_tables import Tables

WITH_REMAINS = "SELECT no FROM poolhand_pools WHERE keys > 0 OR lanes > 0 ORDER BY no"
FOLD = """
WITH gone AS (DELETE FROM poolhand_tallies RETURNING *)
INSERT INTO poolhand_tallies
SELECT pool, sum(completed), sum(failed), sum(cancelled), sum(expired), sum(rejected)
FROM gone GROUP BY pool
"""


def with_remains(tables: Tables) -> list[int]:
    """Return the pools where keys or lanes may have outlived their time."""
    return [no for (no,) in tables.execute(WITH_REMAINS)]


def fold_tallies(tables: Tables, now: float, at: datetime) -> None:
    """Add up what was counted."""
    tables.execute(FOLD)
