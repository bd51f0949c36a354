"""Nested waits of stored jobs: which awaited jobs can never start, across all processes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from msgspec import Struct

from poolhand.rules.job import Job, Status
from poolhand.rules.waits.deadlock import Needs, unable


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


class Scene(Struct, frozen=True):
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


def never_going_on(scene: Scene, ids: Iterable[str]) -> set[str]:
    """Return the jobs among `ids` that can never progress in the current state.

    An unknown job counts as progressing, and so does a job that waits for a worker with its task:
    that is no deadlock.
    """
    awaited: dict[str, list[str]] = {}
    for waiter, one in scene.waits():
        awaited.setdefault(waiter, []).append(one)

    def needs(one: Hashable) -> Needs | None:
        match one:
            case _Cap(pool=pool):
                running = scene.capped.get(pool)
                return None if running is None else (running,)
            case _Slot(pool=pool):
                return _slot_needs(scene, pool)
            case str():
                return _job_needs(scene, one, awaited)
            case _:
                return None

    return unable(ids, needs)


def _slot_needs(scene: Scene, pool: str) -> Needs | None:
    serving = [worker for worker in scene.workers if worker.serves(pool)]
    if pool in scene.open_pools or not serving or not all(one.is_full for one in serving):
        return None
    return ([id for worker in serving for id in worker.running],)


def _job_needs(scene: Scene, id: str, awaited: Mapping[str, list[str]]) -> Needs | None:
    if id in awaited:
        # It awaits others, so it runs, even if an older record says otherwise.
        return (awaited[id],)
    job = scene.jobs.get(id)
    if job is None:
        return None
    match job.status:
        case Status.BLOCKED:
            holders = scene.holders.get(id)
            return None if not holders else (holders,)
        case Status.QUEUED:
            return ((_Cap(job.pool),), (_Slot(job.pool),))
        case Status.SCHEDULED if job.waits_for is None:
            return ((_Cap(job.pool),), (_Slot(job.pool),))
        case _:
            return None
