"""Upkeep of a PostgreSQL store, in addition to that of all SQL stores."""

from __future__ import annotations

from datetime import datetime

from poolhand.stores.sql.rows import submit_of
from poolhand.stores.sql.tables import Tables
from poolhand.stores.sql.upkeep import DATED_AT_ONCE, UNDATED

WITH_REMAINS = "SELECT no FROM poolhand_pools WHERE keys > 0 OR lanes > 0 ORDER BY no"
FOLD = """
WITH gone AS (DELETE FROM poolhand_tallies RETURNING *)
INSERT INTO poolhand_tallies
SELECT pool, sum(completed), sum(failed), sum(cancelled), sum(expired), sum(rejected)
FROM gone GROUP BY pool
"""
DATE = """
UPDATE poolhand_jobs SET submitted = given.submitted, user_name = given.user_name
FROM unnest(?::bigint[], ?::double precision[], ?::text[]) AS given(seq, submitted, user_name)
WHERE poolhand_jobs.seq = given.seq
"""


def with_remains(tables: Tables) -> list[int]:
    """Return the pools that may have expired keys or lanes."""
    return [no for (no,) in tables.execute(WITH_REMAINS)]


def fold_tallies(tables: Tables, now: float, at: datetime) -> None:
    """Merge the tallies of each pool into one row."""
    tables.execute(FOLD)


def date_jobs(tables: Tables, now: float, at: datetime) -> None:
    """Fill in submission time and user in rows of older versions, a few at a time."""
    undated = tables.execute(UNDATED, (DATED_AT_ONCE,)).fetchall()
    if undated:
        times, users = zip(*(submit_of(ordered) for _, ordered in undated), strict=True)
        tables.execute(DATE, ([seq for seq, _ in undated], list(times), list(users)))
