"""The audit of a pool in memory: the same records as a store writes, the latest of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec.structs import replace

from poolhand.pool.clock import Clock
from poolhand.rules import audit, lifecycle
from poolhand.rules.audit import Audit, AuditLine
from poolhand.rules.ids import full_id
from poolhand.rules.job import Job, Status

MOST_RECORDS = 10_000
FULL = 12_000  # so many are kept before the oldest go, all at once
CLOCK_SET = 0.001  # seconds by which the wall clock must be off to count as set

TAKEN: Final = 0
BEGUN: Final = 1
DONE: Final = 2

# Nearly every job leaves three of these: what is needed to write its records later. Only values
# and the shared draft of its terms, never the work: that would keep what the job returned.
Submit = tuple[Literal[0], Job, str, int, float]  # …, head and number of its id, when
Start = tuple[Literal[1], Job, str, int, float, float, int]  # …, since when it waited, when, slot
Success = tuple[Literal[2], Job, str, int, float]  # …, when
Late = Submit | Start | Success


class AuditLog:
    """Numbers what happens to a pool and its jobs; a record is written when somebody asks for it.

    `note` takes what happens to nearly every job, without looking at it; whatever makes a job wait
    anew calls `trim` or `write`, so that there are never many more than are kept.
    """

    __slots__ = ("_clock", "_gone", "_origin", "_pool", "entries", "note")

    def __init__(self, pool: tuple[str, str], clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self.entries: list[Late | AuditLine] = []
        self._gone = 0
        self._origin = clock.wall(), clock.now()
        self.note: Callable[[Late], None] = self.entries.append

    def trim(self) -> None:
        """Forget the oldest."""
        surplus = max(0, len(self.entries) - MOST_RECORDS)
        # In place: `note` adds to this list.
        del self.entries[:surplus]
        self._gone += surplus

    def act(self, kind: str, by: str, detail: str = "") -> None:
        """Write what somebody did to the pool."""
        at = self._clock.wall()
        self.write(audit.acted(kind, self._pool, by, detail, at), at)

    def act_on(self, kind: str, job: Job, by: str, detail: str = "") -> None:
        """Write what somebody did to a job."""
        at = self._clock.wall()
        self.write(audit.acted_on(kind, job, by, detail, at), at)

    def write(self, record: Audit, at: datetime) -> None:
        """Write a record of something that does not happen to every job."""
        if len(self.entries) >= FULL:
            self.trim()
        number = self._gone + len(self.entries) + 1
        self.entries.append(AuditLine(number, at, audit.kind_of(record), record))

    def read(self, after: int, kind: str) -> list[AuditLine]:
        """Return the records from behind a number on, those whose kind begins so."""
        self.trim()
        self._look_at_clock()
        entries, start = self.entries, max(0, after - self._gone)
        for index in range(start, len(entries)):
            entry = entries[index]
            if not isinstance(entry, AuditLine):
                # Written once: whoever asks again gets the same bytes.
                entries[index] = self._line(self._gone + index + 1, entry)
        found = (entry for entry in entries[start:] if isinstance(entry, AuditLine))
        return [line for line in found if line.kind.startswith(kind)]

    def _line(self, number: int, entry: Late) -> AuditLine:
        job = self._submitted(entry)
        if entry[0] == TAKEN:
            return AuditLine(number, job.submitted_at, audit.SUBMIT, audit.submitted(job))
        if entry[0] == BEGUN:
            at = self._wall_at(entry[5])
            job = lifecycle.start(job, at, entry[5] - entry[4])
            return AuditLine(number, at, audit.DEQUEUE, audit.dequeued(job, entry[6]))
        at = self._wall_at(entry[4])
        if job.status is not Status.RUNNING:
            job = lifecycle.start(job, at, 0.0)
        ended = audit.ended(lifecycle.complete(job, None, at, 0.0))
        return AuditLine(number, at, audit.OUTCOME, ended)

    def _submitted(self, entry: Late) -> Job:
        """Return the record as it was, with its id and the moment of its submit."""
        job = entry[1]
        if job.id:
            return job
        return replace(job, id=full_id(entry[2], entry[3]), submitted_at=self._wall_at(entry[4]))

    def _wall_at(self, moment: float) -> datetime:
        wall, now = self._origin
        return wall + timedelta(seconds=moment - now)

    def _look_at_clock(self) -> None:
        """Go by the wall clock as it was, unless it was set: the same moment, the same time."""
        wall, now = self._clock.wall(), self._clock.now()
        if abs((wall - self._wall_at(now)).total_seconds()) > CLOCK_SET:
            self._origin = wall, now
