"""One write of a SQL store: the rows it has loaded and changed but not yet written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from poolhand.contract import LogLine
from poolhand.rules.audit import STREAM, Audit, kind_of
from poolhand.rules.queue.entry import seconds
from poolhand.stores.sql.log import StreamLines, StreamLog
from poolhand.stores.sql.rows import (
    BLOCKED_SUBMITTER,
    BY_ID,
    BY_IDS,
    BY_SEQ,
    BY_SEQS,
    MOVING,
    SCHEDULED,
    JobFacts,
    JobRow,
    encode_terms,
    row_of,
    sought,
)
from poolhand.stores.sql.tables import Delete, Insert, Tables, TableWrite

NEW_JOB = Insert(
    "poolhand_jobs",
    "seq bigint, id text, pool bigint, name text, key text, session text, tenant text, "
    "closes_at double precision, ordered bytea, brief bytea, submitted double precision, "
    "user_name text",
)
NEW_WAIT = Insert(
    "poolhand_waits",
    "seq bigint, pool bigint, place smallint, rank double precision, turn bigint, "
    "since double precision, ready_at double precision, due_at double precision, "
    "by_wall smallint, closes_at double precision, gate text, crowd text, owner bigint, "
    "course bytea, waits_for text",
    key=("seq",),
)
NEW_QUEUED = Insert(
    "poolhand_waits",
    "seq bigint, pool bigint, place smallint, rank double precision, turn bigint, "
    "since double precision",
)
END_WAIT = Delete("poolhand_waits", "seq")
NEW_CLAIM = Insert(
    "poolhand_claims",
    "token bigint, seq bigint, pool bigint, owner bigint, slot bigint, "
    "started double precision, waited double precision, gate text, course bytea",
    {"stuck": "0", "wished": "0"},
)
END_CLAIM = Delete("poolhand_claims", "token")
NEW_END = Insert(
    "poolhand_ends",
    "seq bigint, pool bigint, status smallint, dead smallint, wished smallint, "
    "over_at double precision, course bytea",
)
NEW_RUN = Insert("poolhand_runs", "seq bigint, run text")
FORGET_JOB = Delete("poolhand_jobs", "seq")
FORGET_RUN = Delete("poolhand_runs", "seq")

JOBS, TURNS, TOKENS = range(3)

json = msgspec.json.Encoder().encode


class Numbers(Protocol):
    """Source of new, increasing numbers; `last_pool` is the pool that was last claimed from."""

    last_pool: int

    def next(self, kind: int) -> int:
        """Return the next number for a job, a turn or a token."""

    def take(self, kind: int, count: int) -> Sequence[int]:
        """Return the next `count` numbers."""

    def save(self) -> None:
        """Mark all numbers taken so far as used."""

    def reload(self) -> None:
        """Discard the numbers taken since `save`."""


class UnitOfWork:
    """The state of one write; `now` and `at` are read once for all of it.

    Changes are collected and written together: `write` flushes the rows of jobs before any query
    whose answer depends on them; `close` writes the rest, including `also`, to which other modules
    add. `may_be_overdue`: a job that has already expired has begun to wait.
    """

    def __init__(
        self, tables: Tables, numbers: Numbers, log: StreamLog, now: float, at: datetime
    ) -> None:
        self.tables = tables
        self.numbers = numbers
        self.log = log
        self.now = now
        self.at = at
        self.stamp = seconds(at)
        self.topics: set[str] = set()
        self.may_be_overdue = False
        self.lines = StreamLines()
        self.streams = {STREAM: self.lines}
        self.rows: dict[int, JobRow] = {}
        self.changed: dict[int, JobRow] = {}
        self.writers: list[Callable[[], None]] = []
        self.new_jobs: list[tuple[Any, ...]] = []
        self.new_queued: list[tuple[Any, ...]] = []
        self.ended_waits: list[int] = []
        self.new_claims: list[tuple[Any, ...]] = []
        self.ended_claims: list[int] = []
        self.new_ends: list[tuple[Any, ...]] = []
        self._new_waits: list[tuple[Any, ...]] = []
        self._new_runs: list[tuple[Any, ...]] = []
        self.also: list[TableWrite] = []
        self._pending: tuple[tuple[Delete | Insert, list[Any]], ...] = (
            (END_WAIT, self.ended_waits),
            (NEW_JOB, self.new_jobs),
            (NEW_RUN, self._new_runs),
            (NEW_WAIT, self._new_waits),
            (NEW_QUEUED, self.new_queued),
            (END_CLAIM, self.ended_claims),
            (NEW_CLAIM, self.new_claims),
            (NEW_END, self.new_ends),
        )

    def note(self, record: Audit) -> None:
        self.lines.append((kind_of(record), json(record)))

    def append_lines(self, lines: Iterable[LogLine]) -> None:
        """Append lines to the log, after the lines that are already pending."""
        for line in lines:
            self.streams.setdefault(line.stream, StreamLines()).append((line.kind, line.body))

    # Rows

    def row(self, seq: int) -> JobRow:
        """Return a job that must exist; one object per job."""
        row = self.find(seq)
        assert row is not None, f"job {seq} is missing"
        return row

    def find(self, seq: int) -> JobRow | None:
        """Return a job, or None if it does not exist."""
        row = self.rows.get(seq)
        if row is None:
            self.write()
            facts = self.tables.execute(BY_SEQ, (seq,)).fetchone()
            row = None if facts is None else self._keep(facts)
        return row

    def load(self, seqs: Sequence[int]) -> list[JobRow]:
        """Return several jobs, all of which must exist."""
        self.write()
        for facts in self.tables.among(BY_SEQS, [seq for seq in seqs if seq not in self.rows]):
            self._keep(facts)
        return [self.rows[seq] for seq in seqs]

    def row_named(self, id: str) -> JobRow | None:
        """Return a job by its id."""
        self.write()
        facts = self.tables.execute(BY_ID, (sought(id),)).fetchone()
        return None if facts is None else self.rows.get(facts[0]) or self._keep(facts)

    def load_named(self, ids: Sequence[str]) -> dict[str, JobRow]:
        """Return jobs by their ids; those not in the store are left out."""
        self.write()
        found: dict[str, JobRow] = {}
        for facts in self.tables.among(BY_IDS, [sought(id) for id in ids]):
            row = self.rows.get(facts[0]) or self._keep(facts)
            found[row.job.id] = row
        return found

    def _keep(self, facts: tuple[Any, ...]) -> JobRow:
        row = row_of(JobFacts._make(facts), self.now, self.at)
        self.rows[row.seq] = row
        return row

    def put(self, row: JobRow, where: int) -> None:
        """Move a job to another place."""
        row.where = where
        self.changed[row.seq] = row

    def forget(self, row: JobRow) -> None:
        """Delete all rows of a job that was not admitted."""
        self.write()
        self.tables.delete(END_WAIT, [row.seq])
        self.tables.delete(FORGET_JOB, [row.seq])
        self.tables.delete(FORGET_RUN, [row.seq])
        del self.rows[row.seq]

    def query(self, text: str, values: tuple[Any, ...]) -> list[Any]:
        """Query the tables after pending changes of jobs are written."""
        self.write()
        return self.tables.execute(text, values).fetchall()

    def query_waits(self, text: str, values: tuple[Any, ...]) -> list[Any]:
        """Query waiting jobs after their pending changes are written."""
        self.write_waits()
        return self.tables.execute(text, values).fetchall()

    def write_waits(self) -> None:
        """Write the pending changes of waiting jobs."""
        if self.changed or self.new_queued or self.ended_waits or self._new_waits:
            self.write()

    # Writing

    def write(self) -> None:
        """Write the pending changes of all jobs."""
        self._sort_all()
        self._write([pending for pending in self._pending if pending[1]])

    def close(self) -> None:
        """Write everything that is pending."""
        for writer in self.writers:
            writer()
        self.log.gather(self.streams, self.stamp, self.also)
        self._forget_lines()
        # After the writers: they may have moved jobs.
        self._sort_all()
        self._write([pending for pending in self._pending if pending[1]] + self.also)
        self.also.clear()
        self.numbers.save()

    def _write(self, changes: list[TableWrite]) -> None:
        if changes:
            self.tables.write(changes)
            for _, rows in self._pending:
                rows.clear()

    def reopen(self) -> None:
        """Start again after everything since `close` was rolled back."""
        for _, rows in self._pending:
            rows.clear()
        self.changed.clear()
        self.rows.clear()
        self.writers.clear()
        self.also.clear()
        self._forget_lines()
        self.numbers.reload()

    def _sort_all(self) -> None:
        for row in self.changed.values():
            self._sort(row)
        self.changed.clear()

    def _forget_lines(self) -> None:
        self.lines = StreamLines()
        self.streams = {STREAM: self.lines}

    def _sort(self, row: JobRow) -> None:
        """Add a changed row to the pending writes of the tables it belongs to."""
        job, seq = row.job, row.seq
        if row.fresh:
            row.fresh = False
            terms = (job.name, job.key, job.session, job.tenant, row.closes_at)
            by = (seconds(job.submitted_at), job.user)
            self.new_jobs.append(
                (seq, job.id, row.pool, *terms, encode_terms(job), row.call_record, *by)
            )
            if job.continues is not None:
                self._new_runs.append((seq, job.continues))
        if row.where <= MOVING:
            row.in_waits = True
            closes_at = None if row.where == BLOCKED_SUBMITTER else row.closes_at
            order = (row.pool, row.where, row.rank, row.turn, row.since, row.ready_at)
            times = (row.due_at, row.by_wall, closes_at)
            cause = job.waits_for if row.where == SCHEDULED else None
            self._new_waits.append(
                (seq, *order, *times, row.gate, row.crowd, row.owner, row.course, cause)
            )
        elif row.in_waits:
            row.in_waits = False
            self.ended_waits.append(seq)
