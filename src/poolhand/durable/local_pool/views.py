"""The views of a durable pool: the state of its store when it was last read."""

from __future__ import annotations

from datetime import datetime

from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.local_pool.known import PoolCounts
from poolhand.durable.local_pool.mirror import PoolMirror
from poolhand.durable.worker.worker import Worker
from poolhand.errors import UsageError
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.health import PoolHealth, not_started
from poolhand.pool.engine.snapshot import PoolSnapshot, PoolStats
from poolhand.pool.pool import Pool
from poolhand.rules.audit import AuditLine
from poolhand.rules.job import Job


class DurablePoolViews(Pool):
    """The views of a pool, from the state in this process; only `refresh` asks the store."""

    _closed: bool
    _gone: bool
    _config: PoolConfig
    _created_at: datetime
    _known: PoolCounts
    _lookout: PoolMirror
    _shift: Worker | None

    async def station(self) -> StoreConnection:
        """Return this process's store connection."""
        raise NotImplementedError

    def stats(self) -> PoolStats:
        self._started()
        return self._known.stats()

    def size(self) -> int:
        self._started()
        return self._known.size

    def health(self) -> PoolHealth:
        config = self._config
        if self._shift is None:
            return not_started(config)
        here = self._shift.examined(self._known.slots(config), config.stale_after)
        state = "draining" if self._closed else "idle"
        state = "stopped" if self._gone else state
        return self._known.health(here, self.runtime.monotonic(), state, config)

    def snapshot(self) -> PoolSnapshot:
        shift, workers = self._started(), self.health().workers
        named = (self.id, self._created_at, self._closed)
        here = (shift.jobs(), shift.stuck, workers)
        return self._known.snapshot(self._config, named, here)

    async def refresh(self) -> PoolSnapshot:
        self._started()
        if not self._gone:
            station = await self.station()
            await station.keeper.ask(lambda: self._lookout.look(station))
        return self.snapshot()

    def audit(self, after: int = 0, kind: str = "") -> list[AuditLine]:
        raise UsageError(
            f"the audit of pool {self.name!r} is kept in its store, with that of all others; read "
            "it by `poolhand audit`, or by app.operator().audit(…) of an App on that store"
        )

    def dead(self) -> list[Job]:
        """Return the jobs that failed for good, as far as this process knows them."""
        return list(self._known.dead.values())

    def _started(self) -> Worker:
        if self._shift is None:
            raise UsageError(
                f"pool {self.name!r} is not started; use `async with` or `await pool.start()`"
            )
        return self._shift
