"""Counts of jobs in a PostgreSQL store, computed on demand: free pools keep no counts."""

from __future__ import annotations

from collections.abc import Sequence

from poolhand.contract import PoolRow
from poolhand.stores.sql.queue.pools import spec_of
from poolhand.stores.sql.rows import sought
from poolhand.stores.sql.tables import Tables

POOLS = """
SELECT spec, paused, resized, coalesce(running, 0), coalesce(queued, 0), coalesce(blocked, 0),
    coalesce(scheduled, 0), coalesce(parked, 0)
FROM (SELECT no, spec, paused, resized FROM poolhand_pools) p
LEFT JOIN (SELECT pool, count(*) AS running FROM poolhand_claims GROUP BY pool) c ON c.pool = p.no
LEFT JOIN (SELECT pool, count(*) FILTER (WHERE place = 4) AS queued,
        count(*) FILTER (WHERE place IN (2, 3)) AS blocked,
        count(*) FILTER (WHERE place = 1) AS scheduled, count(*) FILTER (WHERE place = 0) AS parked
    FROM poolhand_waits GROUP BY pool) w ON w.pool = p.no
ORDER BY p.no
"""
# A few pools are counted one by one, so that the jobs of all others are not read.
SOME_POOLS = """
SELECT spec, paused, resized,
    (SELECT count(*) FROM poolhand_claims WHERE pool = p.no),
    (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 4),
    (SELECT count(*) FROM poolhand_waits
        WHERE pool = p.no AND place IN (2, 3) AND gate IS NOT NULL),
    (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 1),
    (SELECT count(*) FROM poolhand_waits WHERE pool = p.no AND place = 0)
FROM poolhand_pools p WHERE name = ANY(?) ORDER BY p.no
"""
TALLIED = """
SELECT coalesce(queued, 0), coalesce(scheduled, 0), coalesce(blocked, 0), coalesce(running, 0),
    coalesce(completed, 0), coalesce(failed, 0), coalesce(cancelled, 0), coalesce(expired, 0),
    coalesce(rejected, 0)
FROM (SELECT no, name FROM poolhand_pools) p
LEFT JOIN (SELECT pool, count(*) AS running FROM poolhand_claims WHERE stuck = 0 GROUP BY pool) c
    ON c.pool = p.no
LEFT JOIN (SELECT pool, count(*) FILTER (WHERE place = 4) AS queued,
        count(*) FILTER (WHERE place = 1) AS scheduled,
        count(*) FILTER (WHERE place IN (2, 3)) AS blocked
    FROM poolhand_waits GROUP BY pool) w ON w.pool = p.no
LEFT JOIN (SELECT pool, sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
        sum(cancelled)::bigint AS cancelled, sum(expired)::bigint AS expired,
        sum(rejected)::bigint AS rejected
    FROM poolhand_tallies GROUP BY pool) t ON t.pool = p.no
WHERE ?::text IS NULL OR p.name = ?
"""


def pool_rows(tables: Tables, names: Sequence[str] | None) -> list[PoolRow]:
    """Return pools as callers see them."""
    if names is None:
        rows = tables.execute(POOLS)
    else:
        rows = tables.execute(SOME_POOLS, (list(map(sought, names)),))
    return [PoolRow(spec_of(spec), bool(paused), *counts) for spec, paused, *counts in rows]
