"""Checks of connected workers against the store: conflicting pools, schedules that do not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from poolhand.contract import Owner, PoolRow, Store
from poolhand.durable.catalogue import contents_of
from poolhand.operate.doctor.finding import Finding, Level, many
from poolhand.operate.schedules import idle_schedules, schedules_of
from poolhand.rules.queue.pool_spec import SETTINGS, PoolSpec, differences

MOST_NAMED = 3
MISSED = timedelta(seconds=60)  # a moment that is later than this counts as missed


async def pool_conflicts(
    store: Store, pools: Sequence[PoolRow], workers: Sequence[Owner]
) -> list[Finding]:
    """Report pools that connected workers declare with other settings than those in force."""
    contents = await contents_of(store, workers)
    declared = [
        (worker, spec)
        for worker in workers
        if worker.catalogue is not None
        for spec in contents[worker.catalogue].specs()
    ]
    found = []
    for pool in pools:
        mine = [(worker, spec) for worker, spec in declared if spec.name == pool.spec.name]
        if parts := list(_conflicts(pool.spec, mine)):
            text = (
                f"pool {pool.spec.name!r} is declared with different settings: {'; '.join(parts)}"
            )
            fix = (
                "declare it alike in all apps and versions that use this store, then restart their "
                "workers: the last declaration holds for all"
            )
            found.append(Finding("pools", Level.WARN, text, fix))
    return found


def _conflicts(used: PoolSpec, declared: Sequence[tuple[Owner, PoolSpec]]) -> Iterator[str]:
    """Yield one text per conflicting setting: its values, and the processes that declare them."""
    for setting in SETTINGS:
        others: dict[str, list[str]] = {}
        in_force = ""
        for worker, spec in declared:
            if (pair := differences(used, spec).get(setting)) is not None:
                in_force = pair[0]
                others.setdefault(pair[1], []).append(f"{worker.host} pid {worker.pid}")
        if others:
            told = (f"{value} is declared by {_some(who)}" for value, who in others.items())
            yield f"{setting} {in_force} is in force, {', '.join(told)}"


async def schedule_faults(
    store: Store, workers: Sequence[Owner], now: datetime
) -> Iterator[Finding]:
    """Report active schedules whose jobs no connected worker would run, grouped by reason."""
    by_reason: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for view, reason in await idle_schedules(store, await schedules_of(store), workers):
        missed = view.next is not None and now - view.next > MISSED
        by_reason.setdefault((reason, missed), []).append((view.task, view.id))
    return iter([_idle(reason, missed, some) for (reason, missed), some in by_reason.items()])


def _idle(reason: str, missed: bool, some: Sequence[tuple[str, str]]) -> Finding:
    one = len(some) == 1
    tasks = _some([repr(task) for task, _ in some])
    late = ", and moments were missed" if missed else ""
    text = f"{many(len(some), 'active schedule')} ({tasks}): {reason}{late}"
    fix = (
        f"start a worker whose code declares {'it' if one else 'them'}, or, if "
        f"{'it is' if one else 'one is'} gone for good, `poolhand schedules pause "
        f"{shlex.quote(some[0][1]) if one else 'ID'}`"
    )
    return Finding("schedules", Level.WRONG if missed else Level.WARN, text, fix)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
