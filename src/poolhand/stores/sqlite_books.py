"""The books of a SQLite store: what one write has looked up, changed and not yet written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from sqlite3 import Connection
from typing import Any

import msgspec

from poolhand.contract import Line
from poolhand.rules.audit import STREAM, Audit, kind_of
from poolhand.rules.terms import seconds
from poolhand.stores import sqlite_log
from poolhand.stores.sqlite_lots import Delete, Insert, lots
from poolhand.stores.sqlite_rows import (
    BY_ID,
    BY_SEQ,
    BY_SEQS,
    LIMBO,
    PARKED,
    Facts,
    Row,
    encode,
    row_of,
    sought,
)

COUNTERS = "SELECT jobs, turns, tokens, ends, pool FROM poolhand_counters"
COUNT = "UPDATE poolhand_counters SET jobs = ?, turns = ?, tokens = ?, ends = ?, pool = ?"
NEW_JOB = Insert("INSERT INTO poolhand_jobs", "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
NEW_WAIT = Insert(
    "INSERT OR REPLACE INTO poolhand_waits", "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
NEW_QUEUED = Insert(
    "INSERT INTO poolhand_waits (seq, pool, place, rank, turn, since)", "(?, ?, 4, ?, ?, ?)"
)
END_WAIT = Delete("DELETE FROM poolhand_waits WHERE seq")
NEW_CLAIM = Insert("INSERT INTO poolhand_claims", "(?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)")
END_CLAIM = Delete("DELETE FROM poolhand_claims WHERE token")
NEW_END = Insert("INSERT INTO poolhand_ends", "(?, ?, ?, ?, ?, ?, ?, ?)")
FORGET_JOB = Delete("DELETE FROM poolhand_jobs WHERE seq")

json = msgspec.json.Encoder().encode


class Books:
    """Everything that one write has at hand; `now` and `at` are read once for all of it.

    Changes are gathered and written in lots: `write` brings the rows of jobs up to date, and is
    called before any question whose answer depends on them; `close` writes all the rest.
    """

    def __init__(self, connection: Connection, now: float, at: datetime) -> None:
        self.connection = connection
        self.now = now
        self.at = at
        self.stamp = seconds(at)
        self.topics: set[str] = set()
        self.lines: list[sqlite_log.Text] = []
        self.streams = {STREAM: self.lines}
        self.rows: dict[int, Row] = {}
        self.changed: dict[int, Row] = {}
        self.writers: list[Callable[[], None]] = []
        self.new_jobs: list[tuple[Any, ...]] = []
        self.new_queued: list[tuple[Any, ...]] = []
        self.ended_waits: list[int] = []
        self.new_claims: list[tuple[Any, ...]] = []
        self.ended_claims: list[int] = []
        self.new_ends: list[tuple[Any, ...]] = []
        self._new_waits: list[tuple[Any, ...]] = []
        self._pending: tuple[tuple[Delete | Insert, list[Any]], ...] = (
            (END_WAIT, self.ended_waits),
            (NEW_JOB, self.new_jobs),
            (NEW_WAIT, self._new_waits),
            (NEW_QUEUED, self.new_queued),
            (END_CLAIM, self.ended_claims),
            (NEW_CLAIM, self.new_claims),
            (NEW_END, self.new_ends),
        )
        self._count()

    def _count(self) -> None:
        counters = self.connection.execute(COUNTERS).fetchone()
        self.jobs, self.turns, self.tokens, self.ends, self.last_pool = self._counted = counters

    def note(self, record: Audit) -> None:
        self.lines.append((kind_of(record), json(record)))

    def tell(self, lines: Iterable[Line]) -> None:
        """Write lines to the log, behind those that are already to be written."""
        for line in lines:
            self.streams.setdefault(line.stream, []).append((line.kind, line.body))

    # Rows

    def row(self, seq: int) -> Row:
        """Return a job that is there, one row for one job."""
        row = self.rows.get(seq)
        if row is None:
            self.write()
            row = self._keep(self.connection.execute(BY_SEQ, (seq,)).fetchone())
        return row

    def load(self, seqs: Sequence[int]) -> list[Row]:
        """Return many jobs that are there."""
        self.write()
        for lot in lots([seq for seq in seqs if seq not in self.rows]):
            for facts in self.connection.execute(BY_SEQS[len(lot)], lot):
                self._keep(facts)
        return [self.rows[seq] for seq in seqs]

    def row_named(self, id: str) -> Row | None:
        """Return a job by its id."""
        self.write()
        facts = self.connection.execute(BY_ID, (sought(id),)).fetchone()
        return None if facts is None else self.rows.get(facts[0]) or self._keep(facts)

    def _keep(self, facts: tuple[Any, ...]) -> Row:
        row = row_of(Facts._make(facts), self.now, self.at)
        self.rows[row.seq] = row
        return row

    def put(self, row: Row, where: int) -> None:
        """Move a job to another place."""
        row.where = where
        self.changed[row.seq] = row

    def end_claim(self, token: int) -> None:
        """Let a claim be over at once; what ends many gathers them in `ended_claims`."""
        END_CLAIM.write(self.connection, [token])

    def forget(self, row: Row) -> None:
        """Let a job that has not come in leave no trace."""
        self.write()
        END_WAIT.write(self.connection, [row.seq])
        FORGET_JOB.write(self.connection, [row.seq])
        del self.rows[row.seq]

    def query(self, text: str, values: tuple[Any, ...]) -> list[Any]:
        """Ask the tables when they are up to date."""
        self.write()
        return self.connection.execute(text, values).fetchall()

    # Writing

    def write(self) -> None:
        """Bring the rows of all jobs up to date."""
        if self.changed:
            for row in self.changed.values():
                self._sort(row)
            self.changed.clear()
        for statement, rows in self._pending:
            if rows:
                statement.write(self.connection, rows)
                rows.clear()

    def close(self) -> None:
        """Write everything."""
        self.write()
        for writer in self.writers:
            writer()
        sqlite_log.write(self.connection, self.streams, self.stamp)
        self._forget_lines()
        counters = (self.jobs, self.turns, self.tokens, self.ends, self.last_pool)
        if counters != self._counted:
            self.connection.execute(COUNT, counters)
            self._counted = counters

    def reopen(self) -> None:
        """Begin anew after what was done since `close` was undone."""
        for _, rows in self._pending:
            rows.clear()
        self.changed.clear()
        self.rows.clear()
        self.writers.clear()
        self._forget_lines()
        self._count()

    def _forget_lines(self) -> None:
        self.lines.clear()
        self.streams = {STREAM: self.lines}

    def _sort(self, row: Row) -> None:
        """Say in which table a changed row has to be written."""
        job, seq = row.job, row.seq
        if row.fresh:
            row.fresh = False
            terms = (job.name, job.key, job.session, job.tenant, row.closes_at)
            self.new_jobs.append((seq, job.id, row.pool, *terms, encode(job), row.brief))
        if row.where <= LIMBO:
            row.in_waits = True
            closes_at = None if row.where == PARKED else row.closes_at
            order = (row.pool, row.where, row.rank, row.turn, row.since, row.ready_at)
            times = (row.due_at, row.by_wall, closes_at)
            self._new_waits.append(
                (seq, *order, *times, row.gate, row.crowd, row.owner, row.course)
            )
        elif row.in_waits:
            row.in_waits = False
            self.ended_waits.append(seq)
