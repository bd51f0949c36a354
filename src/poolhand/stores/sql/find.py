"""Queries for the jobs in a SQL store: by id, in pages, and counts by status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from poolhand.contract import Filter, JobPage, Stored
from poolhand.rules.job import TERMINAL, WAITING, Status
from poolhand.rules.queue.entry import seconds
from poolhand.stores.sql.rows import BY_IDS, ENDS, FACTS, PLACED, JobFacts, sought, submit_of
from poolhand.stores.sql.tables import Tables, check_page

CALLS = "SELECT id, brief FROM poolhand_jobs WHERE id IN (?*)"
# The table that drives a search, newest first; the order of the joins is deliberate.
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
# The fields to find jobs by, the most selective first, with their columns.
COLUMNS = {
    "session": "session",
    "key": "key",
    "user": "user_name",
    "tenant": "tenant",
    "name": "name",
}
# Jobs are numbered in order of submission, except when a clock was set. So jobs of a time span or
# with a common id prefix lie between two numbers, and only those are searched. An index alone
# answers these queries. The sum keeps PostgreSQL from scanning for the lowest number overall.
BETWEEN = """
SELECT min(seq + 0), max(seq + 0) FROM poolhand_jobs WHERE submitted >= ? AND submitted < ?
"""
BEGIN_ALIKE = "SELECT min(seq + 0), max(seq + 0) FROM poolhand_jobs WHERE id >= ? AND id < ?"
ALWAYS = (float("-inf"), float("inf"))
LAST_LETTER = "\U0010ffff"
ARE_UNDATED = "SELECT 1 FROM poolhand_jobs WHERE submitted IS NULL LIMIT 1"
UNDATED_AT_ONCE = 1000
# A number for each status: places as they are, ends after them.
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


def get(tables: Tables, ids: Sequence[str], calls: bool) -> list[Stored | None]:
    """Return jobs by their ids, None for those not in the store; with `calls` their records."""
    found: dict[str, Stored] = {}
    asked = [sought(id) for id in ids]
    for row in tables.among(BY_IDS, asked):
        facts = JobFacts._make(row)
        found[facts.id] = facts.stored()
    for id, record in tables.among(CALLS, asked) if calls else ():
        if id in found:
            found[id] = replace(found[id], call_record=record)
    return [found.get(id) for id in ids]


def find(tables: Tables, which: Filter, after: int | None, limit: int) -> JobPage:
    """Return a page of jobs, newest first."""
    check_page(after, limit)
    found = {row.seq: row for row in islice(_undated(tables, which, after), limit + 1)}
    bounds = _bounds(tables, which)
    if bounds is not None:
        begin, order = _begin(which)
        clauses, values = _clauses(which, order, bounds, after)
        where = " AND ".join(clauses)
        text = f"{FACTS} FROM {begin} WHERE {where} ORDER BY {order} DESC LIMIT ?"
        rows = map(JobFacts._make, tables.execute(text, (*values, limit + 1)))
        found.update({row.seq: row for row in rows})
    seqs = sorted(found, reverse=True)
    last = seqs[limit - 1] if len(seqs) > limit else None
    return JobPage(tuple([found[seq].stored() for seq in seqs[:limit]]), last)


def count(tables: Tables, which: Filter, tally: str = TALLIES) -> dict[Status, int]:
    """Count jobs by status; counts that pools `tally` themselves are not computed again."""
    counts = dict.fromkeys(TALLIED, 0)
    if which == Filter(which.pool, which.statuses):
        pool = which.pool and sought(which.pool)
        for tallies in tables.execute(tally, (pool, pool)):
            for status, number in zip(TALLIED, tallies, strict=True):
                counts[status] += number
        wanted = which.statuses or TALLIED
        return {status: number for status, number in counts.items() if number and status in wanted}
    for row in _undated(tables, which):
        counts[row.job().status] += 1
    bounds = _bounds(tables, which)
    if bounds is not None:
        begin, order = _begin(which)
        clauses, values = _clauses(which, order, bounds)
        where = " AND ".join(clauses)
        text = f"SELECT {CODE}, count(*) FROM {begin} WHERE {where} GROUP BY 1"  # noqa: S608
        for code, number in tables.execute(text, values):
            counts[CODES[code]] += number
    return {status: number for status, number in counts.items() if number}


def _undated(tables: Tables, which: Filter, after: int | None = None) -> Iterator[JobFacts]:
    """Yield the matching jobs that older versions have written, newest first.

    Their submission time and user are in no column yet, so each job is decoded.
    """
    since, until = _span(which)
    if which.user is None and (since, until) == ALWAYS:
        return
    if tables.execute(ARE_UNDATED).fetchone() is None:
        return
    others = replace(which, user=None, since=None, until=None)
    bounds = _bounds(tables, others)
    while bounds is not None:
        clauses, values = _clauses(others, "j.seq", bounds, after)
        where = " AND ".join(["j.submitted IS NULL", *clauses])
        text = f"{FACTS} FROM {FROM_JOBS} WHERE {where} ORDER BY j.seq DESC LIMIT ?"
        rows = list(map(JobFacts._make, tables.execute(text, (*values, UNDATED_AT_ONCE))))
        for row in rows:
            submitted, user = submit_of(row.ordered)
            if since <= submitted < until and which.user in (None, user):
                yield row
        if len(rows) < UNDATED_AT_ONCE:
            return
        after = rows[-1].seq


def _span(which: Filter) -> tuple[float, float]:
    """Return the time span in which the matching jobs were submitted."""
    first, last = ALWAYS
    return (
        first if which.since is None else seconds(which.since),
        last if which.until is None else seconds(which.until),
    )


def _bounds(tables: Tables, which: Filter) -> tuple[int | None, int | None] | None:
    """Return the lowest and the highest seq of the matching jobs; None if there are none."""
    low: int | None = None
    high: int | None = None
    asked: list[tuple[str, tuple[Any, Any]]] = []
    if _span(which) != ALWAYS:
        asked.append((BETWEEN, _span(which)))
    if which.id_prefix:
        prefix = sought(which.id_prefix)
        asked.append((BEGIN_ALIKE, (prefix, prefix + LAST_LETTER)))
    for text, values in asked:
        first, last = tables.execute(text, values).fetchone()
        if first is None:
            return None
        low = first if low is None else max(low, first)
        high = last if high is None else min(high, last)
    return low, high


def _clauses(
    which: Filter, order: str, bounds: tuple[int | None, int | None], after: int | None = None
) -> tuple[list[str], list[Any]]:
    """Return the clauses of a filter and their values; user input is only passed as values."""
    clauses = ["coalesce(w.place, 1) > 0"]
    values: list[Any] = []
    limits = zip((">=", "<=", "<"), (*bounds, after), strict=True)
    for sign, number in limits:
        if number is not None:
            clauses.append(f"{order} {sign} ?")
            values.append(number)
    if _span(which) != ALWAYS:
        clauses.append("+j.submitted >= ? AND +j.submitted < ?")
        values += _span(which)
    if which.id_prefix:
        clauses.append("+j.id >= ? AND +j.id < ?")
        values += [sought(which.id_prefix), sought(which.id_prefix) + LAST_LETTER]
    if which.pool is not None:
        clauses.append("j.pool = (SELECT no FROM poolhand_pools WHERE name = ?)")
        values.append(sought(which.pool))
    sure = ""
    for field, column in COLUMNS.items():
        value = getattr(which, field)
        if value is not None:
            # The first column uses its index; the `+` keeps SQLite from using one for the others.
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
    """Return the tables to search, the one with the fewest rows first, and the order column."""
    statuses = set(which.statuses)
    if statuses == {Status.RUNNING}:
        return FROM_CLAIMS, "c.seq"
    if any(
        (which.session is not None, which.key, which.user is not None, which.tenant is not None)
    ):
        return FROM_JOBS, "j.seq"
    if which.dead:
        return FROM_ENDS, "e.seq"
    if statuses and statuses <= WAITING:
        return FROM_WAITS, "w.seq"
    if which.name is None and statuses and statuses <= TERMINAL:
        return FROM_ENDS, "e.seq"
    return FROM_JOBS, "j.seq"
