"""Snapshots and statistics of a pool."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice

from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.engine import Engine
from poolhand.pool.engine.health import WorkerHealth, workers
from poolhand.pool.engine.vitals import slots_of
from poolhand.rules.job import Job
from poolhand.rules.values.plain import PlainView

MOST_JOBS = 100


class PoolStats(PlainView, frozen=True):
    """The main figures of a pool, for plotting.

    For a durable pool they are what the store held at `as_of`, over all processes; without `as_of`
    they are current.
    """

    queue_depth: int
    submitted: int
    completed: int
    failed: int
    in_flight: int
    as_of: datetime | None = None


class PoolSnapshot(PlainView, frozen=True, kw_only=True):
    """A pool at one instant: active + stuck ≤ max_concurrent, total = the sum of all states.

    While a pool shrinks, `max_concurrent` counts the slots that are still busy; `resizing_to` is
    the target size. `ceiling` is how many jobs can make progress at a time if each needs a thread
    of the event loop's default executor, as `asyncio.to_thread` does. `jobs` lists the running,
    then the waiting, then the latest finished jobs, at most a hundred.

    For a durable pool, all counts are what the store held at `as_of`, over all processes; `stuck`,
    `workers` and `jobs` (only running ones) are those of this process. Without `as_of` everything
    is current.
    """

    id: str
    name: str
    created_at: datetime
    max_concurrent: int
    resizing_to: int | None
    ceiling: int
    active: int
    stuck: int
    queued: int
    blocked: int
    scheduled: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    expired: int
    total: int
    blocked_submitters: int
    paused: bool
    draining: bool
    queue: str
    backpressure: str
    scope: str = "session"
    scope_id: str | None = None
    durable: bool = False
    workers: dict[str, WorkerHealth]
    jobs: tuple[Job, ...]
    config: PoolConfig
    as_of: datetime | None = None


def snapshot(engine: Engine, pool_id: str, created_at: datetime) -> PoolSnapshot:
    """Return a snapshot of a pool."""
    desk, tally, config = engine.desk, engine.tally, engine.config
    slots = desk.slots or 0
    existing = max(slots, desk.running)
    return PoolSnapshot(
        id=pool_id,
        name=config.name,
        created_at=created_at,
        max_concurrent=existing,
        resizing_to=slots if existing > slots else None,
        ceiling=ceiling(existing, engine.loop),
        active=engine.active,
        stuck=engine.slots.stuck,
        queued=desk.queued,
        blocked=desk.blocked,
        scheduled=desk.scheduled,
        completed=tally.completed,
        failed=tally.failed,
        cancelled=tally.cancelled,
        rejected=tally.rejected,
        expired=tally.expired,
        total=tally.submitted,
        blocked_submitters=engine.intake.blocked_submitters,
        paused=desk.paused,
        draining=engine.intake.closed,
        queue=str(config.queue),
        backpressure=str(config.backpressure),
        workers=workers(engine, slots_of(engine), engine.clock.now()),
        jobs=tuple(islice(_jobs(engine), MOST_JOBS)),
        config=config,
    )


def ceiling(slots: int, loop: AbstractEventLoop | None) -> int:
    """Return how many jobs that use the loop's default executor can make progress at a time."""
    threads = None if loop is None else executor_threads(loop)
    return slots if threads is None else min(slots, threads)


def executor_threads(loop: AbstractEventLoop) -> int | None:
    """Return how many threads `asyncio.to_thread` has, or None before the loop has any.

    There is no public API for this; if the private attributes are missing, it returns None.
    """
    threads = getattr(getattr(loop, "_default_executor", None), "_max_workers", None)
    return threads if isinstance(threads, int) else None


def stats(engine: Engine) -> PoolStats:
    """Return the current figures."""
    tally = engine.tally
    return PoolStats(
        engine.desk.waiting, tally.submitted, tally.completed, tally.failed, engine.active
    )


def _jobs(engine: Engine) -> Iterator[Job]:
    for work in chain(engine.running(), engine.desk, reversed(engine.history)):
        yield work.snapshot()
