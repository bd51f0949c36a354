"""The app: tasks, pools and a store under one name; the composition root of the package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec.structs import replace

from poolhand.agents.agent import Agent
from poolhand.agents.session import Session
from poolhand.agents.tools.tool_call import settle
from poolhand.app_options import AppOptions, check_names, chosen_store, store_line
from poolhand.config import load_app_store, load_timezone, masked
from poolhand.contract import JobRequest
from poolhand.durable.calls.serializer import Serializer
from poolhand.durable.calls.task_registry import TaskRegistry
from poolhand.durable.catalogue import Catalogue
from poolhand.durable.client.declared_pools import DeclaredPools
from poolhand.durable.client.decorators import AgentMaker, ScheduleDecorators, TaskMaker
from poolhand.durable.client.job_request import JobRequests
from poolhand.durable.client.named_task import NamedTasks, SubmitByName
from poolhand.durable.client.registration import Registration
from poolhand.durable.client.submit import StoreSubmitter, SubmitContext
from poolhand.durable.client.sync_ticket import SyncTicket, has_loop
from poolhand.durable.client.task import Task, TaskOptions
from poolhand.durable.client.ticket import StoredTicket
from poolhand.durable.client.transaction import Transaction, transaction
from poolhand.durable.connection.blocking import Blocking
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.connection.opening import ConnectionSlot
from poolhand.durable.connection.store_proxy import StoreProxy
from poolhand.durable.local_pool.durable_pool import DurablePool
from poolhand.durable.scheduler import Scheduler
from poolhand.durable.worker.executor import Executor
from poolhand.durable.worker.run_worker import check_can_block, print_start, run_until_signal
from poolhand.durable.worker.settings import (
    DRAIN_TIMEOUT,
    WorkerSettings,
    checked_pools,
    checked_terms,
)
from poolhand.durable.worker.warm_ups import WarmUps
from poolhand.durable.worker.worker import Worker, WorkerHooks, WorkerReport
from poolhand.errors import StoreError, UsageError
from poolhand.misuse import explain_misuse
from poolhand.observe.events import EVENTS
from poolhand.operate.actions import Operator
from poolhand.pool.config import PoolConfig, PoolOptions
from poolhand.pool.pool import check_parts
from poolhand.pool.ticket import Ticket
from poolhand.rules.job import Job
from poolhand.rules.queue.pool_spec import pool_id
from poolhand.rules.retention import KEEP, check_keep
from poolhand.rules.scaling.farm_settings import USUAL_FARM, USUAL_SPEECH, FarmSettings, Verbosity
from poolhand.rules.validation import Seconds, is_writable, shown
from poolhand.rules.values.escape import safe
from poolhand.runtime import Runtime
from poolhand.settings import check_farm
from poolhand.stores.open import store_of
from poolhand.wire.limits import LIMITS

if TYPE_CHECKING:
    from poolhand.farm.supervisor import Supervisor

P = ParamSpec("P")
T = TypeVar("T")

SCOPE = "app"
READY_WITHIN = 4.5


@explain_misuse
class App(ScheduleDecorators, SubmitByName):
    """Stores jobs and runs them: `App("sqlite:///agents.db")`.

    Declare tasks and pools on it, submit from anywhere, and run the jobs in as many processes as
    you like, each with `async with app.worker(…)`. The store is opened when it is first needed, or
    by `async with app`. Without a URL the setting `store` (POOLHAND_STORE, or `[tool.poolhand]` of
    pyproject.toml) names the store; without that it is the file poolhand.db in the current folder.
    """

    def __init__(self, url: str | None = None, **options: Unpack[AppOptions]) -> None:
        check_names(options)
        runtime, events = options.get("runtime"), options.get("events")
        check_parts(runtime, events, "App")
        self.url, self.store_origin = chosen_store(url)
        self.runtime = runtime or Runtime()
        self.events = EVENTS if events is None else events
        if url is None:
            store_of(self.url, self.runtime, self.store_origin)
        else:
            store_of(url, self.runtime)
        self._keep = options.get("keep", KEEP)
        check_keep(self._keep)
        self._parcels = Serializer(
            options.get("codec", "json"),
            options.get("limits", LIMITS),
            options.get("ring"),
            options.get("pickle"),
        )
        self._declared = DeclaredPools()
        self._warm_ups = WarmUps()
        self._opening = ConnectionSlot(self._station)
        self._blocking = Blocking(self, self._opening, self.events)
        self._codes = TaskRegistry()
        self._catalogue = Catalogue(lambda: self._declared.specs(self.pool_id))
        self._named = NamedTasks(self, self, self._parcels)
        self._registration = Registration(
            self,
            self._parcels,
            self._declared,
            self._codes,
            self._catalogue,
            self._named,
            self.url,
        )
        self._executor = Executor(self._codes, self.served_pools)
        self._scheduler = Scheduler(self, self._codes, load_timezone)
        self.orders = JobRequests(self.runtime)
        self._submissions = StoreSubmitter(self, self.events)

    def __repr__(self) -> str:
        return f"<App {safe(masked(self.url))}>"

    async def __aenter__(self) -> Self:
        await self.station()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def pool(self, name: str, **options: Unpack[PoolOptions]) -> None:
        """Declare a pool: its rules apply in every process that uses this store.

        Without `max_concurrent` it has no cap: as many of its jobs run as workers have slots.
        """
        self._declared.add(name, **options)
        self._opening.declare(self._declared.spec(name, self.pool_id(name)))

    @overload
    def task(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def task(self, fn: Callable[P, T], /) -> Task[P, T, T]: ...

    @overload
    def task(
        self, fn: None = None, /, *, pool: str = ..., **options: Unpack[TaskOptions]
    ) -> TaskMaker: ...

    def task(
        self, fn: Callable[..., Any] | None = None, /, *, pool: str = "default", **options: Any
    ) -> Any:
        """Register a function as a task: `@app.task`, or `@app.task(pool="research", timeout=600)`.

        Without `retry` a failed job gets up to three more attempts.
        """
        maker = TaskMaker(self, pool, dict(options))
        return maker if fn is None else maker(fn)

    @overload
    def agent(
        self, fn: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]], /
    ) -> Agent[P, T]: ...

    @overload
    def agent(self, fn: None = None, /, *, pool: str = ..., **options: Any) -> AgentMaker: ...

    def agent(
        self, fn: Callable[..., Any] | None = None, /, *, pool: str = "default", **options: Any
    ) -> Any:
        """Register an async function as an agent: its first argument is the session of its turn.

        Takes the options of a task, `on_busy`, and the options of its sessions: `schema` and
        `upcasters` (the shape of their state), `ttl` (seconds after the last turn).
        """
        maker = AgentMaker(self, pool, dict(options))
        return maker if fn is None else maker(fn)

    def worker(
        self,
        slots: int = 10,
        pools: Iterable[str] | None = None,
        drain_timeout: Seconds = DRAIN_TIMEOUT,
        capture: bool = False,
    ) -> Worker:
        """Return a worker for `async with`; it runs jobs of these or all pools in this process.

        `capture`: jobs' prints and log records also become events of the jobs.
        """
        terms = checked_terms(slots, pools, drain_timeout, capture)
        self._declared.warn_of_unknown(terms.pools, "worker")
        return self.shift(terms)

    def run_worker(
        self,
        slots: int = 10,
        pools: Iterable[str] | None = None,
        drain_timeout: Seconds = DRAIN_TIMEOUT,
        capture: bool = False,
    ) -> WorkerReport:
        """Run a worker in a script, and block until SIGTERM or Ctrl-C stops it.

        The first signal lets running jobs finish within `drain_timeout`; a second one returns them
        to the queue at once, without counting the attempt. Other options as for `worker`.
        """
        check_can_block()
        terms = checked_terms(slots, pools, drain_timeout, capture)
        self._declared.warn_of_unknown(terms.pools, "run_worker")
        print_start(store_line(self.url, self.store_origin), terms.slots)
        return run_until_signal(self.shift(terms), terms.drain_timeout, self._opening, self.close)

    def warm_up(self, fn: Callable[[], Any]) -> Callable[[], Any]:
        """Run this function in every process that runs jobs, before its first job: `@app.warm_up`.

        That is each worker, of a farm or not, and each child process that runs jobs. The function,
        async or not, loads what jobs need, outside of their timeouts. If it raises, its process
        cannot run jobs: a worker does not start, a job that needed a child fails.
        """
        self._warm_ups.add(fn)
        return fn

    async def get_ready(self) -> None:
        """Run the warm-up functions, unless this process has run them already."""
        await self._warm_ups.run()

    def shift(self, terms: WorkerSettings, heard: Callable[[Job], None] | None = None) -> Worker:
        """Return a worker with validated settings; `heard` is called with each job that ends."""
        self._scheduler.check()
        hooks = WorkerHooks(heard, self._scheduler.begin, self.get_ready, self._catalogue.published)
        terms = replace(terms, before=self._warm_ups.packed())
        return Worker(self, self._executor, self._declared.configs, terms, hooks)

    def farm(
        self,
        name: str,
        settings: FarmSettings = USUAL_FARM,
        *,
        pools: Iterable[str] | None = None,
        speech: Verbosity = USUAL_SPEECH,
    ) -> Supervisor:
        """Return a supervisor that runs jobs of these pools, or of all, in worker processes.

        Run it with `await farm.run()`. `name`, "module:attribute", is how a worker process finds
        this app.
        """
        from poolhand.farm.supervisor import Supervisor

        check_farm(settings)
        chosen = checked_pools(pools, "farm")
        for pool in chosen or ():
            self._declared.check_use(pool)
        self._declared.warn_of_unknown(chosen, "farm")
        if self.url.lower().startswith("memory:"):
            raise UsageError(
                f"farm: the store is {self.url!r}, which lives inside one process; keep jobs in a "
                "file (sqlite:///agents.db) or on a server (postgresql://user@host/database)"
            )
        return Supervisor(self, name, settings, chosen, speech)

    async def ready(self) -> bool:
        """Return whether a job could be accepted now; False if the store does not answer soon."""
        try:
            async with asyncio.timeout(READY_WITHIN):
                station = await self.station()
                await station.keeper.ask(station.store.check)
        except (StoreError, TimeoutError):
            return False
        return True

    async def get(self, id: str) -> Ticket[Any] | None:
        """Return the ticket of a job by its id, None when no such job is stored.

        If this app does not have the task, the result is read as plain JSON.
        """
        if not isinstance(id, str):
            raise UsageError(f"get({shown(id)}) is not allowed; give the id of a job, a text")
        if not is_writable(id):
            return None
        station = await self.station()
        at = self.runtime.monotonic()
        found = (await station.keeper.ask(lambda: station.store.get([id])))[0]
        if found is None or found.parked:
            return None
        code = self._codes.find(found.job.name)
        policy = self.config(found.job.pool).backpressure
        how = SubmitContext(code, policy, parcels=self._parcels)
        return self._submissions.ticket(station, found.job, at, how)

    def get_sync(self, id: str) -> SyncTicket[Any] | None:
        """Return the ticket of a job by its id, for code without an event loop."""
        if has_loop():
            raise UsageError("get_sync would block the loop that runs here; use await app.get(…)")
        found = self._blocking.ask(lambda: self.get(id))
        return self._blocking.ticket(found) if isinstance(found, StoredTicket) else None

    def operator(self) -> Operator:
        """Return the operator of this store: list and act on jobs, dead letters, pools."""
        return Operator(StoreProxy(self), self.runtime, self._scheduler.order)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Write to your own tables in the store's database, together with jobs (`submit_in`).

        Leaving the block commits; an exception rolls everything back. Keep it short: meanwhile, a
        file accepts no other writes, a server no other writes to the pools of its jobs, and after
        5 s it is rolled back.
        """
        async with transaction(await self.station()) as opened:
            yield opened

    async def settle_tool(self, key: str, *, happened: bool, result: Any = None) -> None:
        """Record whether a tool call happened, by the key that ToolOutcomeUnknown names.

        If it did, `result` is what it returned; if not, it is made when its job is retried.
        """
        station = await self.station()
        write = partial(self._parcels.write, result)
        found = await station.keeper.ask(lambda: settle(station.store, key, happened, write))
        if found is None:
            raise UsageError(f"settle_tool: there is no receipt of the key {shown(key)}")

    async def close(self) -> None:
        """Close the store; jobs stay in it. The next use opens it again."""
        await self._opening.close()

    # Used by tasks and tickets.

    async def station(self) -> StoreConnection:
        if not self._opening.is_open:
            self._declared.check()
        return await self._opening.station()

    def config(self, pool: str) -> PoolConfig:
        return self._declared.find(pool)

    def slots(self, pool: str) -> int | None:
        return self._declared.slots(pool)

    def served_pools(self) -> tuple[str, ...]:
        """Return the pools that a worker serves by default."""
        return self._declared.served()

    def pool_id(self, pool: str) -> str:
        return pool_id(SCOPE, "", pool)

    async def hand_in(
        self, orders: list[JobRequest], how: SubmitContext
    ) -> list[StoredTicket[Any]]:
        return await self._submissions.submit(orders, how)

    def hand_in_sync(self, order: JobRequest, how: SubmitContext) -> SyncTicket[Any]:
        self._declared.check()
        return self._blocking.submit(order, how)

    def register(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any:
        """Register a function as a task."""
        return self._registration.task(fn, pool, options)

    def enlist(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any:
        """Register a function as an agent."""
        return self._registration.agent(fn, pool, options)

    def _station(self) -> StoreConnection:
        store = store_of(self.url, self.runtime)
        return StoreConnection(store, self.runtime, self.events, self._keep)


def _configured_store() -> str | None:
    """Return the configured store; None if unset, as machines cannot share the default file."""
    found = load_app_store()
    return None if found.is_default else found.text


DurablePool.make_store = staticmethod(store_of)
DurablePool.configured_store = staticmethod(_configured_store)
DurablePool.masked = staticmethod(masked)
