"""The health of a pool: how busy it is, and which workers show no activity."""

from __future__ import annotations

from collections.abc import Collection, Generator
from datetime import datetime
from typing import Any, Self

from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.engine import Engine
from poolhand.pool.engine.vitals import Examined, is_stale, look_for_life, silent_for, slots_of
from poolhand.pool.slots.attempt import IDLE, STUCK, Runnable, Slot
from poolhand.rules.queue.backpressure import capacity
from poolhand.rules.values.plain import PlainView


class WorkerHealth(PlainView, frozen=True):
    """One slot: its current state and its counters.

    `state` is idle, busy, draining (it retires when its job is over) or stopped. A `stuck` slot
    runs code whose job is over. `avg_time` is over all its runs, None before the first.
    """

    state: str
    completed: int
    failed: int
    avg_time: float | None
    last_heartbeat_ago: float
    job: str | None
    stuck: bool = False


class PoolHealth(PlainView, frozen=True):
    """The health of a pool; `queue_capacity` is None if the queue is unbounded.

    `pool_size` is the number of workers, including those that retire when their job is over. For a
    durable pool, `workers` are those of this process, and the queue and the totals are what the
    store held at `as_of`; without `as_of` everything is current.
    """

    pool_size: int
    queue_size: int
    queue_capacity: int | None
    utilization: float
    total_completed: int
    total_failed: int
    stale_workers: tuple[str, ...]
    workers: dict[str, WorkerHealth]
    as_of: datetime | None = None


class HealthCheck(dict[str, Any]):
    """The health of a pool as plain data; awaiting it returns itself."""

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield


def health_of(engine: Engine) -> PoolHealth:
    """Examine a pool; any thread may call this, even while the pool's loop is blocked."""
    now = engine.clock.now()
    examined = slots_of(engine)
    shown = workers(engine, examined, now)
    size = 0 if engine.stopped else len(shown)
    return PoolHealth(
        pool_size=size,
        queue_size=engine.desk.waiting,
        queue_capacity=capacity(engine.desk.policy),
        utilization=busy_among(examined) / size if size else 0.0,
        total_completed=engine.tally.completed,
        total_failed=engine.tally.failed,
        stale_workers=stale_among(examined, now),
        workers=shown,
    )


def not_started(config: PoolConfig) -> PoolHealth:
    """Return the health of a pool that has not started and so has no workers."""
    return PoolHealth(0, 0, capacity(config.backpressure), 0.0, 0, 0, (), {})


def workers(engine: Engine, examined: Examined, now: float) -> dict[str, WorkerHealth]:
    """Return the health of each slot of a pool."""
    shown = examined.slots if engine.intake.closed else engine.slots.surplus()
    leaving = {slot.id for slot in shown}
    return each_worker(examined, leaving, "stopped" if engine.stopped else "idle", now)


def each_worker(
    examined: Examined, leaving: Collection[str], idle: str, now: float
) -> dict[str, WorkerHealth]:
    """Return the health of each slot; slots in `leaving` retire once they are `idle`."""
    look_for_life(examined, now)
    return {
        slot.id: _worker(examined, slot, "draining" if slot.id in leaving else "busy", idle, now)
        for slot in examined.slots
    }


def busy_among(examined: Examined) -> int:
    """Count the busy slots among those read: the loop may continue while another thread looks."""
    return sum(slot.state is not IDLE for slot in examined.slots)


def stale_among(examined: Examined, now: float) -> tuple[str, ...]:
    """Return the ids of the busy slots that show no activity."""
    return tuple(slot.id for slot in examined.slots if is_stale(examined, slot, now))


def _worker(
    examined: Examined, slot: Slot[Runnable], busy: str, idle: str, now: float
) -> WorkerHealth:
    # Read once: the loop may change it while another thread looks.
    attempt = slot.attempt
    return WorkerHealth(
        idle if slot.state is IDLE else busy,
        slot.completed,
        slot.failed,
        slot.busy_for / slot.runs if slot.runs else None,
        silent_for(examined, slot, now),
        None if attempt is None else attempt.work.id,
        slot.state is STUCK,
    )
