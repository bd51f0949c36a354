"""The submits and views of a durable pool: as of the last time its store was read."""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import AsyncIterable, Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from poolhand.durable.client.submit import StoreClient, map_stored, map_window
from poolhand.durable.client.task import Task
from poolhand.durable.local_pool.counts import PoolCounts
from poolhand.durable.local_pool.mirror import PoolMirror
from poolhand.durable.worker.worker import Worker
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.views import (
    PoolHealth,
    PoolSnapshot,
    PoolStats,
    busy_among,
    ceiling,
    each_worker,
    not_started,
    stale_among,
)
from poolhand.pool.mapping import check_map
from poolhand.pool.options import Options, SubmitTerms, terms
from poolhand.pool.pool import Pool
from poolhand.pool.submitter import Submitter
from poolhand.pool.ticket import Ticket
from poolhand.rules.audit import AuditLine
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import capacity
from poolhand.rules.validation import shown


@explain_misuse
class DurableSubmitter(Submitter):
    """Submits work with one set of options, as stored jobs."""

    _durable = True

    async def submit_call(
        self,
        options: SubmitTerms,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Ticket[Any]:
        """Store a call and return its ticket."""
        raise NotImplementedError

    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """Submit a call and return its ticket; from then on the job survives crashes."""
        return await self.submit_call(self._terms, fn, args, kwargs)

    def submit_nowait(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        raise UsageError(
            f"pool {self._config.name!r} is durable, and a store cannot answer without waiting; "
            "use await pool.submit(…)"
        )

    async def submit_or_refuse(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Ticket[Any]:
        return await self.submit_call(replace(self._terms, waits=False), fn, args, kwargs)

    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit and wait; return the value, or raise the exception of the job."""
        return await (await self.submit(fn, *args, **kwargs))

    async def map(
        self,
        fn: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Run `fn(item)` for every item, each as a stored job; return values in the order of items.

        The first failure ends it as in a pool in memory: no further item is taken, its jobs that
        wait or run are cancelled and over, then the error is raised.
        """
        check_map(self, fn.code.fn if isinstance(fn, Task) else fn, items, return_exceptions)
        return await map_stored(
            partial(self.submit, fn),
            items,
            limit=map_window(self._config.max_concurrent, self._config.backpressure),
            return_exceptions=return_exceptions,
        )

    def _view(self, options: Options) -> DurableSubmitter:
        tenant = self._config.scope.tenant
        if tenant is not None and options.tenant not in (None, tenant):
            raise UsageError(
                f"Pool {self._config.name!r}, with_options: tenant={shown(options.tenant)} is not "
                f"allowed; the pool is that of tenant {shown(tenant)}, and so are its jobs: leave "
                "it out"
            )
        return DurablePoolView(self, options if tenant is None else replace(options, tenant=tenant))


class DurablePoolView(DurableSubmitter):
    """A durable pool with other submit options."""

    def __init__(self, origin: DurableSubmitter, options: Options) -> None:
        self._config = origin._config
        self._terms = terms(options, origin._terms.draft.pool, origin._terms.draft.pool_id)
        self.submit_call = origin.submit_call  # type: ignore[method-assign]


class DurablePoolViews(Pool):
    """The views of a pool, from the state in this process; only `refresh` asks the store."""

    _closed: bool
    _gone: bool
    _client: StoreClient
    _config: PoolConfig
    _created_at: datetime
    _known: PoolCounts
    _mirror: PoolMirror
    _worker: Worker | None

    def stats(self) -> PoolStats:
        self._started()
        look = self._known.look
        ends = look.count(Status.COMPLETED), look.count(Status.FAILED)
        return PoolStats(look.waiting, look.total, *ends, look.running, look.as_of)

    def size(self) -> int:
        self._started()
        return self._known.look.running + self._known.look.waiting

    def health(self) -> PoolHealth:
        config, look, worker = self._config, self._known.look, self._worker
        if worker is None:
            return not_started(config)
        here = worker.examined(self._known.slots(config), config.stale_after)
        now, idle = self.runtime.monotonic(), "stopped" if self._gone else "idle"
        leaving = [slot.id for slot in here.slots] if self._closed or self._gone else ()
        size = 0 if self._gone else len(here.slots)
        return PoolHealth(
            pool_size=size,
            queue_size=look.waiting,
            queue_capacity=capacity(config.backpressure),
            utilization=busy_among(here) / size if size else 0.0,
            total_completed=look.count(Status.COMPLETED),
            total_failed=look.count(Status.FAILED),
            stale_workers=stale_among(here, now),
            workers=each_worker(here, leaving, idle, now),
            as_of=look.as_of,
        )

    def snapshot(self) -> PoolSnapshot:
        worker, workers, config = self._started(), self.health().workers, self._config
        look, slots = self._known.look, self._known.slots(config)
        return PoolSnapshot(
            id=self.id,
            name=config.name,
            created_at=self._created_at,
            max_concurrent=slots,
            resizing_to=None,
            ceiling=ceiling(slots, _get_running_loop()),
            active=look.running,
            stuck=worker.stuck,
            queued=look.count(Status.QUEUED),
            blocked=look.count(Status.BLOCKED),
            scheduled=look.count(Status.SCHEDULED),
            completed=look.count(Status.COMPLETED),
            failed=look.count(Status.FAILED),
            cancelled=look.count(Status.CANCELLED),
            rejected=look.count(Status.REJECTED),
            expired=look.count(Status.EXPIRED),
            total=look.total,
            blocked_submitters=look.row.blocked_submitters,
            paused=look.row.paused,
            draining=self._closed,
            queue=str(config.queue),
            backpressure=str(config.backpressure),
            scope=config.scope.kind,
            scope_id=config.scope.id,
            durable=True,
            workers=workers,
            jobs=tuple(worker.jobs()),
            config=config,
            as_of=look.as_of,
        )

    async def refresh(self) -> PoolSnapshot:
        self._started()
        if not self._gone:
            connection = await self._client.connection()
            await connection.thread.ask(lambda: self._mirror.look(connection))
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
        if self._worker is None:
            raise UsageError(
                f"pool {self.name!r} is not started; use `async with` or `await pool.start()`"
            )
        return self._worker
