"""Deadlocks: jobs that await each other and can never finish, in one pool or over all processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from poolhand.rules.job import Job, Status
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
    if one.place is desk.blocked_submitters:
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


class WorkerSlots(Struct, frozen=True):
    """The slots of one worker, the pools it serves (None: any), and its running jobs.

    `running` maps each running job to the ids it awaits. `stuck` counts slots whose job is final
    but whose code still runs.
    """

    slots: int
    pools: tuple[str, ...] | None
    running: dict[str, tuple[str, ...]]
    stuck: int = 0

    @property
    def is_full(self) -> bool:
        return not self.stuck and len(self.running) >= self.slots

    def waits(self) -> list[tuple[str, str]]:
        """Return the pairs of running job and awaited job."""
        return [(waiter, awaited) for waiter, ids in self.running.items() for awaited in ids]

    def serves(self, pool: str) -> bool:
        return self.pools is None or pool in self.pools


class ProcessWaits(Struct, frozen=True):
    """The record that a process stores while jobs of its workers await stored jobs.

    A child process, which runs a job for the worker of another process, has no workers: it stores
    `waits`, the pairs of waiting and awaited job.
    """

    workers: tuple[WorkerSlots, ...]
    waits: tuple[tuple[str, str], ...] = ()

    def running(self) -> set[str]:
        """Return the ids of the jobs that run in the workers."""
        return {id for worker in self.workers for id in worker.running}


class WaitGraph(Struct, frozen=True):
    """The facts that decide whether awaited jobs can progress.

    `workers` are the workers of processes that stored their waits. `open_pools` are pools that
    another worker serves, or soon will. `capped` maps pools whose cap is used up to their running
    jobs; `holders` maps a blocked job to those that hold the session or the key it waits for.
    `apart` holds the waits of jobs that run in a child of their worker's process.
    """

    jobs: Mapping[str, Job]
    workers: tuple[WorkerSlots, ...]
    open_pools: frozenset[str]
    capped: Mapping[str, tuple[str, ...]]
    holders: Mapping[str, tuple[str, ...]]
    apart: tuple[tuple[str, str], ...] = ()

    def waits(self) -> list[tuple[str, str]]:
        """Return the pairs of running job and awaited job."""
        return [*(pair for worker in self.workers for pair in worker.waits()), *self.apart]


class _Cap(Struct, frozen=True):
    """Stands for: a place under the cap of a pool becomes free."""

    pool: str


class _Slot(Struct, frozen=True):
    """Stands for: a slot of a worker that serves a pool becomes free."""

    pool: str


def never_finishing(graph: WaitGraph, ids: Iterable[str]) -> set[str]:
    """Return the jobs among `ids` that can never progress in the current state.

    An unknown job counts as progressing, and so does a job that waits for a worker with its task:
    that is no deadlock.
    """
    awaited: dict[str, list[str]] = {}
    for waiter, one in graph.waits():
        awaited.setdefault(waiter, []).append(one)

    def needs(one: Hashable) -> Needs | None:
        match one:
            case _Cap(pool=pool):
                running = graph.capped.get(pool)
                return None if running is None else (running,)
            case _Slot(pool=pool):
                return _slot_needs(graph, pool)
            case str():
                return _job_needs(graph, one, awaited)
            case _:
                return None

    return unable(ids, needs)


def _slot_needs(graph: WaitGraph, pool: str) -> Needs | None:
    serving = [worker for worker in graph.workers if worker.serves(pool)]
    if pool in graph.open_pools or not serving or not all(one.is_full for one in serving):
        return None
    return ([id for worker in serving for id in worker.running],)


def _job_needs(graph: WaitGraph, id: str, awaited: Mapping[str, list[str]]) -> Needs | None:
    if id in awaited:
        # It awaits others, so it runs, even if an older record says otherwise.
        return (awaited[id],)
    job = graph.jobs.get(id)
    if job is None:
        return None
    match job.status:
        case Status.BLOCKED:
            holders = graph.holders.get(id)
            return None if not holders else (holders,)
        case Status.QUEUED:
            return ((_Cap(job.pool),), (_Slot(job.pool),))
        case Status.SCHEDULED if job.waits_for is None:
            return ((_Cap(job.pool),), (_Slot(job.pool),))
        case _:
            return None
