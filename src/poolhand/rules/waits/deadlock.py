"""Deadlock detection in one pool: which awaited jobs can never finish."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from poolhand.rules.job import Status
from poolhand.rules.queue.desk import Desk
from poolhand.rules.queue.entry import E, Entry

T = TypeVar("T", bound=Hashable)
Needs = Sequence[Iterable[Hashable]]  # one member of each of these groups must progress

SLOT = "slot"  # stands for: some slot becomes free


class PoolFloor(Struct, Generic[E], frozen=True):
    """The running jobs, which of them await which, and the keys of jobs whose code does not stop.

    Code that does not stop may stop later: its slot and its key count as becoming free.
    """

    desk: Desk[E]
    running: Collection[E]
    awaited: Mapping[E, Iterable[E]]
    stuck_keys: Collection[str] = ()


def hopeless(targets: Iterable[E], floor: PoolFloor[E]) -> set[E]:
    """Return the targets that can never progress in the current state.

    A running job progresses by itself unless it awaits jobs of its own pool. A waiting job
    progresses when its session, its key or a slot can become free, which takes a job that
    progresses.
    """

    def needs(one: Hashable) -> Needs | None:
        found = _needs(one, floor)
        return None if found is None else (found,)

    return unable(targets, needs)


def unable(targets: Iterable[T], needs: Callable[[Hashable], Needs | None]) -> set[T]:
    """Return the targets that can never progress.

    The items that can progress are the least fixpoint: for each group that `needs` returns for an
    item, some member must progress before the item can. None: the item needs nothing.
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
    """Return the items of which one must progress before this one can; None: it needs none."""
    desk, running = floor.desk, floor.running
    if not isinstance(one, Entry):
        return None if desk.has_slot or desk.paused or floor.stuck_keys else running
    if one.place is desk.parked:
        # The queue gets room when a waiting job starts, or a running job ends.
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
