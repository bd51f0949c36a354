"""The app: tasks, pools and a store under one name; the composition root of the package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from poolhand.agents.agent import Agent
from poolhand.agents.session import Session
from poolhand.agents.tools.tool_call import settle
from poolhand.app_core import AppCore
from poolhand.app_options import AppOptions, check_names, checked_wire, chosen_store, store_line
from poolhand.config import load_app_store, masked
from poolhand.durable.client.decorators import (
    AgentMaker,
    ScheduleDecorators,
    TaskMaker,
)
from poolhand.durable.client.named_task import SubmitByName
from poolhand.durable.client.task import Task, TaskOptions
from poolhand.durable.client.ticket import StoredTicket, SyncTicket, has_loop
from poolhand.durable.client.transaction import Transaction, transaction
from poolhand.durable.connection.connection import store_proxy
from poolhand.durable.local_pool.durable_pool import DurablePool
from poolhand.durable.worker.run_worker import (
    check_can_block,
    print_start,
    run_until_signal,
)
from poolhand.durable.worker.worker import (
    DRAIN_TIMEOUT,
    Worker,
    WorkerReport,
    checked_pools,
    checked_settings,
)
from poolhand.errors import StoreError, UsageError
from poolhand.misuse import explain_misuse
from poolhand.observe.events import EVENTS
from poolhand.operate.actions import Operator
from poolhand.pool.config import PoolOptions
from poolhand.pool.pool import check_parts
from poolhand.pool.ticket import Ticket
from poolhand.rules.lifecycle import KEEP, check_keep
from poolhand.rules.plain import safe
from poolhand.rules.scaling.worker_count import (
    DEFAULT_FARM,
    DEFAULT_VERBOSITY,
    FarmSettings,
    Verbosity,
)
from poolhand.rules.validation import Seconds, instance_of, is_writable, shown
from poolhand.runtime import Runtime
from poolhand.setting_table import check_farm
from poolhand.stores.open import absolute, store_of

if TYPE_CHECKING:
    from poolhand.farm.supervisor import Supervisor

P = ParamSpec("P")
T = TypeVar("T")

READY_WITHIN = 4.5


@explain_misuse
class App(ScheduleDecorators, SubmitByName):
    """Stores jobs and runs them: `App("sqlite:///agents.db")`.

    Declare tasks and pools on it, submit from anywhere, and run the jobs in as many processes as
    you like, each with `async with app.worker(…)`. The store is opened when it is first needed, or
    by `async with app`; the exit of the last such block of the process closes it, unless a worker
    still runs here. Without a URL the setting `store` (POOLHAND_STORE, or `[tool.poolhand]` of
    pyproject.toml) names the store; without that it is the file poolhand.db in the current folder.
    """

    def __init__(self, url: str | None = None, **options: Unpack[AppOptions]) -> None:
        check_names(options)
        runtime, events = options.get("runtime"), options.get("events")
        check_parts(runtime, events, "App")
        self.url, self.store_origin = chosen_store(url)
        self.events = EVENTS if events is None else events
        runtime = runtime or Runtime()
        if url is None:
            store_of(self.url, runtime, self.store_origin)
        else:
            store_of(url, runtime)
        self.url = absolute(self.url)
        keep = options.get("keep", KEEP)
        check_keep(keep)
        wire = checked_wire(options.get("wire"))
        self.core = core = AppCore(self.url, runtime, self.events, keep, wire)
        self._registration, self._scheduler = core.registration, core.scheduler
        self._named = core.named

    def __repr__(self) -> str:
        return f"<App {safe(masked(self.url))}>"

    async def __aenter__(self) -> Self:
        await self.core.blocks.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.blocks.leave()

    def pool(self, name: str, **options: Unpack[PoolOptions]) -> None:
        """Declare a pool: its rules apply in every process that uses this store.

        Without `max_concurrent` it has no cap: as many of its jobs run as workers have slots.
        """
        self.core.declared.add(name, **options)
        self.core.slot.declare(self.core.declared.spec(name, self.core.pool_id(name)))

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
        terms = checked_settings(slots, pools, drain_timeout, capture)
        self.core.declared.warn_of_unknown(terms.pools, "worker")
        return self.core.make_worker(terms)

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
        terms = checked_settings(slots, pools, drain_timeout, capture)
        self.core.declared.warn_of_unknown(terms.pools, "run_worker")
        print_start(store_line(self.url, self.store_origin), terms.slots)
        return run_until_signal(
            self.core.make_worker(terms), terms.drain_timeout, self.core.slot, self.close
        )

    def warm_up(self, fn: Callable[[], Any]) -> Callable[[], Any]:
        """Run this function in every process that runs jobs, before its first job: `@app.warm_up`.

        That is each worker, of a farm or not, and each child process that runs jobs. The function,
        async or not, loads what jobs need, outside of their timeouts. If it raises, its process
        cannot run jobs: a worker does not start, a job that needed a child fails.
        """
        self.core.warm_ups.add(fn)
        return fn

    def farm(
        self,
        name: str,
        settings: FarmSettings = DEFAULT_FARM,
        *,
        pools: Iterable[str] | None = None,
        speech: Verbosity = DEFAULT_VERBOSITY,
    ) -> Supervisor:
        """Return a supervisor that runs jobs of these pools, or of all, in worker processes.

        Run it with `await farm.run()`. `name`, "module:attribute", is how a worker process finds
        this app.
        """
        from poolhand.farm.supervisor import Supervisor

        check_farm(settings)
        chosen = checked_pools(pools, "farm")
        for pool in chosen or ():
            self.core.declared.check_use(pool)
        self.core.declared.warn_of_unknown(chosen, "farm")
        if self.url.lower().startswith("memory:"):
            raise UsageError(
                f"farm: the store is {self.url!r}, which lives inside one process; keep jobs in a "
                "file (sqlite:///agents.db) or on a server (postgresql://user@host/database)"
            )
        return Supervisor(self.core, name, settings, chosen, speech)

    async def ready(self) -> bool:
        """Return whether a job could be accepted now; False if the store does not answer soon."""
        try:
            async with asyncio.timeout(READY_WITHIN):
                connection = await self.core.connection()
                await connection.thread.ask(connection.store.check)
        except (StoreError, TimeoutError):
            return False
        return True

    async def get(self, id: str) -> Ticket[Any] | None:
        """Return the ticket of a job by its id, None when no such job is stored.

        If this app does not have the task, the result is read as plain JSON.
        """
        instance_of(str, "the id of a job, a text").require("get: id", id)
        if not is_writable(id):
            return None
        return await self.core.ticket(id)

    def get_sync(self, id: str) -> SyncTicket[Any] | None:
        """Return the ticket of a job by its id, for code without an event loop."""
        if has_loop():
            raise UsageError("get_sync would block the loop that runs here; use await app.get(…)")
        found = self.core.ask_sync(lambda: self.get(id))
        return SyncTicket(found, self.core.ask_sync) if isinstance(found, StoredTicket) else None

    def operator(self) -> Operator:
        """Return the operator of this store: list and act on jobs, dead letters, pools."""
        return Operator(store_proxy(self.core), self.core.runtime, self.core.scheduler.request)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Write to your own tables in the store's database, together with jobs (`submit_in`).

        Leaving the block commits; an exception rolls everything back. Keep it short: meanwhile, a
        file accepts no other writes, a server no other writes to the pools of its jobs, and after
        5 s it is rolled back.
        """
        async with transaction(await self.core.connection()) as opened:
            yield opened

    async def settle_tool(self, key: str, *, happened: bool, result: Any = None) -> None:
        """Record whether a tool call happened, by the key that ToolOutcomeUnknown names.

        If it did, `result` is what it returned; if not, it is made when its job is retried.
        """
        connection = await self.core.connection()
        write = partial(self.core.wire.write, result)
        found = await connection.thread.ask(lambda: settle(connection.store, key, happened, write))
        if found is None:
            raise UsageError(f"settle_tool: there is no receipt of the key {shown(key)}")

    async def close(self) -> None:
        """Close the store; jobs stay in it. The next use opens it again.

        It closes even inside `async with app`, and stops the workers of this process, which hand
        their jobs back. A job of such a worker cannot call it.
        """
        self.core.check_not_in_job()
        await self.core.slot.close()


def _configured_store() -> str | None:
    """Return the configured store; None if unset, as machines cannot share the default file."""
    found = load_app_store()
    return None if found.is_default else found.text


DurablePool.make_store = staticmethod(store_of)
DurablePool.absolute = staticmethod(absolute)
DurablePool.configured_store = staticmethod(_configured_store)
DurablePool.masked = staticmethod(masked)
