"""Shared by the sections of the durable benchmark: cases, samples, scales, clocks, medians."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from goals import MISSED, figure

BATCH = 100
SLOTS = 100
POOL = "bench"
MICRO, MILLI = 1e6, 1e3


@dataclass(frozen=True, slots=True)
class Case:
    """One sample: `jobs` of them, by one contestant of a section.

    `amount` is what a section varies: the number of queued or finished jobs, or of workers.
    """

    section: str
    contestant: str
    jobs: int
    amount: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures by name; a missing or broken contestant has a problem instead."""

    figures: dict[str, float] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work of one run."""

    jobs: int = 10_000
    steps: int = 500
    slow: int = 1_000
    finished: int = 1_000_000
    claimed: int = 3_000
    short: int = 1_000
    long: int = 50_000
    drained: int = 5_000
    starts: int = 300
    idle: float = 20.0
    shared: int = 10_000


QUICK = Scale(
    jobs=200,
    steps=20,
    slow=30,
    finished=500,
    claimed=100,
    short=50,
    long=200,
    drained=100,
    starts=10,
    idle=2.5,
    shared=200,
)

Figures = dict[Case, list[Sample]]
Take = Callable[[Case, str], dict[str, float]]


class Span:
    """Seconds of CPU of all threads, and of wall time; several stretches add up."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def start(self) -> None:
        self.cpu -= time.process_time()
        self.wall -= time.perf_counter()

    def stop(self) -> None:
        self.cpu += time.process_time()
        self.wall += time.perf_counter()

    @contextmanager
    def timed(self) -> Iterator[None]:
        self.start()
        yield
        self.stop()

    def per(self, count: int, name: str) -> dict[str, float]:
        """Return both in µs per job, for that many jobs."""
        return {
            f"{name}_wall": self.wall * MICRO / count,
            f"{name}_cpu": self.cpu * MICRO / count,
        }


class Countdown:
    """Signals when so many jobs have run; its clock starts with the first one."""

    def __init__(self, count: int, over: asyncio.Event | None = None) -> None:
        self.over = over or asyncio.Event()
        self.span = Span()
        self._count = self._left = count

    def one(self) -> None:
        if self._left == self._count:
            self.span.start()
        self._left -= 1
        if not self._left:
            self.over.set()


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A lower bound on a figure."""

    least: float
    of: str

    def judge(self, actual: float) -> str:
        verdict = "pass" if actual >= self.least else MISSED
        return f"{verdict}: {figure(actual)} (≥ {figure(self.least)} {self.of})"


def problem(samples: Sequence[Sample]) -> str:
    """The reason why there is no figure, or None."""
    return next((sample.problem for sample in samples if sample.problem), "")


def middle(samples: Sequence[Sample], *names: str) -> float:
    """The median over the repeats of the sum of these figures."""
    return median(added(sample, names) for sample in samples)


def ratio(above: Sequence[Sample], below: Sequence[Sample], *names: str) -> float | None:
    """The median of the ratios within each repeat, None if a side has no figure.

    Both samples of a ratio are taken within seconds: a slow minute of the machine cancels out.
    """
    if not above or not below or problem(above) or problem(below):
        return None
    pairs = zip(above, below, strict=False)
    return median(added(one, names) / added(other, names) for one, other in pairs)


def added(sample: Sample, names: Sequence[str]) -> float:
    return sum(sample.figures[name] for name in names)


def shown(value: float | None, unit: str = "") -> str:
    """A figure as text, or an empty text."""
    return "" if value is None else f"{figure(value)} {unit}".rstrip()


def batches(count: int) -> Iterator[range]:
    """Numbers up to `count`, a batch at a time."""
    for start in range(0, count, BATCH):
        yield range(start, min(start + BATCH, count))
