"""An entry: a job and its position at the desk."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from poolhand.rules.job import Job
from poolhand.rules.queue.lane import LaneLink


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


E = TypeVar("E", bound=Entry)
