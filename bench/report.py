"""Turns figures into the rows of one table: one builder per kind of measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median

import goals
from cases import DRAIN, IMPORT, PENDING, Case, Sample
from contestants import FLOOR, OURS, SEMAPHORE
from drain import HEAPQ
from goals import Goal, figure
from measure import Figures, problem


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, every cell as text."""

    measure: str
    contestant: str
    value: str = ""
    wall: str = ""
    to_floor: str = ""
    to_semaphore: str = ""
    growth: str = ""
    goal: str = ""


HEADER = Row(
    "measure",
    "contestant",
    "CPU / bytes",
    "wall",
    "× floor",
    "× Sem+gather",
    "growth",
    "goal",
)


def rows(figures: Figures) -> Iterator[Row]:
    """All rows, in the order in which the cases were listed."""
    builders: dict[str, Callable[[Case, Figures], Row]] = {
        PENDING: pending_row,
        DRAIN: drain_row,
        IMPORT: import_row,
    }
    for case, samples in figures.items():
        row = builders.get(case.measure, throughput_row)(case, figures)
        found = problem(samples)
        yield Row(row.measure, row.contestant, found) if found else row


def ratio(figures: Figures, case: Case, other: Case | None) -> float | None:
    """The median of the ratios within each repeat; None when either case has no figure.

    Both samples of a ratio are taken within seconds: a slow minute of the machine cancels out.
    """
    if other not in figures or problem(figures[case]) or problem(figures[other]):
        return None
    pairs = zip(figures[case], figures[other], strict=True)
    return median(above.value / below.value for above, below in pairs)


def middle(samples: Sequence[Sample]) -> Sample:
    """The median of the figure and of the wall time, each on its own."""
    walls = [sample.wall for sample in samples if sample.wall is not None]
    return Sample(median(sample.value for sample in samples), median(walls) if walls else None)


def shown(value: float | None) -> str:
    """A ratio, or an empty text."""
    return "" if value is None else f"{value:.2f}"


def judged(*pairs: tuple[Goal, float | None]) -> str:
    """Every goal whose figure is known."""
    return "; ".join(goal.judge(actual) for goal, actual in pairs if actual is not None)


def timed(case: Case, measure: str, sample: Sample, unit: str = "µs") -> Row:
    """A row with CPU and wall time."""
    wall = "" if sample.wall is None else f"{figure(sample.wall)} {unit}"
    return Row(measure, case.contestant, f"{figure(sample.value)} {unit}", wall)


def throughput_row(case: Case, figures: Figures) -> Row:
    """CPU µs per job, beside the floor and beside Semaphore + gather on the same loop."""
    to_floor = ratio(figures, case, replace(case, contestant=FLOOR))
    to_semaphore = ratio(figures, case, replace(case, contestant=SEMAPHORE))
    goal = ""
    if case.contestant == OURS:
        semaphore_goal = goals.SEMAPHORE_GOAL[case.measure]
        goal = judged((semaphore_goal, to_semaphore), (goals.FLOOR_GOAL, to_floor))
    row = timed(case, f"{case.measure}, {case.loop}", middle(figures[case]))
    return replace(row, to_floor=shown(to_floor), to_semaphore=shown(to_semaphore), goal=goal)


def pending_row(case: Case, figures: Figures) -> Row:
    """Bytes per pending job, beside the smallest record and beside a task on a semaphore."""
    weight = middle(figures[case]).value
    to_floor = ratio(figures, case, replace(case, contestant="slots record with future"))
    to_semaphore = ratio(figures, case, replace(case, contestant="task on a semaphore"))
    return Row(
        f"bytes per pending job, {case.size:,} waiting",
        case.contestant,
        f"{weight:,.0f} B",
        to_floor=shown(to_floor),
        to_semaphore=shown(to_semaphore),
        goal=judged((goals.PENDING_GOAL, weight)) if case.contestant == OURS else "",
    )


def drain_row(case: Case, figures: Figures) -> Row:
    """CPU µs per drained job; the bare heapq is the floor; growth compares long with short."""
    bare = replace(case, contestant=HEAPQ)
    row = timed(case, f"drain, {case.size:,} queued", middle(figures[case]))
    row = replace(row, to_floor=shown(ratio(figures, case, bare)))
    growth, bare_growth = grown(case, figures), grown(bare, figures)
    if growth is None or bare_growth is None:
        return row
    goal = judged((goals.GROWTH_GOAL, growth / bare_growth)) if case != bare else ""
    return replace(row, growth=shown(growth), goal=goal)


def grown(case: Case, figures: Figures) -> float | None:
    """Time per job of a long queue divided by that of the short one; None for the short one."""
    name = (case.measure, case.contestant)
    smaller = (
        other
        for other in figures
        if (other.measure, other.contestant) == name and other.size < case.size
    )
    return ratio(figures, case, next(smaller, None))


def import_row(case: Case, figures: Figures) -> Row:
    """CPU ms of a whole process that imports and ends."""
    sample = middle(figures[case])
    goal = judged((goals.IMPORT_GOAL, sample.value)) if case.contestant == OURS else ""
    return replace(timed(case, "import, whole process", sample, "ms"), goal=goal)


def table(lines: list[Row]) -> str:
    """Markdown that also reads well as plain text."""
    cells = [astuple(HEADER), *map(astuple, lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([text[0], rule, *text[1:]])


def summary(lines: list[Row]) -> str:
    """The number of goals met, and each goal that was missed."""
    verdicts = [(row, verdict) for row in lines if row.goal for verdict in row.goal.split("; ")]
    missed = [(row, verdict) for row, verdict in verdicts if verdict.startswith(goals.MISSED)]
    text = [f"Goals met: {len(verdicts) - len(missed)} of {len(verdicts)}."]
    text += [f"{verdict} — {row.measure}, {row.contestant}" for row, verdict in missed]
    return "\n".join(text)
