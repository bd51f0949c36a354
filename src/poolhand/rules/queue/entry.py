"""Entries: a job at the desk, the line that it waits in, and its time window."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct

from poolhand.rules.job import Job


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
