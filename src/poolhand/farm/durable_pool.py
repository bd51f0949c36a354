"""A durable pool: a pool of this process whose jobs are kept in a file.

Registered tasks go on after a crash. A closure cannot be made again from a file: it is reloaded as
a failed job that says so.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import AbstractEventLoop
from asyncio import Task as LoopTask
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

import msgspec
from msgspec.structs import replace

from poolhand.contract import Filter, Line, Store
from poolhand.errors import Conflict, Draining, StoreError, UsageError
from poolhand.execute.code import KNOWN
from poolhand.execute.executor import Closure, Executor
from poolhand.farm.durable_submitter import DurableSubmitter
from poolhand.farm.known import OVER, Known
from poolhand.farm.maintenance import KEEP_RESULTS
from poolhand.farm.opening import Opening
from poolhand.farm.orders import Call, Orders
from poolhand.farm.shift import Shift
from poolhand.farm.station import Station
from poolhand.farm.submit import How, Submissions
from poolhand.farm.task import Task
from poolhand.observe.events import EVENTS, Events
from poolhand.pool import registry
from poolhand.pool.config import CHECKS, PoolOptions, configure, spec_of
from poolhand.pool.drain import DrainReport
from poolhand.pool.health import PoolHealth
from poolhand.pool.options import Terms, defaults, terms
from poolhand.pool.pool import Pool, check_parts, default_runtime
from poolhand.pool.snapshot import PoolSnapshot, PoolStats
from poolhand.pool.ticket import Ticket
from poolhand.pool.work import name_of, where_to_run
from poolhand.rules import audit
from poolhand.rules.checks import is_seconds
from poolhand.rules.job import Job, Status
from poolhand.rules.sizing import Autoscale
from poolhand.rules.spec import pool_id
from poolhand.runtime import Runtime

LOOK_EVERY = 0.5


class DurablePool(DurableSubmitter, Pool):
    """`Pool(name, scope="pipeline", scope_id=…)`: what it is given outlives the process.

    Made again with the same names it finds what it had. What `snapshot`, `stats` and `dead` tell is
    what this process knows: they ask nobody.
    """

    make_store: Callable[[str, Runtime], Store]

    def __init__(
        self,
        name: str | None = None,
        *,
        runtime: Runtime | None = None,
        events: Events | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        check_parts(runtime, events)
        if name is None or options.get("autoscale") is not None:
            raise UsageError("a durable pool needs a name to be found again by, and no autoscale")
        self.runtime = runtime or default_runtime()
        self._config = configure(name, options)
        scope = self._config.scope
        self.id = pool_id(scope.kind, scope.id or "", name)
        self._terms = terms(defaults(self._config), name, self.id)
        self._events = EVENTS if events is None else events
        self._created_at = self.runtime.wall()
        self.serial = registry.next_serial()
        self._url = scope.url(name)
        self.make_store(self._url, self.runtime)
        self._opening = Opening(self._make_station)
        self._orders = Orders(self.runtime)
        self._executor = Executor(KNOWN)
        self._submissions = Submissions(self, self._events)
        self._shift: Shift | None = None
        self._loop: AbstractEventLoop | None = None
        self._process = os.getpid()
        self._closed = False
        self._draining: LoopTask[DrainReport] | None = None
        self._deadline = 0.0
        self._known = Known(name)
        registry.check_free(name)

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} {self.id} in {self._url}>"

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
            raise UsageError(f"pool {self.name!r} was drained; make a new one")
        if self._shift is not None:
            return self
        registry.check_free(self.name)
        self._make_folder()
        self._opening.declare(spec_of(self._config, self.id))
        station = await self._opening.station()
        await station.keeper.ask(lambda: self._load(station))
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        registry.register(self)
        configs = {self.name: self._config}
        slots = self._config.max_concurrent
        self._shift = Shift(self, self._executor, slots, (self.name,), configs, heard=self._hear)
        await self._shift.start()
        return self

    async def station(self) -> Station:
        return await self._opening.station()

    async def hand_in(
        self, options: Terms, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ticket[Any]:
        self._on_shift()
        call, code = self._call(fn, args, kwargs, options)
        order = self._orders.make(call, options)
        if code is None:
            self._executor.closures[order.job.id] = Closure.of(partial(fn, *args, **kwargs))
        how = How(code, self._config.backpressure, options.options.cancel_with_caller)
        try:
            (ticket,) = await self._submissions.submit([order], how)
        except BaseException:
            self._executor.closures.pop(order.job.id, None)
            raise
        if ticket.id != order.job.id:
            # It joined a job of the same key, which brings its own call.
            self._executor.closures.pop(order.job.id, None)
        else:
            self._known.submitted += 1
            if ticket.status is Status.REJECTED:
                # No worker will tell of it.
                self._hear(ticket.snapshot())
        return ticket

    async def drain(self, timeout: float | None = None) -> DrainReport:
        """Stop within `timeout` seconds: finish what can be finished, keep the rest in the file."""
        seconds = self._config.drain_timeout if timeout is None else timeout
        if not is_seconds(seconds):
            raise UsageError(f"drain(timeout={timeout!r}) is not allowed; give seconds, 0 or more")
        loop = asyncio.get_running_loop()
        deadline = self.runtime.monotonic() + seconds
        if self._draining is None:
            self._on_shift()
            self._closed, self._deadline = True, deadline
            self._draining = loop.create_task(self._stop(), name=f"{self.name}-drain")
        elif timeout is not None:
            self._deadline = min(self._deadline, deadline)
        return await asyncio.shield(self._draining)

    async def leave(self, timeout: float | None = None) -> DrainReport:
        try:
            return await self.drain(timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            # Told twice: stop now, and give everything that runs back.
            self._deadline = 0.0
            while self._draining is not None and not self._draining.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([self._draining])
            raise

    def abandon(self) -> None:
        """Let go of what a pool holds whose loop was closed, as if its process had died."""
        if self._process == os.getpid():
            self._executor.closures.clear()
            self._opening.abandon()

    async def resize(self, max_concurrent: int) -> None:
        check, allowed = CHECKS["max_concurrent"]
        if not check(max_concurrent):
            raise UsageError(f"resize({max_concurrent!r}) is not allowed; it must be {allowed}")
        shift = self._on_shift()
        self._config = replace(self._config, max_concurrent=max_concurrent)
        self._opening.declare(spec_of(self._config, self.id))
        await self._opening.station()
        shift.grow(max_concurrent)

    def set_autoscale(self, settings: Autoscale | None) -> None:
        if settings is not None:
            raise UsageError(f"pool {self.name!r} is durable and does not scale itself; resize it")

    def pause(self) -> None:
        self._act(lambda store: store.pause(self.name, True, "user"))
        self._known.row = replace(self._known.row, paused=True)

    def resume(self) -> None:
        self._act(lambda store: store.pause(self.name, False, "user"))
        self._known.row = replace(self._known.row, paused=False)

    def stats(self) -> PoolStats:
        return self._known.stats(self._running())

    def size(self) -> int:
        return len(self._running()) + self._known.waiting

    def health(self) -> PoolHealth:
        slots = 0 if self._shift is None else self._config.max_concurrent
        return self._known.health(self._running(), slots, self._config)

    def snapshot(self) -> PoolSnapshot:
        stuck = 0 if self._shift is None else self._shift.stuck
        named = (self.id, self._created_at, self._closed)
        return self._known.snapshot(self._running(), stuck, self._config, named)

    def dead(self) -> list[Job]:
        """Return the jobs that failed for good, as far as this process has met them."""
        return list(self._known.dead.values())

    async def rerun(self, job: Job | str) -> Ticket[object]:
        """Run a dead job again, as a new job with the same call and options."""
        if not isinstance(job, Job | str):
            raise UsageError(f"rerun({job!r}) is not allowed; give a job of pool.dead(), or its id")
        self._on_shift()
        id = job if isinstance(job, str) else job.id
        station = await self.station()
        (stored,), brief = await station.keeper.ask(lambda: _recall(station.store, id))
        if stored is None or brief is None or not stored.dead:
            raise UsageError(f"job {id!r} is no dead job of pool {self.name!r}; see pool.dead()")
        order = self._orders.again(stored.job, brief, "user")
        closures = self._executor.closures
        if id in closures:
            closures[order.job.id] = closures[id]
        how = How(KNOWN.find(stored.job.name), self._config.backpressure)
        try:
            (ticket,) = await self._submissions.submit([order], how)
        except BaseException as error:
            closures.pop(order.job.id, None)
            if isinstance(error, Conflict):
                raise UsageError(str(error)) from error
            raise
        self._known.submitted += 1
        self._known.dead.pop(id, None)
        closures.pop(id, None)
        return ticket

    def _call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms
    ) -> tuple[Call, Any]:
        if isinstance(fn, Task):
            code = fn.code
            return Call(code.name, code.pack(args, kwargs), code), code
        where_to_run(fn, terms.options.run_in, self._config.run_in)
        return Call(name_of(fn), closure=True), None

    def _make_station(self) -> Station:
        store = self.make_store(self._url, self.runtime)
        return Station(store, self.runtime, self._events, KEEP_RESULTS)

    def _make_folder(self) -> None:
        scope = self._config.scope
        if scope.store is None:
            Path(self._url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)

    async def _load(self, station: Station) -> None:
        """Learn what an earlier run left; on the keeper's loop."""
        page = await station.store.find(
            Filter(self.name, dead=True), limit=self._config.history or 1
        )
        self._known.dead = {one.job.id: one.job for one in reversed(page.jobs)}
        self._known.ended.update(await station.store.count(Filter(self.name, statuses=OVER)))
        await self._look(station)
        station.keeper.start("facts", lambda: self._look_on(station))

    async def _look_on(self, station: Station) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self._look(station)

    async def _look(self, station: Station) -> None:
        rows = await station.store.pools()
        known = self._known
        known.row = next((row for row in rows if row.spec.name == self.name), known.row)

    def _running(self) -> list[Job]:
        return [] if self._shift is None else self._shift.jobs()

    def _hear(self, job: Job) -> None:
        """Note that a job of this process is over, and let go of closures nobody can need."""
        for gone in self._known.hear(job, self._config.history):
            self._executor.closures.pop(gone, None)

    def _on_shift(self) -> Shift:
        if self._shift is None:
            raise UsageError(
                f"pool {self.name!r} is not started; use `async with` or `await pool.start()`"
            )
        if self._closed:
            text = f"pool {self.name!r} is draining and takes no new work"
            raise Draining(text, policy="draining")
        return self._shift

    def _act(self, act: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
        """Have something done to the pool soon; what goes wrong is told as an event."""
        self._on_shift()
        station = self._opening.current
        assert station is not None
        station.keeper.do("pool", lambda: act(station.store))

    async def _stop(self) -> DrainReport:
        assert self._shift is not None
        began = self.runtime.monotonic()
        station = await self._opening.station()
        try:
            # A store that is away is no reason not to stop: what is in it stays there.
            with suppress(StoreError):
                await station.keeper.ask(lambda: self._note_drain(station.store))
                await self._finish(station)
            left = max(0.0, self._deadline - self.runtime.monotonic())
            report = await self._shift.drain(left)
        finally:
            registry.unregister(self)
            await self._opening.close()
        completed, failed, cancelled, rejected, expired = (self._known.ended[one] for one in OVER)
        return DrainReport(
            self._known.submitted,
            completed,
            failed,
            cancelled,
            rejected,
            expired,
            report.stuck,
            self.runtime.monotonic() - began,
        )

    async def _note_drain(self, store: Store) -> None:
        record = audit.acted(audit.DRAIN, (self.id, self.name), "user", "", self.runtime.wall())
        await store.append([Line(audit.STREAM, audit.DRAIN, msgspec.json.encode(record))])

    async def _finish(self, station: Station) -> None:
        """Wait until nothing is left that could run now, or the deadline, which may move."""
        while self.runtime.monotonic() < self._deadline:
            await station.keeper.ask(lambda: self._look(station))
            row = self._known.row
            if not (row.queued or row.blocked or row.running):
                return
            left = self._deadline - self.runtime.monotonic()
            await asyncio.sleep(min(LOOK_EVERY / 10, max(0.0, left)))


async def _recall(store: Store, id: str) -> tuple[list[Any], bytes | None]:
    return await store.get([id]), await store.brief(id)
