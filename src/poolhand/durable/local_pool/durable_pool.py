"""A durable pool: a pool of this process whose jobs are kept in a store.

Registered tasks go on after a crash. A closure cannot be rebuilt from bytes: after a crash it is
loaded as a failed job with that reason.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import AbstractEventLoop
from asyncio import Task as LoopTask
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self, Unpack

from msgspec.structs import replace

from poolhand.contract import JobRequest, Store
from poolhand.durable.calls.task_registry import KNOWN, TaskCode, TaskRegistry
from poolhand.durable.client.job_request import TaskCall
from poolhand.durable.client.submit import StoreClient, SubmitContext
from poolhand.durable.client.task import Task
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.leases.reaper import CLOSURE_HOLDERS
from poolhand.durable.local_pool.mirror import DurableDrain, PoolMirror, note
from poolhand.durable.local_pool.views import DurablePoolViews, DurableSubmitter
from poolhand.durable.worker.executor import ClosureCall, Executor
from poolhand.durable.worker.worker import Worker, WorkerHooks, WorkerSettings
from poolhand.errors import Conflict, Draining, PoolhandError, StoreError, Unavailable, UsageError
from poolhand.misuse import check_no_option, explain_misuse
from poolhand.observe.events import EVENTS, Events
from poolhand.pool import registry
from poolhand.pool.config import PoolConfig, PoolOptions, configure, draining_text, spec_of
from poolhand.pool.engine.drain import DrainReport
from poolhand.pool.options import SubmitTerms, defaults, name_of, terms, where_to_run
from poolhand.pool.pool import DEAD_JOB, check_parts, default_runtime
from poolhand.pool.scope import SHARED
from poolhand.pool.ticket import Ticket
from poolhand.rules import audit
from poolhand.rules.job import Job, Status
from poolhand.rules.lifecycle import KEEP
from poolhand.rules.queue.idempotency import function_digest
from poolhand.rules.queue.stored_desk import pool_id
from poolhand.rules.scaling.pool_size import SLOTS, Autoscale
from poolhand.rules.validation import SECONDS, Seconds, to_seconds
from poolhand.runtime import Runtime


@explain_misuse
class DurablePool(DurableSubmitter, DurablePoolViews):
    """`Pool(name, scope=…, scope_id=…)`: its jobs outlive the process.

    Created again with the same names, here or elsewhere, it finds its jobs. `snapshot`, `stats`,
    `size` and `health` return the state of the store when it was last read (`as_of`); `await
    refresh()` reads it. `dead` returns the dead jobs that this process knows.
    """

    make_store: Callable[[str, Runtime], Store]
    absolute: Callable[[str], str]
    configured_store: Callable[[], str | None]
    masked: Callable[[str], str]

    def __init__(
        self,
        name: str | None = None,
        *,
        runtime: Runtime | None = None,
        events: Events | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        check_parts(runtime, events)
        self.runtime = runtime or default_runtime()
        self._config = config = self._configure(name, options)
        scope = config.scope
        self.id = pool_id(scope.kind, scope.id or "", self.name)
        own = replace(defaults(config), tenant=scope.tenant)
        self._terms = terms(own, config.stored_name, self.id)
        self._events = EVENTS if events is None else events
        self._created_at = self.runtime.wall()
        self.serial = registry.next_serial()
        self._client = StoreClient(self._make_connection, self.runtime, self._events)
        self._executor = Executor(TaskRegistry(KNOWN), is_home=True)
        self._worker: Worker | None = None
        self._loop: AbstractEventLoop | None = None
        self._process = os.getpid()
        self._home = ("", "", 0, "")
        self._closed = self._gone = False
        self._leaving: DurableDrain | None = None
        self._draining: LoopTask[DrainReport] | None = None
        self._mirror = PoolMirror(config, self._executor.closures, self.runtime, self._events)
        self._known, self._expected = self._mirror.known, self._mirror.expected
        registry.check_free(self.known_as)

    def _configure(self, name: str | None, options: PoolOptions) -> PoolConfig:
        """Check all options, and whether such a store is possible, before anything is created."""
        if options.get("scope") in SHARED and options.get("store") is None:
            options["store"] = self.configured_store()
        config = configure(name, options)
        url = config.scope.url(config.name)
        self.make_store(url, self.runtime)
        self._url, scope = self.absolute(url), config.scope.resolved()
        # Mask the URL: from here on it is shown to users.
        return replace(config, scope=replace(scope, store=scope.store and self.masked(self._url)))

    def __repr__(self) -> str:
        named = repr(self.name)
        if self._config.stored_name != self.name:
            named += f" as {self._config.stored_name!r}"
        return f"<Pool {named} {self.id} in {self.masked(self._url)}>"

    @property
    def known_as(self) -> str:
        # One process may serve many tenants.
        return self._config.stored_name if self._config.scope.is_shared else self.name

    @property
    def is_orphan(self) -> bool:
        if self._loop is None:
            return False
        return self._loop.is_closed() or self._process != os.getpid()

    @property
    def is_draining(self) -> bool:
        return self._draining is not None and not self._draining.done()

    async def start(self) -> Self:
        if self._draining is not None:
            raise UsageError(f"pool {self.name!r} was drained; create a new one")
        if self._worker is not None:
            return self
        # Register first: of two pools that start at once with one name, the loser has opened
        # nothing.
        registry.register(self)
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._gone = False
        try:
            self._worker = await self._open()
        except BaseException:
            registry.unregister(self)
            self.abandon()
            raise
        CLOSURE_HOLDERS.append(self.holds)
        return self

    async def _open(self) -> Worker:
        config, mirror = self._config, self._mirror
        config.scope.make_folder()
        self._home = self.runtime.identity()
        first = await self._client.connection()
        await first.thread.ask(lambda: mirror.check_ours(first, self.id))
        self._client.slot.declare(spec_of(config, self.id))
        connection = await self._client.connection()
        loop = asyncio.get_running_loop()
        await connection.thread.ask(lambda: mirror.load(connection, loop))
        name, slots = config.stored_name, self._known.slots(config)
        terms, configs = WorkerSettings(slots, (name,)), {name: config}
        worker = Worker(self._client, self._executor, configs, terms, WorkerHooks(mirror.hear))
        mirror.resized = worker.grow
        return await worker.start()

    def holds(self, id: str) -> bool:
        """Return whether this process holds a closure and can still run it."""
        return id in self._executor.closures and not self.is_orphan

    async def submit_call(
        self,
        options: SubmitTerms,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Ticket[Any]:
        self._open_worker()
        call, code = self._call(fn, args, kwargs, options)
        if code is None:
            check_no_option(fn, kwargs)
        request = self._client.requests.make(call, options)
        if code is None:
            self._executor.closures[request.job.id] = ClosureCall.of(partial(fn, *args, **kwargs))
            connection = self._client.slot.current
            if request.job.idempotency_key is not None and connection is not None:
                self._mirror.keep(connection.outcomes.seen(request.job, self.runtime.monotonic()))
        how = SubmitContext.under(options, code, self._config.backpressure)
        ticket = await self._add(request, how)
        if ticket.status is Status.REJECTED and ticket.id == request.job.id:
            # No worker will report it.
            self._mirror.hear(ticket.snapshot())
        return ticket

    async def _add(self, request: JobRequest, how: SubmitContext) -> Ticket[Any]:
        """Submit a request to the store, and expect the end of its job."""
        id = request.job.id
        self._expected.add(id)
        try:
            (ticket,) = await self._client.submitter.submit([request], how)
        except PoolhandError as error:
            if not isinstance(error, StoreError) or isinstance(error, Conflict):
                self._mirror.forget(id)
            # For other errors it is unknown whether the job was accepted, and its closure may be
            # needed.
            raise
        if ticket.id != id:
            # It joined a job of the same key, which has its own call.
            self._mirror.forget(id)
        else:
            self._known.submitted += 1
            self._expected.confirm(id)
        return ticket

    async def drain(self, timeout: Seconds | None = None) -> DrainReport:
        """Stop within `timeout` seconds: finish what can be, leave the rest in the store."""
        seconds = self._config.drain_timeout if timeout is None else to_seconds(timeout)
        SECONDS.require("drain: timeout", seconds)
        if self._draining is None or _has_failed(self._draining):
            self._begin_drain(seconds)
        elif timeout is not None and self._leaving is not None:
            self._leaving.hurry(seconds)
        assert self._draining is not None
        return await asyncio.shield(self._draining)

    def _begin_drain(self, seconds: float) -> None:
        if self._draining is None:
            self._open_worker()
        self._closed = True
        worker, connection, mirror = self._worker, self._client.slot.current, self._mirror
        assert worker is not None
        mirror.resized = None
        if connection is not None:
            self._leaving = DurableDrain(worker, connection, mirror, seconds)
        loop = asyncio.get_running_loop()
        self._draining = loop.create_task(self._stop(), name=f"{self.name}-drain")

    async def leave(self, timeout: Seconds | None = None) -> DrainReport:
        try:
            return await self.drain(timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            # Interrupted while draining: stop now, and hand everything that runs back.
            if self._leaving is not None:
                self._leaving.hurry(0.0)
            while self._draining is not None and not self._draining.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([self._draining])
            raise

    def abandon(self) -> None:
        """Release the resources of a pool whose loop was closed, as if its process had died."""
        if self._process == os.getpid():
            self._move_out()
            self._client.slot.abandon()

    async def resize(self, max_concurrent: int) -> None:
        SLOTS.require("resize: max_concurrent", max_concurrent)
        worker = self._open_worker()
        config = replace(self._config, max_concurrent=max_concurrent)
        await self._client.slot.redeclare(spec_of(config, self.id))
        self._config = config
        worker.grow(max_concurrent)
        connection = await self._client.connection()
        pool, slots = (self.id, config.stored_name), str(max_concurrent)
        with suppress(StoreError):
            await connection.thread.ask(lambda: note(connection, audit.RESIZE, pool, slots))
            await connection.thread.ask(lambda: self._mirror.look(connection))

    def set_autoscale(self, settings: Autoscale | None) -> None:
        if settings is not None:
            raise UsageError(f"pool {self.name!r} is durable and does not scale itself; resize it")

    def pause(self) -> None:
        self._set_paused(True)

    def resume(self) -> None:
        self._set_paused(False)

    async def rerun(self, job: Job | str) -> Ticket[object]:
        """Run a dead job again, as a new job with the same call and options."""
        DEAD_JOB.require("rerun: job", job)
        self._open_worker()
        id = job if isinstance(job, str) else job.id
        connection = await self._client.connection()
        found = await connection.thread.ask(lambda: self._mirror.find_dead(connection, id))
        if found is None:
            raise UsageError(
                f"job {id!r} is not a dead letter of pool {self.name!r}; see pool.dead()"
            )
        request = self._client.requests.again(*found, "user")
        closures = self._executor.closures
        if id in closures:
            closures[request.job.id] = closures[id]
        how = SubmitContext(self._executor.codes.find(request.job.name), self._config.backpressure)
        try:
            ticket = await self._add(request, how)
        except Conflict as error:
            raise UsageError(error.message) from error
        self._known.dead.pop(id, None)
        closures.pop(id, None)
        return ticket

    def _call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        terms: SubmitTerms,
    ) -> tuple[TaskCall, TaskCode | None]:
        if isinstance(fn, Task):
            code = fn.code
            # Another task may have the same name: make sure that the submitted one runs.
            self._executor.codes.add(code)
            return TaskCall(code.name, args, kwargs, code), code
        where_to_run(fn, terms.options.run_in, self._config.run_in)
        keyed = terms.options.idempotency_key is not None
        digest = function_digest(fn, args, kwargs) if keyed else None
        return TaskCall(name_of(fn), home=self._home, digest=digest), None

    def _make_connection(self) -> StoreConnection:
        self._check_here()
        store = self.make_store(self._url, self.runtime)
        return StoreConnection(store, self.runtime, self._events, KEEP)

    def _open_worker(self) -> Worker:
        worker = self._started()
        if self._closed:
            raise Draining(draining_text(self.name), policy="draining")
        self._check_here()
        return worker

    def _check_here(self) -> None:
        if self._gone:
            raise Unavailable(
                f"pool {self.name!r} has let go of its store, where its jobs are kept; make the "
                "pool again, with the same scope, to go on with them"
            )

    def _set_paused(self, paused: bool) -> None:
        """Pause or resume the pool soon; errors are reported as an event."""
        self._open_worker()
        connection = self._client.slot.current
        assert connection is not None
        self._mirror.set_paused(connection, paused)

    async def _stop(self) -> DrainReport:
        began = self.runtime.monotonic()
        try:
            stuck = await self._wind_up()
        finally:
            registry.unregister(self)
            self._move_out()
            with suppress(StoreError):
                await self._client.slot.close()
        return self._known.report(stuck, self.runtime.monotonic() - began)

    async def _wind_up(self) -> int:
        """Drain the worker; return how many slots run code that would not stop."""
        assert self._worker is not None
        if self._leaving is None:
            return (await self._worker.drain(0.0)).stuck
        return (await self._leaving.run((self.id, self._config.stored_name))).stuck

    def _move_out(self) -> None:
        """Drop all closures, and unregister as their home."""
        self._gone = True
        self._executor.closures.clear()
        if self.holds in CLOSURE_HOLDERS:
            CLOSURE_HOLDERS.remove(self.holds)


def _has_failed(task: LoopTask[DrainReport]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
