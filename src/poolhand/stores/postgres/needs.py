"""Estimates which locks and numbers a transaction on PostgreSQL needs, before it takes any.

The estimate may be wrong once the locks are taken: then the transaction starts again with the locks
that it lacked. So a good guess is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from poolhand.contract import Change, ClaimRequest, JobBatch
from poolhand.rules.queue.entry import seconds
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.stores.postgres.pools import is_free, is_plain
from poolhand.stores.postgres.transaction import Clock, Needs
from poolhand.stores.sql.pools import spec_of
from poolhand.stores.sql.rows import sought
from poolhand.stores.sql.tables import Tables

Look = Callable[[Tables], Needs]

NAMED = "SELECT no, name, spec, resized FROM poolhand_pools WHERE name = ANY(?)"
OF_JOBS = "SELECT DISTINCT pool FROM poolhand_jobs WHERE id = ANY(?)"
OF_CLAIMS = "SELECT DISTINCT pool FROM poolhand_claims WHERE token = ANY(?)"
OF_OWNER = """
SELECT c.pool FROM poolhand_claims c JOIN poolhand_owners o ON o.no = c.owner WHERE o.id = ?1
UNION SELECT w.pool FROM poolhand_waits w JOIN poolhand_owners o ON o.no = w.owner
WHERE o.id = ?1 AND w.place = 0
"""
WAITING_FOR = "SELECT DISTINCT pool FROM poolhand_waits WHERE waits_for = ?"
NOW = """
SELECT wall - skew, wall FROM poolhand_counters,
    CAST(extract(epoch FROM clock_timestamp()) AS double precision) AS wall
"""
PROMOTING = """
(SELECT pool FROM poolhand_waits WHERE place = 1 AND by_wall = 0 AND due_at <= ?1
    ORDER BY due_at LIMIT ?3)
UNION (SELECT pool FROM poolhand_waits WHERE place = 1 AND by_wall = 1 AND due_at <= ?2
    ORDER BY due_at LIMIT ?3)
UNION SELECT pool FROM poolhand_waits WHERE closes_at IS NOT NULL AND closes_at <= ?1
UNION SELECT no FROM poolhand_pools WHERE parked > 0
"""


def named(tables: Tables, names: Sequence[str]) -> dict[str, tuple[int, PoolSpec]]:
    """Return the numbers and specs of pools by name."""
    found = tables.execute(NAMED, (list(map(sought, names)),))
    return {name: (no, spec_of(spec)) for no, name, spec, _ in found}


def alone(names: Sequence[str]) -> Look:
    """Need pools exclusively."""
    return lambda tables: Needs(
        {no: True for no, *_ in tables.execute(NAMED, (list(map(sought, names)),))}
    )


def adding(batches: Sequence[JobBatch], known: dict[str, tuple[int, bool]]) -> Look:
    """Need the pools of job requests; exclusively if a request depends on other jobs.

    `known` maps names to numbers of pools, and whether they were free when last loaded.
    """
    requests = [request for batch in batches for request in batch.requests]
    names = {request.job.pool for request in requests}
    tied = {
        request.job.pool for request in requests if request.revives or not is_plain(request.job)
    }
    revived = [sought(request.revives) for request in requests if request.revives is not None]

    def look(tables: Tables) -> Needs:
        if not names <= known.keys():
            for no, name, spec, resized in tables.execute(NAMED, (list(map(sought, names)),)):
                known[name] = (no, is_free(spec_of(spec), resized))
        found = {name: known[name] for name in names if name in known}
        pools = {no: name in tied or not free for name, (no, free) in found.items()}
        if revived:
            pools |= dict.fromkeys(_numbers(tables, OF_JOBS, revived), True)
        return Needs(pools, len(requests), loads=True)

    return look


def jobs(ids: Sequence[str]) -> Look:
    """Need the pools of jobs exclusively."""
    asked = [sought(id) for id in ids]
    return lambda tables: Needs(dict.fromkeys(_numbers(tables, OF_JOBS, asked), True))


def expiring_owner(owner: str) -> Look:
    """Need exclusively the pools of everything that an owner holds."""
    return lambda tables: Needs(dict.fromkeys(_numbers(tables, OF_OWNER, sought(owner)), True))


def changing(
    changes: Sequence[Change],
    wanted: ClaimRequest | None,
    released: Sequence[int],
    known: Mapping[str, tuple[int, bool]],
    busy: Mapping[int, bool],
) -> Look:
    """Need the pools of claims that end, if known, and the pools that were `busy`.

    Those of `released` claims are needed exclusively.
    """
    pools = dict(busy)
    for change in changes:
        no, free = known.get(change.job.pool, (None, False))
        if no is not None:
            pools[no] = pools.get(no, False) or not free or not is_plain(change.job)

    def look(tables: Tables) -> Needs:
        freed = _numbers(tables, OF_CLAIMS, list(released)) if released else ()
        return Needs({**pools, **dict.fromkeys(freed, True)}, 0, True, wanted)

    return look


def waking(cause: str) -> Look:
    """Need exclusively the pools with jobs that wait for a cause."""
    return lambda tables: Needs(dict.fromkeys(_numbers(tables, WAITING_FOR, sought(cause)), True))


def promoting(limit: int, clock: Clock | None) -> Look:
    """Need the pools with jobs that are due or overdue, or with blocked submitters."""

    def look(tables: Tables) -> Needs:
        if clock is None:
            now, stamp = tables.execute(NOW).fetchone()
        else:
            now, at = clock()
            stamp = seconds(at)
        found = tables.execute(PROMOTING, (now, stamp, limit))
        return Needs({no: True for (no,) in found})

    return look


def _numbers(tables: Tables, text: str, about: object) -> list[int]:
    return [no for (no,) in tables.execute(text, (about,))]
