"""The sessions of a pool in a SQL store: which turn holds each, and which is next."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from poolhand.rules.job import Job
from poolhand.rules.queue.gates import Sessions
from poolhand.stores.sql.rows import LIMBO, SESSION, JobRow
from poolhand.stores.sql.tables import Insert
from poolhand.stores.sql.unit_of_work import UnitOfWork

HOLDERS = "SELECT line, holder FROM poolhand_sessions WHERE pool = ? AND line IN (?*)"
# Turns wait in the order of their seq.
HEIRS = """
SELECT gate, min(seq) FROM poolhand_waits WHERE pool = ? AND place = 2 AND gate IN (?*)
GROUP BY gate
"""
LAST = "SELECT max(seq) FROM poolhand_waits WHERE pool = ? AND place = 2 AND gate = ?"
HOLD = Insert(
    "poolhand_sessions",
    {"pool": "bigint", "line": "text", "holder": "bigint"},
    key=("pool", "line"),
)
FREE = "DELETE FROM poolhand_sessions WHERE pool = ? AND line IN (?*)"


class StoredSessions(Sessions[JobRow]):
    """The turns of a pool's sessions; loaded on demand, written when the unit of work closes."""

    def __init__(self, books: UnitOfWork, pool: int) -> None:
        super().__init__()
        self._books = books
        self._pool = pool
        self._holders: dict[str, int | None] = {}
        self._heirs: dict[str, int | None] = {}
        self._changed: dict[str, None] = {}
        books.writers.append(self._write)

    def foresee(self, jobs: Iterable[Job], ending: bool) -> None:
        """Load the sessions of jobs in one go: their holders and, if jobs end, their next turns."""
        lines = list(dict.fromkeys(_line(job) for job in jobs if job.session is not None))
        if lines:
            self._look_up(lines)
            if ending:
                heirs = self._look_ahead(lines)
                self._books.load([seq for seq in heirs.values() if seq is not None])

    def holder(self, job: Job) -> JobRow | None:
        seq = None if job.session is None else self._holder(_line(job))
        return None if seq is None else self._books.row(seq)

    def last(self, job: Job) -> JobRow | None:
        if job.session is None:
            return None
        self._books.write_waits()
        (seq,) = self._books.tables.execute(LAST, (self._pool, _line(job))).fetchone()
        return None if seq is None else self._books.row(seq)

    def enter(self, entry: JobRow) -> bool:
        if entry.job.session is None:
            return True
        line = _line(entry.job)
        holder = self._holder(line)
        if holder is None:
            self._hold(line, entry.seq)
        elif holder != entry.seq:
            entry.rank, entry.turn, entry.gate = 0, entry.seq, line
            self._books.put(entry, SESSION)
            if line in self._heirs:
                self._heirs[line] = min(entry.seq, self._heirs[line] or entry.seq)
            return False
        return True

    def leave(self, entry: JobRow) -> JobRow | None:
        if entry.job.session is None:
            return None
        line = _line(entry.job)
        if self._holder(line) != entry.seq:
            return None
        return self.hand_on(line)

    def hand_on(self, line: str) -> JobRow | None:
        """Give a session to its next turn and return that turn; None if no turn waits."""
        seq = self._heirs[line] if line in self._heirs else self._look_ahead([line])[line]
        self._hold(line, seq)
        if seq is None:
            return None
        heir = self._books.row(seq)
        self.remove(heir)
        return heir

    def remove(self, entry: JobRow) -> None:
        """Remove an entry that waits for its session."""
        if entry.gate is not None:
            self._heirs.pop(entry.gate, None)
        entry.gate = None
        self._books.put(entry, LIMBO)

    def _hold(self, line: str, seq: int | None) -> None:
        self._holders[line] = seq
        self._changed[line] = None

    def _holder(self, line: str) -> int | None:
        if line not in self._holders:
            self._look_up([line])
        return self._holders[line]

    def _look_up(self, lines: list[str]) -> None:
        new = [line for line in lines if line not in self._holders]
        self._holders.update(dict.fromkeys(new))
        self._holders.update(dict(self._books.tables.among(HOLDERS, new, (self._pool,))))

    def _look_ahead(self, lines: list[str]) -> dict[str, int | None]:
        found: dict[str, int | None] = dict.fromkeys(lines)
        self._books.write_waits()
        found.update(dict(self._books.tables.among(HEIRS, lines, (self._pool,))))
        self._heirs.update(found)
        return found

    def _write(self) -> None:
        held = [(line, self._holders[line]) for line in self._changed]
        self._changed.clear()
        rows = [(self._pool, line, seq) for line, seq in held if seq is not None]
        if rows:
            self._books.also.append((HOLD, rows))
        free = [line for line, seq in held if seq is None]
        # `among` is a generator: consume it, or the DELETE is never sent.
        list(self._books.tables.among(FREE, free, (self._pool,)))


def session_of(line: str) -> str:
    """Return the session name that a line encodes."""
    return str(msgspec.json.decode(line)[1])


def _line(job: Job) -> str:
    """Return the line of a job's session: its tenant and name as JSON."""
    return msgspec.json.encode((job.tenant, job.session)).decode()
