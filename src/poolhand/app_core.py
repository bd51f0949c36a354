"""What tasks, workers and farms need of an app: its store, tasks, pools and schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from poolhand.config import load_timezone
from poolhand.context import running
from poolhand.contract import Store
from poolhand.durable.calls.task_registry import TaskRegistry
from poolhand.durable.catalogue import Catalogue
from poolhand.durable.client.decorators import Registration
from poolhand.durable.client.named_task import NamedTasks
from poolhand.durable.client.submit import StoreClient, SubmitContext
from poolhand.durable.client.ticket import StoredTicket
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.connection.open_blocks import OpenBlocks
from poolhand.durable.scheduler import Scheduler
from poolhand.durable.worker.executor import Executor
from poolhand.durable.worker.run_worker import WarmUps
from poolhand.durable.worker.worker import Worker, WorkerHooks, WorkerSettings
from poolhand.errors import UsageError
from poolhand.observe.events import Events
from poolhand.rules.job import Job
from poolhand.rules.lifecycle import Keep
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from poolhand.wire.payload import Wire


class AppCore(StoreClient):
    """The inside of an app; `App` is the face that users see."""

    def __init__(self, url: str, runtime: Runtime, events: Events, keep: Keep, wire: Wire) -> None:
        super().__init__(self._make_connection, runtime, events)
        self.url = url
        self.wire = wire
        self.blocks = OpenBlocks(self, lambda: self.slot)
        self.make_store: Callable[[], Store] = partial(store_of, url, runtime)
        self.tasks = TaskRegistry()
        self.catalogue = Catalogue(lambda: self.declared.specs(self.pool_id))
        self.named = NamedTasks(self, wire)
        self.scheduler = Scheduler(self, self.tasks, load_timezone)
        self.warm_ups = WarmUps()
        self.registration = Registration(self, wire, self.tasks, self.catalogue, self.named, url)
        self._executor = Executor(self.tasks, self.declared.served)
        self._keep = keep

    async def get_ready(self) -> None:
        """Run the warm-up functions, unless this process has run them already."""
        await self.warm_ups.run()

    def make_worker(
        self, settings: WorkerSettings, heard: Callable[[Job], None] | None = None
    ) -> Worker:
        """Return a worker with validated settings; `heard` is called with each job that ends."""
        self.scheduler.check()
        hooks = WorkerHooks(heard, self.scheduler.begin, self.get_ready, self.catalogue.published)
        settings = replace(settings, before=self.warm_ups.packed())
        return Worker(self, self._executor, self.declared.configs, settings, hooks)

    def check_not_in_job(self) -> None:
        """Raise in a job that a worker of this app runs in this process."""
        attempt, connection = running.get(), self.slot.current
        if attempt is None or connection is None:
            return
        if connection.local_workers.run(attempt):
            raise UsageError(
                "app.close() inside a job would stop the worker that runs the job: leave it out, "
                "or use `async with app:`, whose exit keeps the store open while a worker runs; "
                "to stop the worker, leave its `async with` block or send SIGTERM to its process"
            )

    async def ticket(self, id: str) -> StoredTicket[object] | None:
        """Return the ticket of a stored job, None if it is not stored."""
        connection = await self.connection()
        at = self.runtime.monotonic()
        found = (await connection.thread.ask(lambda: connection.store.get([id])))[0]
        if found is None or found.submitter_blocked:
            return None
        policy = self.declared.find(found.job.pool).backpressure
        how = SubmitContext(self.tasks.find(found.job.name), policy, wire=self.wire)
        return self.submitter.ticket(connection, found.job, at, how)

    def _make_connection(self) -> StoreConnection:
        return StoreConnection(self.make_store(), self.runtime, self.events, self._keep)
