"""Whether the content of a store makes it slower: finished jobs, and queued ones.

The bare verbs are measured, so that nothing else hides the growth.
"""

from __future__ import annotations

import asyncio
import os

from durable_cases import (
    BATCH,
    POOL,
    Case,
    Figures,
    Sample,
    Scale,
    middle,
    problem,
    ratio,
    shown,
)
from goals import Goal

FULL_SECTION, FULL_TITLE = "finished", "What finished jobs in the store cost"
DEPTH_SECTION, DEPTH_TITLE = "queued", "What queued jobs in the store cost"
CLAIM_GOAL = Goal(1.5, "× a store without")
VERBS = ("add", "claim", "replace")
FULL_HEADER = ("finished jobs", *VERBS, "add, CPU", "claim, CPU", "replace, CPU", "× empty", "goal")
DEPTH_HEADER = ("strategy", "queued", "wall", "CPU", "growth, by CPU")
PLAIN = "fifo"


def full_cases(scale: Scale) -> list[Case]:
    """A nearly empty store, and one full of finished jobs."""
    return [
        Case(FULL_SECTION, POOL, scale.claimed, amount=amount) for amount in (0, scale.finished)
    ]


def take_full(case: Case, where: str) -> dict[str, float]:
    from durable_ours import url_of

    return asyncio.run(_full(case, _full_store(case, where) if case.amount else url_of(where)))


def _full_store(case: Case, where: str) -> str:
    """The URL of the full store beside that of the sample; it is made once for all repeats."""
    if "://" in where:
        import postgres_full

        return postgres_full.full_store(where, case.amount)
    import durable_full

    return durable_full.full_store(os.path.join(os.path.dirname(where), "full.db"), case.amount)


async def _full(case: Case, url: str) -> dict[str, float]:
    from durable_ours import verbs

    async with verbs(url) as ours:
        for _ in range(case.jobs // (2 * BATCH) or 1):
            await ours.fill(2 * BATCH)
            await ours.claim_apart(2 * BATCH)
    spans = zip(VERBS, (ours.adding, ours.claiming, ours.replacing), strict=True)
    return {name: one for verb, span in spans for name, one in span.per(case.jobs, verb).items()}


def full_rows(figures: Figures) -> list[list[str]]:
    """µs per job of each verb."""
    empty = next((samples for case, samples in figures.items() if not case.amount), [])
    return [_full_row(case, samples, empty) for case, samples in figures.items()]


def _full_row(case: Case, samples: list[Sample], empty: list[Sample]) -> list[str]:
    name = f"{case.amount:,}"
    if found := problem(samples):
        return [name, found, *[""] * (len(FULL_HEADER) - 2)]
    kinds = [f"{verb}_{kind}" for kind in ("wall", "cpu") for verb in VERBS]
    cells = [shown(middle(samples, kind), "µs") for kind in kinds]
    by_time, by_cpu = (ratio(samples, empty, f"claim_{kind}") for kind in ("wall", "cpu"))
    if not case.amount or by_time is None or by_cpu is None:
        return [name, *cells, "", ""]
    goal = f"{CLAIM_GOAL.judge(by_cpu)}, claims by CPU; {CLAIM_GOAL.judge(by_time)}, by time"
    return [name, *cells, shown(by_cpu), goal]


def depth_cases(scale: Scale) -> list[Case]:
    """Short and long queues; the fair ones with few, some and many keys."""
    return [
        Case(DEPTH_SECTION, PLAIN if not keys else "fair", scale.drained, amount, keys)
        for keys in (0, 2, 50, 5_000)
        for amount in (scale.short, scale.long)
    ]


def take_depth(case: Case, where: str) -> dict[str, float]:
    return asyncio.run(_depth(case, where))


async def _depth(case: Case, where: str) -> dict[str, float]:
    import poolhand
    from durable_ours import url_of, verbs
    from poolhand.rules.queue.stored_desk import PoolSpec, pool_id

    queue = poolhand.fair_round_robin() if case.keys else poolhand.fifo()
    spec = PoolSpec(POOL, pool_id("app", "", POOL), queue=queue)
    at_once = min(case.jobs, case.amount)
    async with verbs(url_of(where), spec) as ours:
        await ours.fill(case.amount - at_once, case.keys)
        for _ in range(case.jobs // at_once):
            # Refilled each time, so that the queue keeps its length.
            await ours.fill(at_once, case.keys)
            await ours.drain(at_once)
    span = ours.replacing
    span.wall += ours.claiming.wall
    span.cpu += ours.claiming.cpu
    return span.per(case.jobs, "take")


def depth_rows(figures: Figures) -> list[list[str]]:
    """µs per job that is claimed and completed; growth compares long with short queues."""
    return [_depth_row(case, figures) for case in figures]


def _depth_row(case: Case, figures: Figures) -> list[str]:
    samples = figures[case]
    name = case.contestant if not case.keys else f"fair, {case.keys:,} keys"
    if found := problem(samples):
        return [name, f"{case.amount:,}", found, "", ""]
    walls, cpus = (shown(middle(samples, f"take_{kind}"), "µs") for kind in ("wall", "cpu"))
    shorter = next(
        (
            other
            for shorter, other in figures.items()
            if (shorter.contestant, shorter.keys) == (case.contestant, case.keys)
            and shorter.amount < case.amount
        ),
        [],
    )
    return [name, f"{case.amount:,}", walls, cpus, shown(ratio(samples, shorter, "take_cpu"))]
