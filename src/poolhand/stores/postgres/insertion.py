"""Jobs written by a user's transaction, on the user's own connection.

They are written as scheduled jobs, due at once, and take no lock: neither the user's work nor that
of other transactions waits for the other. They are admitted when they are promoted, after the
commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg
from msgspec.structs import replace

from poolhand.contract import JobRequest
from poolhand.errors import UsageError
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Policy
from poolhand.rules.queue.pool_spec import PoolSpec
from poolhand.rules.queue.stored_desk import may_refuse
from poolhand.rules.queue.timing import arrival, seconds
from poolhand.stores.postgres.server import errors as faults
from poolhand.stores.postgres.tables import Dialect
from poolhand.stores.sql.rows import encode_terms

STORE = "SELECT store FROM poolhand_counters"
INSERT = """
WITH given AS MATERIALIZED (
    SELECT nextval('poolhand_job_numbers') AS seq, one.* FROM unnest(
        ?3::text[], ?4::bigint[], ?5::text[], ?6::text[], ?7::text[], ?8::text[],
        ?9::double precision[], ?10::bytea[], ?11::bytea[], ?12::double precision[],
        ?13::double precision[], ?14::bigint[], ?15::double precision[], ?16::text[]
    ) AS one(id, pool, name, key, session, tenant, closes_at, ordered, brief, opens_at, again,
        by_wall, submitted, user_name)
    WHERE EXISTS (SELECT 1 FROM poolhand_counters WHERE store = ?1)
), jobs AS (
    INSERT INTO poolhand_jobs (seq, id, pool, name, key, session, tenant, closes_at, ordered, brief,
        submitted, user_name)
    SELECT seq, id, pool, name, key, session, tenant, closes_at, ordered, brief, submitted,
        user_name
    FROM given
), waits AS (
    INSERT INTO poolhand_waits (seq, pool, place, rank, turn, since, ready_at, due_at, by_wall)
    SELECT seq, pool, 1, again, by_wall, extract(epoch FROM clock_timestamp()) - skew, opens_at,
        -1, 0
    FROM given, poolhand_counters
), told AS (
    SELECT pg_notify(?2, E'\\ndue')
)
SELECT count(*) FROM given, told
"""


class Insertion:
    """Job requests prepared for writing on any connection to this database."""

    def __init__(self, statement: str, head: tuple[str, str], where: str) -> None:
        self._statement = statement
        self._head = head
        self._where = where
        self._rows: list[tuple[Any, ...]] = []

    def add(self, order: JobRequest, pool: tuple[int, PoolSpec], now: float, at: datetime) -> None:
        """Prepare one job request."""
        no, spec = pool
        _check_policy(spec.name, spec.backpressure)
        if order.revives is not None:
            raise UsageError("a dead job is run again by itself, not in a transaction")
        job = replace(order.job, pool_id=spec.id, status=Status.QUEUED)
        job, window, by_wall = arrival(job, order.delay, order.expires, now, at)
        opens_at = 0.0 if window is None else window.opens_at or 0.0
        closes_at = None if window is None else window.closes_at
        terms = (job.id, no, job.name, job.key, job.session, job.tenant, closes_at)
        how = (opens_at, float(order.rerun_failed), int(by_wall))
        by = (seconds(job.submitted_at), job.user)
        self._rows.append((*terms, encode_terms(job), order.brief, *how, *by))

    async def write(self, connection: Any) -> None:
        """Write the jobs in a connection's open transaction; call it from the connection's loop."""
        if not connection.is_in_transaction():
            raise UsageError(
                "submit_in: no transaction is open on this connection; submit within `async with "
                "connection.transaction():`"
            )
        columns = zip(*self._rows, strict=True)
        try:
            rows = await connection.fetch(self._statement, *self._head, *columns)
        except asyncpg.UndefinedTableError as error:
            raise self._elsewhere() from error
        except Exception as error:
            told = faults.at_the_wall(error, self._where)
            if told is error:
                raise
            raise told from error
        if rows[0][0] != len(self._rows):
            raise self._elsewhere()

    def _elsewhere(self) -> UsageError:
        return UsageError(
            f"submit_in: this connection is to another database than the store {self._where}; "
            "jobs can only be written with what is in the same database"
        )


def insertion(dialect: Dialect, store: str, channel: str, where: str) -> Insertion:
    """Return an empty insertion."""
    return Insertion(dialect.text(INSERT), (store, channel), where)


def names_of(orders: Sequence[JobRequest]) -> list[str]:
    """Return the pools of job requests, each once."""
    return list(dict.fromkeys(order.job.pool for order in orders))


def _check_policy(name: str, policy: Policy) -> None:
    if may_refuse(policy, may_park=False):
        raise UsageError(
            f"submit_in: pool {name!r} ({policy}) may refuse a job or let its submitter wait, which"
            " nobody can know before the transaction commits; submit after it, or use a pool that"
            " takes everything"
        )
