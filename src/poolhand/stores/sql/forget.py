"""Deletes jobs from a SQL store, with everything that is stored only as long as they are."""

from __future__ import annotations

from collections.abc import Sequence

from poolhand.rules.streams import events_of, inbox_of, journal_of
from poolhand.stores.sql import documents as sql_documents
from poolhand.stores.sql import users as sql_users
from poolhand.stores.sql.log import StreamLog
from poolhand.stores.sql.tables import Tables
from poolhand.stores.sql.unit_of_work import FORGET_HEIR, FORGET_JOB

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
HEIRS_KEPT = "SELECT run FROM poolhand_runs WHERE run IN (?*)"


def forget_jobs(tables: Tables, log: StreamLog, numbers: Sequence[int]) -> None:
    """Delete jobs, and what belongs to runs of which no job is left."""
    rows = list(tables.among(RUNS, numbers))
    # Most stores have no receipts, and looking up those of many jobs is expensive.
    any_receipt = tables.execute(ANY_RECEIPT).fetchone() if rows else None
    receipts = [] if any_receipt is None else list(tables.among(RECEIPTS, numbers))
    tables.delete(FORGET_JOB, numbers)
    tables.delete(FORGET_HEIR, numbers)
    runs = list({run for _, run, *_ in rows})
    kept = {id for text in (JOBS_KEPT, HEIRS_KEPT) for (id,) in tables.among(text, runs)}
    streams = [name for id, *_ in rows for name in (events_of(id), inbox_of(id))]
    log.forget(streams + [journal_of(run) for run in runs if run not in kept])
    sql_documents.forget(tables, [key for key, run in receipts if run not in kept])
    sql_users.forget_unkept(tables, [(tenant, session) for *_, tenant, session in rows])
