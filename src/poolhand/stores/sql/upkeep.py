"""Upkeep of a SQL store: promote due jobs, expire overdue ones, delete old ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from poolhand.contract import Promoted
from poolhand.rules import audit
from poolhand.rules.lifecycle import Keep
from poolhand.rules.streams import events_of, inbox_of, journal_of
from poolhand.stores.sql import documents as sql_documents
from poolhand.stores.sql import sessions as sql_sessions
from poolhand.stores.sql.admission import StoredAdmission
from poolhand.stores.sql.log import StreamLog
from poolhand.stores.sql.pools import spec_of
from poolhand.stores.sql.rows import END_OF, sought, submit_of
from poolhand.stores.sql.sessions import session_in
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.tables import Delete, Tables
from poolhand.stores.sql.unit_of_work import FORGET_JOB, FORGET_RUN

DUE = """
SELECT due_at - ?, seq FROM poolhand_waits WHERE place = 1 AND by_wall = ? AND due_at <= ?
ORDER BY due_at, seq LIMIT ?
"""
CAUSES = """
SELECT p.name, w.waits_for, count(*) FROM poolhand_waits w JOIN poolhand_pools p ON p.no = w.pool
WHERE w.waits_for IS NOT NULL GROUP BY p.name, w.waits_for ORDER BY p.name, w.waits_for
"""
WAITING_FOR = """
SELECT pool, seq FROM (
    SELECT pool, seq FROM poolhand_waits WHERE waits_for IS NOT NULL AND waits_for = ?
    ORDER BY seq LIMIT ?
) oldest ORDER BY pool, seq
"""
WITH_BLOCKED_SUBMITTERS = "SELECT no FROM poolhand_pools WHERE parked > 0 ORDER BY no"
NEXT_DUE = "SELECT min(due_at) FROM poolhand_waits WHERE place = 1 AND by_wall = ?"
NEXT_CLOSING = "SELECT min(closes_at) FROM poolhand_waits WHERE closes_at IS NOT NULL"
# `dead` is a constant, so that each kind has its own index: results, then dead letters.
OVER, OVER_DEAD = (
    f"""
SELECT e.no, e.seq, e.pool, e.status, e.over_at,
    EXISTS (SELECT 1 FROM poolhand_keys WHERE seq = e.seq AND newcomer = 0)
    OR EXISTS (SELECT 1 FROM poolhand_claims WHERE seq = e.seq)
FROM poolhand_ends e WHERE e.dead = {dead} AND e.no > ? ORDER BY e.no LIMIT ?
/*pg FOR UPDATE OF e SKIP LOCKED */
"""  # noqa: S608
    for dead in (0, 1)
)
SURPLUS, SURPLUS_DEAD = (
    f"SELECT no FROM poolhand_ends WHERE dead = {dead} ORDER BY no DESC LIMIT 1 OFFSET ?"  # noqa: S608
    for dead in (0, 1)
)
UNDATED = "SELECT seq, ordered FROM poolhand_jobs WHERE submitted IS NULL ORDER BY seq LIMIT ?"
DATE = "UPDATE poolhand_jobs SET submitted = ?, user_name = ? WHERE seq = ?"
DATED_AT_ONCE = 2000
SPECS = "SELECT spec FROM poolhand_pools WHERE no IN (?*)"
# A stuck job was already recorded as ended, and has left its session.
UNHELD = """
SELECT s.pool, p.name, s.line FROM poolhand_sessions s JOIN poolhand_pools p ON p.no = s.pool
WHERE NOT EXISTS (SELECT 1 FROM poolhand_waits WHERE seq = s.holder AND place <> 2)
    AND NOT EXISTS (SELECT 1 FROM poolhand_claims WHERE seq = s.holder AND stuck = 0)
UNION SELECT w.pool, p.name, w.gate FROM poolhand_waits w JOIN poolhand_pools p ON p.no = w.pool
WHERE w.place = 2 AND w.gate IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM poolhand_sessions WHERE pool = w.pool AND line = w.gate)
ORDER BY 1, 3
"""
HELD = "SELECT seq FROM poolhand_claims WHERE seq IN (?*)"
FORGET_END = Delete("poolhand_ends", "no")
ERASE_END = Delete("poolhand_ends", "seq")


def wake(steps: Steps, cause: str, by: str, limit: int) -> int:
    """Make the oldest jobs that wait for a cause due now; return how many."""
    unit, left = steps.unit, limit
    waiting = unit.query(WAITING_FOR, (sought(cause), limit))
    for no, seqs in groupby(waiting, key=itemgetter(0)):
        rows = unit.load([seq for _, seq in seqs])
        pool = steps.pools.no(no)
        for row in rows:
            pool.wake(row, unit.now)
        steps.act(audit.WAKE, pool, by, f"{cause}: {len(rows)}")
        left -= len(rows)
    if left < limit:
        unit.topics.add("due")
    return limit - left


def causes(tables: Tables) -> dict[str, dict[str, int]]:
    """Count jobs that wait for a cause (neither a time nor a slot), by pool and cause."""
    found: dict[str, dict[str, int]] = {}
    for pool, cause, count in tables.execute(CAUSES):
        found.setdefault(pool, {})[cause] = count
    return found


def promote(steps: Steps, limit: int) -> Promoted:
    """Admit or queue jobs that are due, expire jobs that are overdue."""
    unit = steps.unit
    execute = unit.tables.execute
    due = []
    for clock, by_wall in ((unit.now, 0), (unit.stamp, 1)):
        due += execute(DUE, (clock, by_wall, clock, limit)).fetchall()
    due = sorted(due)[:limit]
    admission = StoredAdmission(steps)
    rows = unit.load([seq for _, seq in due])
    admission.expect(row.job for row in rows if row.newcomer)
    for row in rows:
        if row.newcomer:
            admission.arrive(row)
        else:
            steps.pools.no(row.pool).promote(row, unit.now)
    expired = steps.expire(limit)
    unit.write()
    steps.pools.save()
    for (no,) in execute(WITH_BLOCKED_SUBMITTERS).fetchall():
        steps.welcome(steps.pools.no(no))
    unit.write()
    return Promoted(len(due), expired, _next_in(steps))


def _next_in(steps: Steps) -> float | None:
    """Return the seconds until something is due or expires."""
    unit = steps.unit
    asked = ((NEXT_DUE, (0,), unit.now), (NEXT_DUE, (1,), unit.stamp))
    found = [(unit.tables.execute(text, values).fetchone()[0], now) for text, values, now in asked]
    found.append((unit.tables.execute(NEXT_CLOSING).fetchone()[0], unit.now))
    return min((max(0.0, at - now) for at, now in found if at is not None), default=None)


def prune(steps: Steps, keep: Keep, limit: int) -> int:
    """Delete what is past its retention; jobs that are stuck or that a key stands for stay."""
    sql_documents.sweep(steps.unit.tables, steps.unit.now)
    date_jobs(steps.unit.tables)
    for no in steps.pools.names():
        sweep(steps, no)
    return forget(steps, keep, limit)


def date_jobs(tables: Tables) -> None:
    """Fill in submission time and user in rows of older versions, a few at a time."""
    undated = tables.execute(UNDATED, (DATED_AT_ONCE,)).fetchall()
    for seq, ordered in undated:
        tables.execute(DATE, (*submit_of(ordered), seq))


def sweep(steps: Steps, no: int) -> None:
    """Delete the expired keys and lanes of a pool."""
    pool = steps.pools.no(no)
    pool.keys.forget(steps.unit.now)
    if pool.queue.lanes is not None:
        pool.queue.lanes.sweep()


def forget(steps: Steps, keep: Keep, limit: int) -> int:
    """Delete finished jobs that are too old or too many: results, then dead letters."""
    bound = RetentionBound(OVER, SURPLUS, keep.results, keep.max_results)
    results = _forgettable(steps, bound, limit)
    bound = RetentionBound(OVER_DEAD, SURPLUS_DEAD, keep.dead, keep.max_dead)
    dead = _forgettable(steps, bound, limit - len(results))
    gone = results + dead
    for one in gone:
        steps.pools.tally(one.pool, one.status, -1)
    _note_dropped(steps, keep, Counter(one.pool for one in dead if one.surplus))
    tables = steps.unit.tables
    tables.delete(FORGET_END, [one.no for one in gone])
    forget_jobs(tables, steps.unit.log, [one.seq for one in gone])
    return len(gone)


class RetentionBound(NamedTuple):
    """How long and how many jobs of one kind are kept, and the statements that find them."""

    over: str
    surplus: str
    seconds: float
    most: int | None


class Forgettable(NamedTuple):
    """A finished job that may be deleted; `surplus`: only because there are too many."""

    no: int
    seq: int
    pool: int
    status: int
    surplus: bool


def _forgettable(steps: Steps, bound: RetentionBound, limit: int) -> list[Forgettable]:
    """Return the oldest jobs beyond a bound, except those stuck or that a key stands for."""
    tables, until = steps.unit.tables, steps.unit.now - bound.seconds
    surplus = None
    if bound.most is not None:
        surplus = tables.execute(bound.surplus, (bound.most,)).fetchone()
    last_surplus = 0 if surplus is None else surplus[0]
    gone: list[Forgettable] = []
    last = 0
    while len(gone) < limit:
        rows = tables.execute(bound.over, (last, limit)).fetchall()
        for last, seq, pool, status, over_at, kept in rows:
            if (over_at > until and last > last_surplus) or len(gone) >= limit:
                return gone
            if not kept:
                gone.append(Forgettable(last, seq, pool, status, over_at > until))
        if len(rows) < limit:
            break
    return gone


def _note_dropped(steps: Steps, keep: Keep, counts: Mapping[int, int]) -> None:
    """Audit the dead letters that were deleted only because there were too many."""
    for (blob,) in steps.unit.tables.among(SPECS, list(counts)):
        spec = spec_of(blob)
        number = next(no for no, name in steps.pools.names().items() if name == spec.name)
        text = f"{counts[number]} dead letters beyond max_dead={keep.max_dead}"
        of = (spec.id, spec.name)
        steps.unit.note(audit.acted(audit.DROP_DEAD, of, "poolhand", text, steps.unit.at))


class Unheld(NamedTuple):
    """A session that no job holds but that is closed: its pool's number and name, its line."""

    pool: int
    name: str
    line: str


def unheld(tables: Tables) -> list[Unheld]:
    """Return sessions whose holder has ended, is gone or waits itself, or that have none.

    Every step hands a session on in the transaction that ends its holder. So there are none unless
    a database did not isolate transactions as it must, or another program wrote to the tables.
    """
    return [Unheld._make(row) for row in tables.execute(UNHELD)]


def free(steps: Steps) -> list[tuple[str, str]]:
    """Give each such session to its next turn; return their pools and names."""
    found = unheld(steps.unit.tables)
    for pool, _, line in found:
        steps.pools.no(pool).free_session(line, steps.unit.now)
    return named(found)


def named(found: Sequence[Unheld]) -> list[tuple[str, str]]:
    """Return sessions as pairs of pool name and session name."""
    return [(one.name, session_in(one.line)) for one in found]


def erase(
    steps: Steps, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str]
) -> list[str]:
    """Delete finished jobs with all that belongs to them, and other streams and documents."""
    unit, tables = steps.unit, steps.unit.tables
    rows = [row for row in map(unit.row_named, dict.fromkeys(ids)) if row is not None]
    stuck = {seq for (seq,) in tables.among(HELD, [row.seq for row in rows])}
    gone = [row for row in rows if row.job.status.terminal and row.seq not in stuck]
    for row in gone:
        unit.note(audit.acted_on(audit.ERASE, row.job, by, "", unit.at))
        steps.pools.no(row.pool).keys.drop(row)
        steps.pools.tally(row.pool, END_OF[row.job.status], -1)
    numbers = [row.seq for row in gone]
    tables.delete(ERASE_END, numbers)
    forget_jobs(tables, unit.log, numbers)
    unit.log.forget(streams)
    sql_documents.erase(tables, documents, unit.now)
    return [row.job.id for row in gone]


RUNS = """
SELECT j.id, coalesce(r.run, j.id), j.tenant, j.session
FROM poolhand_jobs j LEFT JOIN poolhand_runs r ON r.seq = j.seq WHERE j.seq IN (?*)
"""
# The keys of a run's receipts have this prefix; 0 is the character after the slash.
RECEIPTS = """
SELECT d.key, one.run FROM (
    SELECT DISTINCT coalesce(r.run, j.id) AS run FROM poolhand_jobs j
    LEFT JOIN poolhand_runs r ON r.seq = j.seq WHERE j.seq IN (?*)) one
JOIN poolhand_documents d ON d.key >= 'receipt/run/' || one.run || '/'
    AND d.key < 'receipt/run/' || one.run || '0'
"""
ANY_RECEIPT = """
SELECT 1 FROM poolhand_documents WHERE key >= 'receipt/run/' AND key < 'receipt/run0' LIMIT 1
"""
JOBS_KEPT = "SELECT id FROM poolhand_jobs WHERE id IN (?*)"
RUNS_KEPT = "SELECT run FROM poolhand_runs WHERE run IN (?*)"


def forget_jobs(tables: Tables, log: StreamLog, numbers: Sequence[int]) -> None:
    """Delete jobs, and what belongs to runs of which no job is left."""
    rows = list(tables.among(RUNS, numbers))
    # Most stores have no receipts, and looking up those of many jobs is expensive.
    any_receipt = tables.execute(ANY_RECEIPT).fetchone() if rows else None
    receipts = [] if any_receipt is None else list(tables.among(RECEIPTS, numbers))
    tables.delete(FORGET_JOB, numbers)
    tables.delete(FORGET_RUN, numbers)
    runs = list({run for _, run, *_ in rows})
    kept = {id for text in (JOBS_KEPT, RUNS_KEPT) for (id,) in tables.among(text, runs)}
    streams = [name for id, *_ in rows for name in (events_of(id), inbox_of(id))]
    log.forget(streams + [journal_of(run) for run in runs if run not in kept])
    sql_documents.forget(tables, [key for key, run in receipts if run not in kept])
    sql_sessions.forget_unkept(tables, [(tenant, session) for *_, tenant, session in rows])
