"""The tally: how many jobs ended how."""

from __future__ import annotations

from msgspec import Struct

from poolhand.rules.job import Status


class Tally(Struct):
    """Counts jobs; `submitted` counts every job that ever got an id and a record."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    rejected: int = 0

    def count(self, status: Status) -> None:
        # Identity, not a lookup: this runs once for every job, and hashing an enum is slow.
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

    @property
    def over(self) -> int:
        return self.completed + self.failed + self.cancelled + self.expired + self.rejected
