"""Counters of jobs by how they ended."""

from __future__ import annotations

from poolhand.rules.job import Status


class Tally:
    """Counts jobs; `submitted` counts every job that was given an id and a record."""

    __slots__ = ("cancelled", "completed", "expired", "failed", "rejected", "submitted")

    def __init__(self) -> None:
        self.submitted = 0
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.expired = 0
        self.rejected = 0

    def count(self, status: Status) -> None:
        if status is Status.COMPLETED:
            self.completed += 1
        elif status is Status.FAILED:
            self.failed += 1
        elif status is Status.CANCELLED:
            self.cancelled += 1
        elif status is Status.EXPIRED:
            self.expired += 1
        else:
            self.rejected += 1
