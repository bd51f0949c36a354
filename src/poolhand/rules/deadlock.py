"""Deadlock: which jobs that others wait for can never end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import cast

from poolhand.rules.desk import Desk
from poolhand.rules.entry import E, Entry
from poolhand.rules.job import Status

SLOT = "slot"  # stands for: some slot comes free


def hopeless(
    targets: Iterable[E],
    desk: Desk[E],
    running: Callable[[], Iterable[E]],
    awaited: Mapping[E, Iterable[E]],
) -> set[E]:
    """Return those of the targets that can never go on, as things stand.

    A running job goes on by itself unless it waits for jobs of its own pool (`awaited`). A waiting
    one goes on when its session, its key or a slot can come free, which takes a job that goes on.
    """
    targets = list(targets)
    helped: dict[Hashable, list[Hashable]] = {}
    free: list[Hashable] = []
    seen: set[Hashable] = set(targets)
    to_see: list[Hashable] = list(targets)
    while to_see:
        one = to_see.pop()
        needs = _needs(one, desk, running, awaited)
        if needs is None:
            free.append(one)
        for other in needs or ():
            helped.setdefault(other, []).append(one)
            if other not in seen:
                seen.add(other)
                to_see.append(other)
    good = set(free)
    while free:
        for one in helped.get(free.pop(), ()):
            if one not in good:
                good.add(one)
                free.append(one)
    return {target for target in targets if target not in good}


def _needs(
    one: Hashable,
    desk: Desk[E],
    running: Callable[[], Iterable[E]],
    awaited: Mapping[E, Iterable[E]],
) -> Iterable[Hashable] | None:
    """Return those of which one must go on before this one can; None when it needs nobody."""
    if not isinstance(one, Entry):
        return None if desk.has_slot or desk.paused else running()
    if one.place is desk.parked:
        # A place comes free when one that waits starts, or one that runs ends.
        return None if desk.paused else (*desk, *running())
    match one.job.status:
        case Status.RUNNING:
            return awaited.get(cast(E, one)) or None
        case Status.BLOCKED if one.job.blocked_on == "session":
            holder = desk.sessions.holder(one.job)
            return None if holder is None else (holder,)
        case Status.BLOCKED:
            return desk.holders_of_key(one.job.key, running())
        case Status.QUEUED | Status.SCHEDULED:
            return (SLOT,)
        case _:
            return None
