"""The history of a worker: its recently finished jobs, for snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from poolhand.farm.records import LONGEST_TEXT, FinishedJob, RunningJob, Snapshot
from poolhand.rules.job import Fault, Job

MOST_BYTES = 256 * 1024  # of one page


class History:
    """The jobs that ended last; pages are newest first, numbers are never reused."""

    def __init__(self, most: int) -> None:
        self._jobs: deque[tuple[int, FinishedJob]] = deque(maxlen=most)
        self.count = 0

    def add(self, job: FinishedJob) -> None:
        self.count += 1
        self._jobs.append((self.count, job))

    def newest(self, since: int, most: int) -> tuple[tuple[FinishedJob, ...], int]:
        """Return the newest jobs after a number, oldest first, and the last number."""
        # Copy into a list in one step: another thread adds jobs meanwhile.
        kept = list(self._jobs)
        found = tuple(job for number, job in kept if number > since)
        return found[-most:], kept[-1][0] if kept else since

    def page(self, after: int, limit: int) -> tuple[tuple[FinishedJob, ...], int | None]:
        """Return a page, newest first, of jobs below the number `after` (0: from the newest)."""
        found: list[FinishedJob] = []
        size, last = 0, 0
        for number, job in reversed(list(self._jobs)):
            if after and number >= after:
                continue
            size += len(msgspec.json.encode(job))
            if found and (size > MOST_BYTES or len(found) >= limit):
                return tuple(found), last
            found.append(job)
            last = number
        return tuple(found), None

    def snapshot(
        self, farm: str, worker: str | None, running: Iterable[RunningJob], after: int, limit: int
    ) -> Snapshot:
        finished, following = self.page(after, limit)
        return Snapshot(farm, worker, tuple(running), finished, following)


def finished(job: Job, worker: str) -> FinishedJob | None:
    """Return the record of a job that has ended; None if it has not."""
    if job.finished_at is None:
        return None
    return FinishedJob(
        job.id,
        job.name,
        job.pool,
        job.status,
        job.attempts,
        job.finished_at,
        job.ran,
        worker,
        None if job.error is None else _short(job.error),
    )


def running(jobs: Sequence[Job]) -> tuple[RunningJob, ...]:
    """Return the records of running jobs."""
    return tuple(
        RunningJob(job.id, job.name, job.pool, job.started_at, job.marks[-1] if job.marks else None)
        for job in jobs
        if job.started_at is not None
    )


def _short(fault: Fault) -> Fault:
    texts = (fault.type, fault.message, fault.traceback)
    return Fault(*(text[-LONGEST_TEXT:] for text in texts))
