"""What can be seen of the jobs in a SQL store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poolhand.contract import Filter, Page, Stored
from poolhand.rules.job import TERMINAL, WAITING, Status
from poolhand.stores.bounds import check_page
from poolhand.stores.sql_rows import ENDS, FACTS, PLACED, Facts, sought
from poolhand.stores.sql_tables import Tables

BY_IDS = f"{FACTS}, j.id FROM poolhand_jobs j {PLACED} WHERE j.id IN (?*)"
BRIEF = "SELECT brief FROM poolhand_jobs WHERE id = ?"
# From which table on a search goes, newest first; the order of the joins is meant as it stands.
FROM_JOBS = f"poolhand_jobs j {PLACED}"
FROM_WAITS = """
poolhand_waits w CROSS JOIN poolhand_jobs j ON j.seq = w.seq
LEFT JOIN poolhand_claims c ON c.seq = w.seq AND c.stuck = 0
LEFT JOIN poolhand_ends e ON e.seq = w.seq
"""
FROM_CLAIMS = """
poolhand_claims c CROSS JOIN poolhand_jobs j ON j.seq = c.seq AND c.stuck = 0
LEFT JOIN poolhand_waits w ON w.seq = c.seq
LEFT JOIN poolhand_ends e ON e.seq = c.seq
"""
FROM_ENDS = """
poolhand_ends e CROSS JOIN poolhand_jobs j ON j.seq = e.seq
LEFT JOIN poolhand_waits w ON w.seq = e.seq
LEFT JOIN poolhand_claims c ON c.seq = e.seq AND c.stuck = 0
"""
# By which jobs are found, those that fewest have in common first.
COLUMNS = ("session", "key", "tenant", "name")
# A number for each status: places as they are, ends behind them.
CODE = "CASE WHEN e.status IS NULL THEN coalesce(w.place, 6) ELSE e.status + 7 END"
CODES = (
    Status.QUEUED,
    Status.SCHEDULED,
    Status.BLOCKED,
    Status.BLOCKED,
    Status.QUEUED,
    Status.QUEUED,
    Status.RUNNING,
    *ENDS,
)
TALLIES = """
SELECT queued, scheduled, waiting - queued - scheduled,
    running - (SELECT count(*) FROM poolhand_claims WHERE pool = poolhand_pools.no AND stuck = 1),
    completed, failed, cancelled, expired, rejected
FROM poolhand_pools WHERE ? IS NULL OR name = ?
"""
TALLIED = (Status.QUEUED, Status.SCHEDULED, Status.BLOCKED, Status.RUNNING, *ENDS)


def get(tables: Tables, ids: Sequence[str]) -> list[Stored | None]:
    """Return jobs by their ids, None for those that are not kept."""
    found: dict[str, Stored] = {}
    for row in tables.among(BY_IDS, [sought(id) for id in ids]):
        found[row[-1]] = Facts._make(row[:-1]).stored()
    return [found.get(id) for id in ids]


def brief(tables: Tables, id: str) -> bytes | None:
    """Return what a job was ordered with."""
    row: tuple[bytes] | None = tables.execute(BRIEF, (sought(id),)).fetchone()
    return None if row is None else row[0]


def find(tables: Tables, which: Filter, after: int | None, limit: int) -> Page:
    """Return a page of jobs, newest first."""
    check_page(after, limit)
    begin, order = _begin(which)
    clauses, values = _clauses(which)
    if after is not None:
        clauses.append(f"{order} < ?")
        values.append(after)
    where = " AND ".join(clauses)
    text = f"{FACTS} FROM {begin} WHERE {where} ORDER BY {order} DESC LIMIT ?"
    rows = [Facts._make(row) for row in tables.execute(text, (*values, limit + 1))]
    last = rows[limit - 1].seq if len(rows) > limit else None
    return Page(tuple([row.stored() for row in rows[:limit]]), last)


def count(tables: Tables, which: Filter, tally: str = TALLIES) -> dict[Status, int]:
    """Count jobs by status; what pools `tally` by themselves is not counted again."""
    counts = dict.fromkeys(TALLIED, 0)
    if which == Filter(which.pool, which.statuses):
        pool = which.pool and sought(which.pool)
        for tallies in tables.execute(tally, (pool, pool)):
            for status, number in zip(TALLIED, tallies, strict=True):
                counts[status] += number
    else:
        clauses, values = _clauses(which)
        where = " AND ".join(clauses)
        text = f"SELECT {CODE}, count(*) FROM {_begin(which)[0]} WHERE {where} GROUP BY 1"  # noqa: S608
        for code, number in tables.execute(text, values):
            counts[CODES[code]] += number
    wanted = which.statuses or TALLIED
    return {status: number for status, number in counts.items() if number and status in wanted}


def _clauses(which: Filter) -> tuple[list[str], list[Any]]:
    """Return what has to hold of a job; only texts of our own become part of a statement."""
    clauses = ["coalesce(w.place, 1) > 0"]
    values: list[Any] = []
    if which.pool is not None:
        clauses.append("j.pool = (SELECT no FROM poolhand_pools WHERE name = ?)")
        values.append(sought(which.pool))
    sure = ""
    for column in COLUMNS:
        value = getattr(which, column)
        if value is not None:
            # The first one finds them; with the sign the others only have to hold.
            clauses.append(f"{sure}j.{column} = ?")
            values.append(sought(value))
            sure = "+"
    if which.key:
        clauses.append("j.key <> ''")
    if which.dead is not None:
        clauses.append("e.dead = 1" if which.dead else "coalesce(e.dead, 0) = 0")
    if which.statuses:
        codes = [str(code) for code, status in enumerate(CODES) if status in which.statuses]
        clauses.append(f"{CODE} IN ({', '.join(codes)})")
    return clauses, values


def _begin(which: Filter) -> tuple[str, str]:
    """Return the tables to look through, that with the fewest to meet first, and their order."""
    statuses = set(which.statuses)
    if statuses == {Status.RUNNING}:
        return FROM_CLAIMS, "c.seq"
    if which.session is not None or which.key or which.tenant is not None:
        return FROM_JOBS, "j.seq"
    if which.dead:
        return FROM_ENDS, "e.seq"
    if statuses and statuses <= WAITING:
        return FROM_WAITS, "w.seq"
    if which.name is None and statuses and statuses <= TERMINAL:
        return FROM_ENDS, "e.seq"
    return FROM_JOBS, "j.seq"
