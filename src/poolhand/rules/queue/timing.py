"""Timing: when a job may start, and the timers of a desk."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from msgspec.structs import replace

from poolhand.rules import lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.entry import Window

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seconds(moment: datetime) -> float:
    """Return a calendar time as seconds since 1970."""
    return (moment - EPOCH).total_seconds()


def arrival(
    job: Job, delay: float | None, expires: float | None, now: float, at: datetime
) -> tuple[Job, Window | None, bool]:
    """Return a job as it is submitted, when it may start, and whether calendar time decides that.

    A delay keeps its length even if the wall clock is changed; `run_at` follows the wall clock.
    """
    by_wall = delay is None and job.run_at is not None
    run_at, opens_at, closes_at = job.run_at, None, None
    if delay is not None:
        opens_at, run_at = now + delay, at + timedelta(seconds=delay)
    elif run_at is not None:
        opens_at = now + (seconds(run_at) - seconds(at))
    expires_at = None
    if expires is not None:
        closes_at, expires_at = now + expires, at + timedelta(seconds=expires)
    job = replace(job, submitted_at=at, run_at=run_at, expires_at=expires_at)
    window = None if opens_at is closes_at is None else Window(opens_at, closes_at)
    return job, window, by_wall


def comeback(job: Job, wait: float | None, at: datetime) -> tuple[Job, float, bool]:
    """Return a job that waits again, for how many seconds, and whether calendar time decides that.

    Without a `wait` the job waits until `run_at`.
    """
    by_wall = wait is None and job.status is Status.SCHEDULED
    pause = wait or 0.0
    if by_wall and job.run_at is not None:
        pause = seconds(job.run_at) - seconds(at)
    return lifecycle.place(job, Status.SCHEDULED if pause > 0 else Status.QUEUED), pause, by_wall


T = TypeVar("T", bound=Hashable)


class Timers(Generic[T]):
    """Holds each item at most once and yields the due ones in order.

    A removed item leaves its heap entry behind; the heap is swept when such entries outnumber the
    live ones, so setting and clearing a deadline for every job stays cheap and bounded.
    """

    __slots__ = ("_count", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._number: dict[T, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._number)

    def __iter__(self) -> Iterator[T]:
        return iter(self._number)

    def add(self, at: float, thing: T) -> None:
        """Add an item, or move it to another time."""
        self._count += 1
        self._number[thing] = self._count
        heappush(self._heap, (at, self._count, thing))
        if len(self._heap) > 2 * len(self._number) + 64:
            self._sweep()

    def remove(self, thing: T) -> bool:
        """Remove an item; return whether it was there."""
        found = self._number.pop(thing, None) is not None
        if len(self._heap) > 2 * len(self._number) + 64:
            self._sweep()
        return found

    def at(self, thing: T) -> float | None:
        """Return the time at which an item is due; this scans the whole heap."""
        number = self._number.get(thing)
        return next((at for at, count, _ in self._heap if count == number), None)

    def first(self) -> float | None:
        """Return the next time at which an item is due."""
        heap = self._heap
        while heap:
            at, number, thing = heap[0]
            if self._number.get(thing) == number:
                return at
            heappop(heap)
        return None

    def due(self, now: float) -> Iterator[T]:
        """Remove and yield the items that are due."""
        while (at := self.first()) is not None and at <= now:
            thing = heappop(self._heap)[2]
            del self._number[thing]
            yield thing

    def drop_due(self, now: float) -> None:
        """Remove the items that are due: only their time mattered."""
        for _ in self.due(now):
            pass

    def _sweep(self) -> None:
        self._heap = [item for item in self._heap if self._number.get(item[2]) == item[1]]
        heapify(self._heap)
