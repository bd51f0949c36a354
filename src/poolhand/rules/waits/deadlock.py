"""Deadlock: which jobs that others wait for can never end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from poolhand.rules.job import Status
from poolhand.rules.queue.desk import Desk
from poolhand.rules.queue.entry import E, Entry

T = TypeVar("T", bound=Hashable)
Needs = Sequence[Iterable[Hashable]]  # of each of these groups one must go on

SLOT = "slot"  # stands for: some slot comes free


class PoolFloor(Struct, Generic[E], frozen=True):
    """Who runs, who of them waits for whom, and the keys of those whose code does not stop.

    Code that does not stop may do so yet: its slot and its key count as coming free.
    """

    desk: Desk[E]
    running: Collection[E]
    awaited: Mapping[E, Iterable[E]]
    stuck_keys: Collection[str] = ()


def hopeless(targets: Iterable[E], floor: PoolFloor[E]) -> set[E]:
    """Return those of the targets that can never go on, as things stand.

    A running job goes on by itself unless it waits for jobs of its own pool. A waiting one goes on
    when its session, its key or a slot can come free, which takes a job that goes on.
    """

    def needs(one: Hashable) -> Needs | None:
        found = _needs(one, floor)
        return None if found is None else (found,)

    return unable(targets, needs)


def unable(targets: Iterable[T], needs: Callable[[Hashable], Needs | None]) -> set[T]:
    """Return those of the targets that can never go on: the least fixpoint of who can.

    Of each group that `needs` gives for one, some member must go on before it can; None: it needs
    nothing.
    """
    targets = list(targets)
    helped: dict[Hashable, list[tuple[Hashable, int]]] = {}
    missing: dict[Hashable, set[int]] = {}
    free: list[Hashable] = []
    seen: set[Hashable] = set(targets)
    to_see: list[Hashable] = list(targets)
    while to_see:
        one = to_see.pop()
        groups = needs(one)
        if groups is None:
            free.append(one)
            continue
        missing[one] = set(range(len(groups)))
        for number, group in enumerate(groups):
            for other in group:
                helped.setdefault(other, []).append((one, number))
                if other not in seen:
                    seen.add(other)
                    to_see.append(other)
    good = set(free)
    while free:
        for one, number in helped.get(free.pop(), ()):
            missing[one].discard(number)
            if not missing[one] and one not in good:
                good.add(one)
                free.append(one)
    return {target for target in targets if target not in good}


def _needs(one: Hashable, floor: PoolFloor[Any]) -> Iterable[Hashable] | None:
    """Return those of which one must go on before this one can; None when it needs nobody."""
    desk, running = floor.desk, floor.running
    if not isinstance(one, Entry):
        return None if desk.has_slot or desk.paused or floor.stuck_keys else running
    if one.place is desk.parked:
        # A place comes free when one that waits starts, or one that runs ends.
        return None if desk.paused or floor.stuck_keys else (*desk, *running)
    match one.job.status:
        case Status.RUNNING:
            return cast("Iterable[Hashable] | None", floor.awaited.get(one) or None)
        case Status.BLOCKED if one.job.blocked_on == "session":
            holder = desk.sessions.holder(one.job)
            return None if holder is None else (holder,)
        case Status.BLOCKED:
            key = one.job.key
            return None if key in floor.stuck_keys else desk.holders_of_key(key, running)
        case Status.QUEUED | Status.SCHEDULED:
            return (SLOT,)
        case _:
            return None
