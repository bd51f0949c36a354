"""The sections of the benchmark, for each store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import durable_cost
import durable_crowd as crowd
import durable_depth as depth
import durable_start as start
import postgres_cost
from durable_cases import Case, Figures, Scale, Take

SQLITE, POSTGRES = "sqlite", "postgres"


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its cases, how a sample is taken, and its table."""

    title: str
    cases: Callable[[Scale], list[Case]]
    take: Take
    header: tuple[str, ...]
    rows: Callable[[Figures], list[list[str]]]
    at_once: bool = False


FINISHED = Section(
    depth.FULL_TITLE, depth.full_cases, depth.take_full, depth.FULL_HEADER, depth.full_rows
)
QUEUED = Section(
    depth.DEPTH_TITLE, depth.depth_cases, depth.take_depth, depth.DEPTH_HEADER, depth.depth_rows
)
# All repeats in parallel: they only wait, and do not disturb each other.
IDLE = Section(
    start.IDLE_TITLE,
    start.idle_cases,
    start.take_idle,
    start.IDLE_HEADER,
    start.idle_rows,
    at_once=True,
)


def workers(*crowds: int) -> Section:
    cases = partial(crowd.cases, crowds=crowds)
    return Section(crowd.TITLE, cases, crowd.take, crowd.HEADER, crowd.rows)


SECTIONS: dict[str, dict[str, Section]] = {
    SQLITE: {
        durable_cost.SECTION: Section(
            durable_cost.TITLE,
            durable_cost.cases,
            durable_cost.take,
            durable_cost.HEADER,
            durable_cost.rows,
        ),
        depth.FULL_SECTION: FINISHED,
        depth.DEPTH_SECTION: QUEUED,
        start.START_SECTION: Section(
            start.START_TITLE,
            partial(start.start_cases, contestants=start.IN_FILES),
            start.take_start,
            start.START_HEADER,
            start.start_rows,
        ),
        crowd.SECTION: workers(1, 2, 3),
        start.IDLE_SECTION: IDLE,
    },
    POSTGRES: {
        postgres_cost.COST_SECTION: Section(
            postgres_cost.COST_TITLE,
            postgres_cost.cost_cases,
            postgres_cost.take_cost,
            postgres_cost.COST_HEADER,
            postgres_cost.cost_rows,
        ),
        postgres_cost.SUBMIT_SECTION: Section(
            postgres_cost.SUBMIT_TITLE,
            postgres_cost.submit_cases,
            postgres_cost.take_submit,
            postgres_cost.SUBMIT_HEADER,
            postgres_cost.submit_rows,
        ),
        depth.FULL_SECTION: FINISHED,
        depth.DEPTH_SECTION: QUEUED,
        start.START_SECTION: Section(
            start.START_TITLE,
            partial(start.start_cases, contestants=start.ON_A_SERVER),
            start.take_start,
            (*start.START_HEADER, "goal"),
            start.judged_start_rows,
        ),
        crowd.SECTION: workers(1, 2, 4),
        start.IDLE_SECTION: IDLE,
    },
}
PEERS = {SQLITE: durable_cost.PEERS, POSTGRES: postgres_cost.PEERS}
NAMES = list(dict.fromkeys(name for sections in SECTIONS.values() for name in sections))
