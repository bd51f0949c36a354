"""Entries: a job at the desk, its time window, the line that it waits in, timers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from poolhand.rules import lifecycle
from poolhand.rules.job import Job, Status


class LaneLink:
    """An item of a WaitingLine, which manages its links.

    `place` is the WaitingLine that holds it, or any other place it is in, such as a slot.
    """

    __slots__ = ("after", "before", "place")

    before: Self | None
    after: Self | None
    # A WaitingLine is generic in its items, so an item cannot name the type of its line in turn.
    place: Any


L = TypeVar("L", bound=LaneLink)


class WaitingLine(Generic[L]):
    """A linked list: both ends and any item inside can be removed in constant time."""

    __slots__ = ("first", "last", "size")

    def __init__(self) -> None:
        self.first: L | None = None
        self.last: L | None = None
        self.size = 0

    def __iter__(self) -> Iterator[L]:
        link = self.first
        while link is not None:
            following = link.after
            yield link
            link = following

    def append(self, link: L) -> None:
        last = self.last
        link.before = last
        if last is None:
            self.first = link
        else:
            last.after = link
        self.last = link
        link.place = self
        self.size += 1

    def insert_after(self, link: L, older: L | None) -> None:
        """Insert a link behind another one, or first."""
        younger = self.first if older is None else older.after
        if younger is None:
            self.append(link)
            return
        link.before, link.after, link.place = older, younger, self
        younger.before = link
        if older is None:
            self.first = link
        else:
            older.after = link
        self.size += 1

    def pop(self) -> L:
        """Remove and return the first item; there must be one."""
        link = self.first
        assert link is not None
        self.first = after = link.after
        if after is None:
            self.last = None
        else:
            after.before = None
        link.after = link.place = None
        self.size -= 1
        return link

    def remove(self, link: L) -> None:
        before, after = link.before, link.after
        if before is None:
            self.first = after
        else:
            before.after = after
        if after is None:
            self.last = before
        else:
            after.before = before
        link.before = link.after = link.place = None
        self.size -= 1


class Lane(WaitingLine[L]):
    """A WaitingLine that competes with others: the lowest `rank` is served next, ties by `order`.

    `heaped` is the rank under which the heap of the ready set holds this lane, None when it does
    not; `resting` is set while the lane is empty and remembered only for its rank.
    """

    __slots__ = ("heaped", "key", "order", "rank", "resting", "step")

    def __init__(self, key: Hashable, order: int, rank: float, step: int) -> None:
        super().__init__()
        self.key = key
        self.order = order
        self.rank = rank
        self.step = step
        self.heaped: float | None = None
        self.resting = False


class Window(Struct, frozen=True):
    """When a job may start: not before `opens_at`, not after `closes_at` (the driver's clock)."""

    opens_at: float | None = None
    closes_at: float | None = None

    def closed(self, now: float) -> bool:
        return self.closes_at is not None and self.closes_at <= now


class Entry(LaneLink):
    """A job and its place: the lane it waits in or the slot it runs in, None when in neither.

    `seq` is its number in the order of arrival (0 where the order is not used), `ready_at` the time
    it last entered the queue.
    """

    __slots__ = ("job", "ready_at", "seq", "window")

    def __init__(self, job: Job, window: Window | None = None) -> None:
        self.job = job
        self.window = window
        self.seq = 0
        self.ready_at = 0.0
        self.before = self.after = self.place = None

    def is_same_call(self, kept: Any) -> bool:
        """Return whether this job may make the same call as the job of its idempotency key."""
        return True


E = TypeVar("E", bound=Entry)


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


def age(job: Job, at: datetime) -> float:
    """Return how many seconds ago a running job became ready."""
    ran = 0.0 if job.started_at is None else seconds(at) - seconds(job.started_at)
    return (job.waited or 0.0) + max(0.0, ran)


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
