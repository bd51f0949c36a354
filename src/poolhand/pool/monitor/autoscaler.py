"""The autoscaler: resizes a pool to fit its load."""

from __future__ import annotations

from msgspec.structs import replace

from poolhand.pool.engine.engine import Engine
from poolhand.pool.slots.ticker import Ticker
from poolhand.rules.queue.backpressure import capacity
from poolhand.rules.scaling.pool_size import Autoscale, PoolLoad, PoolTrend, decide


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
