"""The health of a pool: how busy it is, and who shows no life."""

from __future__ import annotations

from msgspec import Struct

from poolhand.pool.attempt import IDLE, STUCK, Runnable, Slot
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine import Engine
from poolhand.pool.vitals import is_stale, look_for_life, silent_for
from poolhand.rules.backpressure import capacity


class WorkerHealth(Struct, frozen=True):
    """One slot: what it does and has done.

    `state` is idle, busy, draining (it goes when its job is over) or stopped. A `stuck` one runs
    code whose job is over. `avg_time` is over all it has run, None before the first.
    """

    state: str
    completed: int
    failed: int
    avg_time: float | None
    last_heartbeat_ago: float
    job: str | None
    stuck: bool = False


class PoolHealth(Struct, frozen=True):
    """How a pool is; `queue_capacity` is None where the queue has no bound.

    `pool_size` is the number of workers, those that go when their job is over included.
    """

    pool_size: int
    queue_size: int
    queue_capacity: int | None
    utilization: float
    total_completed: int
    total_failed: int
    stale_workers: tuple[str, ...]
    workers: dict[str, WorkerHealth]


def health_of(engine: Engine) -> PoolHealth:
    """Examine a pool; any thread may do so, also while the loop of the pool is blocked."""
    now = engine.clock.now()
    slots = tuple(engine.slots.all)
    shown = workers(engine, slots, now)
    size = 0 if engine.stopped else len(slots)
    # Counted from the same slots: the loop may go on while another thread looks.
    busy = sum(slot.state is not IDLE for slot in slots)
    return PoolHealth(
        pool_size=size,
        queue_size=engine.desk.waiting,
        queue_capacity=capacity(engine.desk.policy),
        utilization=busy / size if size else 0.0,
        total_completed=engine.tally.completed,
        total_failed=engine.tally.failed,
        stale_workers=tuple(slot.id for slot in slots if is_stale(engine, slot, now)),
        workers=shown,
    )


def not_started(config: PoolConfig) -> PoolHealth:
    """Return the health of a pool that has no workers yet."""
    return PoolHealth(0, 0, capacity(config.backpressure), 0.0, 0, 0, (), {})


def workers(
    engine: Engine, slots: tuple[Slot[Runnable], ...], now: float
) -> dict[str, WorkerHealth]:
    """Return what each slot does and has done."""
    look_for_life(engine, now)
    surplus = {slot.id for slot in engine.slots.surplus()}
    return {slot.id: _worker(engine, slot, slot.id in surplus, now) for slot in slots}


def _worker(engine: Engine, slot: Slot[Runnable], surplus: bool, now: float) -> WorkerHealth:
    # Read once: the loop may go on while another thread looks.
    attempt = slot.attempt
    return WorkerHealth(
        _state(engine, slot, surplus),
        slot.completed,
        slot.failed,
        slot.busy_for / slot.runs if slot.runs else None,
        silent_for(engine, slot, now),
        None if attempt is None else attempt.work.id,
        slot.state is STUCK,
    )


def _state(engine: Engine, slot: Slot[Runnable], surplus: bool) -> str:
    if slot.state is IDLE:
        return "stopped" if engine.stopped else "idle"
    return "draining" if surplus or engine.intake.closed else "busy"
