"""The cases of one run: what is measured."""

from __future__ import annotations

from dataclasses import dataclass

from contestants import CONTESTANTS, JOBS
from drain import HEAPQ, STRATEGIES
from pending import PENDING as WAYS_TO_WAIT

PENDING = "pending"
DRAIN = "drain"
IMPORT = "import"
LOOPS = ("asyncio", "uvloop")
IMPORTS = ("python -c pass", "poolhand")


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: `size` jobs, repeated `rounds` times in one process."""

    measure: str
    contestant: str
    loop: str = "asyncio"
    size: int = 1
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One result: µs of CPU and wall time per job, bytes per job, or ms per import."""

    value: float = 0.0
    wall: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work of one run."""

    jobs: int = 100_000
    pending: int = 50_000
    short: int = 1_000
    long: int = 50_000
    repeats: int = 3
    import_repeats: int = 5


QUICK = Scale(jobs=2_000, pending=2_000, short=200, long=2_000, repeats=1, import_repeats=1)


def throughput_cases(scale: Scale) -> list[Case]:
    """No-op and one-suspension jobs on each loop, for each contestant."""
    return [
        Case(measure, contestant, loop, scale.jobs)
        for measure in JOBS
        for loop in LOOPS
        for contestant in CONTESTANTS
    ]


def pending_cases(scale: Scale) -> list[Case]:
    """Bytes per pending job, for each way to wait."""
    return [Case(PENDING, way, size=scale.pending) for way in WAYS_TO_WAIT]


def drain_cases(scale: Scale) -> list[Case]:
    """Short and long queues, each pair with the same amount of work."""
    rounds = scale.long // scale.short
    return [
        case
        for name in (HEAPQ, *STRATEGIES)
        for case in (
            Case(DRAIN, name, size=scale.short, rounds=rounds),
            Case(DRAIN, name, size=scale.long),
        )
    ]


def import_cases() -> list[Case]:
    """The interpreter alone, and with poolhand."""
    return [Case(IMPORT, name) for name in IMPORTS]
