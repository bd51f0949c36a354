"""Diagnosis: detect what is wrong with a pool from samples, and report each incident once."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum, auto

from msgspec import Struct

# A condition is reported when it has held for this many samples in a row.
LASTING = 3


class Sample(Struct, frozen=True):
    """The state of a pool at one moment.

    `backlog` counts the queued jobs that only need a slot, `waiting` all waiting jobs. `capacity`
    is the bound of the queue: None without one, 0 where the pool has no queue. `completed` and
    `failed` (attempts) count from the start. `executor_backlog` counts the calls that wait for a
    thread of the event loop's default executor, which has `executor_size` threads.
    """

    size: int
    busy: int
    backlog: int
    waiting: int
    capacity: int | None
    completed: int
    failed: int
    executor_size: int | None
    executor_backlog: int


class Condition(StrEnum):
    """A problem that a pool can have."""

    WORKER_BOUND = "worker_bound"
    POISON = "poison"
    QUEUE_HIGH = "queue_high"
    EXECUTOR_SMALL = "executor_small"


class Sign(Enum):
    """What one sample says about a condition; a lull leaves open whether it has ended."""

    HOLDS = auto()
    LULL = auto()
    OVER = auto()


def _worker_bound(start: Sample, before: Sample, now: Sample) -> Sign:
    if now.busy < now.size or now.backlog < start.backlog:
        return Sign.OVER
    return Sign.HOLDS if now.size and now.backlog > before.backlog else Sign.LULL


def _poison(_start: Sample, before: Sample, now: Sample) -> Sign:
    if now.completed > before.completed:
        return Sign.OVER
    return Sign.HOLDS if now.failed > before.failed else Sign.LULL


def _queue_high(_start: Sample, _before: Sample, now: Sample) -> Sign:
    # 80 %, in integers; a pool without a queue, or with an unbounded one, is never high.
    high = bool(now.capacity) and 5 * now.waiting > 4 * (now.capacity or 0)
    return Sign.HOLDS if high else Sign.OVER


def _executor_small(_start: Sample, _before: Sample, now: Sample) -> Sign:
    small = now.executor_size is not None and now.executor_size < now.busy
    return Sign.HOLDS if small and now.executor_backlog > 0 else Sign.OVER


# A judge gets the sample before the condition began, the previous sample and the current one.
Judge = Callable[[Sample, Sample, Sample], Sign]

JUDGES: dict[Condition, Judge] = {
    Condition.WORKER_BOUND: _worker_bound,
    Condition.POISON: _poison,
    Condition.QUEUE_HIGH: _queue_high,
    Condition.EXECUTOR_SMALL: _executor_small,
}


class _Incident:
    """Tracks one condition: for how many samples in a row it held, and whether it was reported."""

    __slots__ = ("_judge", "_reported", "_start", "_streak")

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._start: Sample | None = None
        self._streak = 0
        self._reported = False

    def begins(self, before: Sample, now: Sample) -> bool:
        """Add one sample; return whether the incident begins with it."""
        if self._start is None or not (self._streak or self._reported):
            self._start = before
        sign = self._judge(self._start, before, now)
        self._streak = self._streak + 1 if sign is Sign.HOLDS else 0
        if sign is Sign.OVER:
            self._reported = False
        if self._reported or self._streak < LASTING:
            return False
        self._reported = True
        return True


class Diagnosis:
    """Examines samples one after another and returns each incident once, when it begins.

    An incident is not returned again until its condition has ended. The first sample has no
    predecessor to compare with, so detecting growth takes one sample more.
    """

    __slots__ = ("_before", "_incidents")

    def __init__(self) -> None:
        self._before: Sample | None = None
        self._incidents = {condition: _Incident(judge) for condition, judge in JUDGES.items()}

    def look(self, sample: Sample) -> list[Condition]:
        """Return the conditions whose incident begins with this sample."""
        before = sample if self._before is None else self._before
        self._before = sample
        return [
            condition
            for condition, incident in self._incidents.items()
            if incident.begins(before, sample)
        ]
