"""Views of a pool: snapshot, statistics, health, and why a job waits."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.work import Work
from poolhand.pool.slots.attempt import IDLE, STUCK, Attempt, OffLoop, Runnable, Slot
from poolhand.rules.explain import Explanation, Standing, explain
from poolhand.rules.job import Job, Status
from poolhand.rules.plain import PlainView
from poolhand.rules.queue.backpressure import capacity
from poolhand.runtime import Runtime

if TYPE_CHECKING:
    from poolhand.pool.engine.engine import Engine


class Examined(Struct, frozen=True):
    """Slots to examine, their loop's thread, how long that loop has not turned, and the limit."""

    slots: Sequence[Slot[Runnable]]
    runtime: Runtime
    thread: int
    silence: Callable[[float], float]
    stale_after: float


def slots_of(engine: Engine) -> Examined:
    """Return the current slots of a pool for examination."""
    slots = tuple(engine.slots.all)
    stale_after = engine.config.stale_after
    return Examined(slots, engine.runtime, engine.thread, engine.watch.silence, stale_after)


def look_for_life(examined: Examined, now: float) -> None:
    """Record which threads and processes have used the processor since the last look."""
    for slot in examined.slots:
        # Read once: the loop may change it while another thread looks.
        attempt = slot.attempt
        outside = None if attempt is None else attempt.outside
        if outside is not None:
            _feel_pulse(outside, examined.runtime, now)


def silent_for(examined: Examined, slot: Slot[Runnable], now: float) -> float:
    """Return how long a slot has shown no activity; for an idle slot, how long its loop has."""
    attempt = slot.attempt
    outside = None if attempt is None or _is_on_loop(attempt) else attempt.outside
    sign = None if outside is None else outside.sign
    if sign is None:
        return 0.0 if get_ident() == examined.thread else examined.silence(now)
    # Another thread may have recorded activity after `now` was read.
    return max(0.0, now - sign[1])


def is_stale(examined: Examined, slot: Slot[Runnable], now: float) -> bool:
    """Return whether a busy slot exceeds its job's deadline or, without one, shows no activity."""
    attempt = slot.attempt
    if attempt is None:
        return False
    if slot.state is STUCK:
        return True
    hard = attempt.work.terms.hard
    if hard is not None:
        return now > attempt.began + hard + SLACK
    return silent_for(examined, slot, now) >= examined.stale_after


SLACK = 1.0  # a deadline that has just passed is still being handled


def _is_on_loop(attempt: Attempt[Runnable]) -> bool:
    outside = attempt.outside
    # A task may wait for a thread, as the task of an agent with a plain `run` does.
    return outside is None or (outside.thread is None and attempt.task is not None)


def _feel_pulse(outside: OffLoop, runtime: Runtime, now: float) -> None:
    used, sign = _processor_time(outside, runtime), outside.sign
    if used is None or sign is None or sign[0] != used:
        # An unknown processor time counts as activity.
        outside.sign = (used, now)


def _processor_time(outside: OffLoop, runtime: Runtime) -> float | None:
    thread, call = outside.thread, outside.call
    if call is not None:
        return runtime.cpu_of_process(call[0].pid)
    return None if thread is None else runtime.cpu_of_thread(thread)


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
    state = idle if slot.state is IDLE else busy
    average = slot.busy_for / slot.runs if slot.runs else None
    job, silent = None if attempt is None else attempt.work.id, silent_for(examined, slot, now)
    counts = slot.completed, slot.failed, average
    return WorkerHealth(state, *counts, silent, job, slot.state is STUCK)


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


def explain_work(engine: Engine, work: Work) -> Explanation:
    """Explain why a job waits and for about how long."""
    desk = engine.desk
    job = work.snapshot()
    holder = desk.sessions.holder(job)
    due_at = desk.due_of(work) if job.status is Status.SCHEDULED else None
    now = engine.clock.now()
    ran = now - work.began if job.status is Status.RUNNING else None
    hard = work.terms.hard
    return explain(
        Standing(
            job=job,
            slots=desk.slots,
            paused=desk.paused,
            submitter_blocked=work.place is desk.blocked_submitters,
            ahead=_ahead(engine, work),
            average=engine.slots.average_seconds(),
            due_in=None if due_at is None else due_at - now,
            holder=None if holder is None else holder.id,
            max_per_key=engine.config.max_per_key,
            stuck=engine.slots.stuck,
            ran=ran,
            left=None if ran is None or hard is None else max(0.0, hard - ran),
        )
    )


def _ahead(engine: Engine, work: Work) -> int | None:
    desk, job = engine.desk, work.job
    if work.place is not desk.blocked_submitters:
        if job.status is Status.QUEUED:
            return desk.ahead_of(work)
        if job.status is not Status.BLOCKED:
            return None
        if job.blocked_on == "key" and desk.gates is not None:
            return desk.gates.ahead_of(work)
    count = 0
    one = work.before
    while one is not None:
        count, one = count + 1, one.before
    return count
