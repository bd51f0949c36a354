"""Diagnosis: what samples of a pool say is wrong with it, told once per incident."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum, auto

from msgspec import Struct

# A condition is told when it has held for so many samples in a row.
LASTING = 3


class Sample(Struct, frozen=True):
    """What is looked at, at one moment.

    `backlog` counts the queued jobs that only need a slot, `waiting` all that wait. `capacity` is
    the bound of the queue: None without one, 0 where no queue is kept. `completed` and `failed`
    (attempts) are counted from the start. `executor_backlog` are the calls that wait for a thread
    of the event loop's default executor, which has `executor_size` of them.
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
    """What can be wrong."""

    WORKER_BOUND = "worker_bound"
    POISON = "poison"
    QUEUE_HIGH = "queue_high"
    EXECUTOR_SMALL = "executor_small"


class Sign(Enum):
    """What one sample says about a condition; a lull leaves open whether it is over."""

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
    # 80 %, in whole numbers; where no queue is kept or none is bounded, none is high.
    high = bool(now.capacity) and 5 * now.waiting > 4 * (now.capacity or 0)
    return Sign.HOLDS if high else Sign.OVER


def _executor_small(_start: Sample, _before: Sample, now: Sample) -> Sign:
    small = now.executor_size is not None and now.executor_size < now.busy
    return Sign.HOLDS if small and now.executor_backlog > 0 else Sign.OVER


# A judge sees the sample before the condition began, the one before this one, and this one.
Judge = Callable[[Sample, Sample, Sample], Sign]

JUDGES: dict[Condition, Judge] = {
    Condition.WORKER_BOUND: _worker_bound,
    Condition.POISON: _poison,
    Condition.QUEUE_HIGH: _queue_high,
    Condition.EXECUTOR_SMALL: _executor_small,
}


class _Incident:
    """Follows one condition: how long it has held in a row, and whether that was told."""

    __slots__ = ("_judge", "_start", "_streak", "_told")

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._start: Sample | None = None
        self._streak = 0
        self._told = False

    def begins(self, before: Sample, now: Sample) -> bool:
        """Take one more sample; tell whether the incident begins with it."""
        if self._start is None or not (self._streak or self._told):
            self._start = before
        sign = self._judge(self._start, before, now)
        self._streak = self._streak + 1 if sign is Sign.HOLDS else 0
        if sign is Sign.OVER:
            self._told = False
        if self._told or self._streak < LASTING:
            return False
        self._told = True
        return True


class Diagnosis:
    """Looks at one sample after the other and names each incident once, when it begins.

    The same incident is not named again before its condition has ended. The first sample has none
    before it to be compared with, so what grows takes one sample more to be seen.
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
