"""Periodic looks at a pool: findings and statistics, and its size."""

from __future__ import annotations

from asyncio import AbstractEventLoop

from msgspec.structs import astuple, replace

from poolhand.observe import events
from poolhand.observe.events import Event
from poolhand.pool.engine.engine import Engine
from poolhand.pool.engine.views import executor_threads, look_for_life, slots_of, stats
from poolhand.pool.slots.attempt import Ticker
from poolhand.rules.diagnosis import Condition, Diagnosis, Sample
from poolhand.rules.queue.backpressure import capacity
from poolhand.rules.scaling.pool_size import Autoscale, PoolLoad, PoolTrend, decide

SECONDS = 10.0


class Checkup:
    """Every ten seconds: reclaims vanished slots, emits statistics and findings."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._diagnosis = Diagnosis()
        self._ticker = Ticker(engine.loop, SECONDS, self.look)

    def look(self) -> None:
        """Take one sample and emit what it shows."""
        engine = self._engine
        engine.slots.reclaim()
        engine.dead.look_at_log()
        look_for_life(slots_of(engine), engine.clock.now())
        sample = take_sample(engine)
        begun = self._diagnosis.look(sample)
        if engine.events.live:
            engine.events.emit(_figures(engine))
            for condition in begun:
                engine.events.emit(_finding(condition, engine.config.name, sample))

    def stop(self) -> None:
        self._ticker.stop()


def take_sample(engine: Engine) -> Sample:
    """Collect the input of a diagnosis."""
    desk = engine.desk
    threads, calls = _default_executor(engine.loop)
    return Sample(
        size=desk.slots or 0,
        busy=desk.running,
        # Jobs waiting in a paused pool do not wait for a slot.
        backlog=0 if desk.paused else desk.backlog,
        waiting=desk.waiting,
        capacity=capacity(desk.policy),
        completed=engine.tally.completed,
        failed=engine.slots.failed_attempts,
        executor_size=threads,
        executor_backlog=calls,
    )


def _default_executor(loop: AbstractEventLoop) -> tuple[int | None, int]:
    """Return how many threads `asyncio.to_thread` has, and how many calls wait for one."""
    calls = getattr(getattr(loop, "_default_executor", None), "_work_queue", None)
    return executor_threads(loop), 0 if calls is None else calls.qsize()


def _figures(engine: Engine) -> Event:
    return events.StatsTaken(engine.config.name, *astuple(stats(engine))[:-1])


def _finding(condition: Condition, pool: str, sample: Sample) -> Event:
    match condition:
        case Condition.WORKER_BOUND:
            return events.WorkerBound(pool, sample.size, sample.backlog)
        case Condition.POISON:
            return events.PoisonSuspected(pool, sample.completed, sample.failed)
        case Condition.QUEUE_HIGH:
            return events.QueueHigh(pool, sample.waiting, sample.capacity or 0)
        case Condition.EXECUTOR_SMALL:
            size, waiting = sample.executor_size or 0, sample.executor_backlog
            return events.ExecutorSmall(pool, size, waiting, sample.busy)


class Autoscaler:
    """Samples the load of a pool and resizes it as `decide` says; runs until stopped."""

    def __init__(self, engine: Engine, settings: Autoscale) -> None:
        self.settings = settings
        self._engine = engine
        self._trend = PoolTrend()
        self._ticker = Ticker(engine.loop, settings.interval, self.look)

    def look(self) -> None:
        """Take one sample and act on it."""
        engine = self._engine
        if engine.desk.paused or engine.intake.closed:
            # Jobs waiting in a paused or closed pool say nothing about the number of slots.
            self._trend = replace(self._trend, high=0, low=0)
            return
        load = self._load()
        decision = decide(self.settings, load, self._trend, engine.clock.now())
        self._trend = decision.trend
        if decision.target != load.size:
            engine.resize(decision.target, decision.why)

    def allows(self, size: int) -> bool:
        return self.settings.min <= size <= self.settings.max

    def stop(self) -> None:
        self._ticker.stop()

    def _load(self) -> PoolLoad:
        desk = self._engine.desk
        return PoolLoad(desk.slots or 0, desk.running, desk.backlog, capacity(desk.policy))
