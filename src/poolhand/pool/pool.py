"""The in-process pool: a named, bounded, fair set of slots that many submitters share."""

from __future__ import annotations

import asyncio
import os
from asyncio import Task
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, Unpack

from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse, no_attribute
from poolhand.observe import events
from poolhand.observe.events import EVENTS, Events
from poolhand.pool import registry
from poolhand.pool.config import ALLOWED, PoolOptions, configure
from poolhand.pool.engine import views
from poolhand.pool.engine.drain import Drain, DrainReport
from poolhand.pool.engine.engine import Engine
from poolhand.pool.engine.views import (
    HealthCheck,
    PoolHealth,
    PoolSnapshot,
    PoolStats,
    health_of,
    not_started,
)
from poolhand.pool.monitor.checkup import Autoscaler, Checkup
from poolhand.pool.options import defaults, terms
from poolhand.pool.scope import DURABLE, SESSION
from poolhand.pool.submitter import Submitter, has_place
from poolhand.pool.ticket import Ticket
from poolhand.rules import audit
from poolhand.rules.audit import AuditLine
from poolhand.rules.job import Job, Status
from poolhand.rules.scaling.pool_size import SLOTS, Autoscale
from poolhand.rules.validation import (
    SECONDS,
    WHOLE,
    OptionRule,
    Seconds,
    instance_of,
    raise_faults,
    to_seconds,
)
from poolhand.runtime import Runtime, check_script

_RUNTIME: list[Runtime] = []

DEAD_JOB = OptionRule(lambda job: isinstance(job, Job | str), "a job of pool.dead(), or its id")
_END = "write `async with` around its use, or await pool.drain(seconds)"
# Names that users of other pools try.
OTHER_VERBS = {"close": _END, "shutdown": _END, "stop": _END, "join": _END}
_AFTER = OptionRule(WHOLE.fits, "the number of a record, or 0")
_KIND = instance_of(str, "the beginning of a kind, such as 'pool_drop'")


@explain_misuse
class Pool(Submitter):
    """A named set of `max_concurrent` slots, with a queue and a policy for when it is full.

    Use it as `async with Pool("reviews", max_concurrent=5) as pool`, or `await pool.start()` and
    `await pool.drain(…)`. All options are listed under PoolOptions and in the documentation.
    """

    _blocks = 0  # the open `async with` blocks

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_VERBS.get(name))

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Create a pool of the class that its scope needs."""
        durable_one = cls is Pool and options.get("scope", SESSION) in DURABLE
        made: Self = object.__new__(registry.durable_kind() if durable_one else cls)
        return made

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
        self.id = f"pool-{self.runtime.salt()}"
        self._config = configure(self.id if name is None else name, options)
        self._terms = terms(defaults(self._config), self._config.name, self.id)
        self._events = EVENTS if events is None else events
        self._created_at = self.runtime.wall()
        self.serial = registry.next_serial()
        self._live: Engine | None = None
        self._drain: Drain | None = None
        self._drained: Task[DrainReport] | None = None
        self._checkup: Checkup | None = None
        self._scaler: Autoscaler | None = None
        registry.check_free(self.known_as)

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} {self.id}>"

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def known_as(self) -> str:
        """The name that identifies this pool among the live pools of the process."""
        return self.name

    @property
    def is_orphan(self) -> bool:
        """Whether this pool can never be drained: its loop is closed or in another process."""
        if self._live is None:
            return False
        return self._live.loop.is_closed() or self._live.process != os.getpid()

    @property
    def is_draining(self) -> bool:
        """Whether a drain has begun and is not over."""
        return self._drained is not None and not self._drained.done()

    async def __aenter__(self) -> Self:
        # Count first: the exit of another block must not drain what is started here.
        self._blocks += 1
        try:
            return await self.start()
        except BaseException:
            self._blocks -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        """Drain the pool if this is the last `async with` block of it."""
        self._blocks -= 1
        if self._blocks <= 0:
            await self.leave()

    async def start(self) -> Self:
        """Open the pool on the running event loop; a second call has no effect."""
        loop = asyncio.get_running_loop()
        if self._drain is not None:
            raise UsageError(f"pool {self.name!r} was drained; create a new one")
        if self._live is None:
            check_script(f"pool {self.name!r} is started")
            registry.check_free(self.known_as)
            engine = Engine(self._config, self.id, loop, self.runtime, self._events)
            registry.register(self)
            self._live = engine
            engine.audit.act(audit.CREATE, "")
            self._checkup = Checkup(engine)
            self.set_autoscale(self._config.autoscale)
            self._announce()
        elif self._live.loop is not loop:
            raise UsageError(f"pool {self.name!r} already runs on another event loop")
        return self

    async def drain(self, timeout: Seconds | None = None) -> DrainReport:
        """Stop the pool within `timeout` seconds (`drain_timeout` by default) and report.

        A further call returns the same report; a shorter timeout shortens the running drain.
        """
        seconds = self._config.drain_timeout if timeout is None else to_seconds(timeout)
        SECONDS.require("drain: timeout", seconds)
        engine = self._here()
        if self._drain is None or self._drained is None:
            self._drain_within(engine, seconds)
        elif timeout is not None:
            self._drain.hurry(seconds)
        assert self._drained is not None
        return await asyncio.shield(self._drained)

    def _drain_within(self, engine: Engine, seconds: float) -> None:
        self.set_autoscale(None)
        engine.audit.act(audit.DRAIN, "user")
        self._drain = Drain(engine, seconds)
        self._drain.begin()
        self._drained = engine.loop.create_task(self._stop(), name=f"{self.name}-drain")

    async def leave(self, timeout: Seconds | None = None) -> DrainReport:
        """Drain as the end of `async with` does; a cancellation stops the pool now, then waits."""
        try:
            return await self.drain(timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            # Cancelled during the drain: stop now, but wait until every job and caller is settled.
            if self._drain is not None and self._drained is not None:
                self._drain.hurry(0)
                while not self._drained.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([self._drained])
            raise

    def abandon(self) -> None:
        """Release the threads and processes of a pool whose loop was closed without a drain."""
        if self._live is not None and self._live.process == os.getpid():
            self._live.abandon()

    def forget(self) -> None:
        """Drop this pool and all its jobs at once; its name is free when this returns."""
        registry.unregister(self)
        engine = self._live
        if engine is not None and engine.is_here:
            if self._drain is None:
                self._drain_within(engine, 0.0)
            else:
                self._drain.hurry(0.0)
        else:
            self.abandon()

    async def resize(self, max_concurrent: int) -> None:
        """Change the number of slots; running jobs continue, surplus slots retire once idle."""
        SLOTS.require("resize: max_concurrent", max_concurrent)
        engine = self._at_work()
        if self._scaler is not None and not self._scaler.allows(max_concurrent):
            scale = self._scaler.settings
            raise UsageError(
                f"resize: max_concurrent={max_concurrent} is not allowed; pool {self.name!r} "
                f"scales itself between {scale.min} and {scale.max}: stay within, or stop that by "
                "set_autoscale(None)"
            )
        engine.resize(max_concurrent)

    def set_autoscale(self, settings: Autoscale | None) -> None:
        """Let the pool choose its size within these settings from now on; None turns that off."""
        ALLOWED["autoscale"].require("set_autoscale: settings", settings)
        engine = self._here()
        if self._scaler is not None:
            self._scaler.stop()
            self._scaler = None
        if settings is not None and not engine.intake.closed:
            self._scaler = Autoscaler(engine, settings)

    def pause(self) -> None:
        """Stop starting jobs; running jobs continue, new ones wait."""
        self._at_work().pause()

    def resume(self) -> None:
        """Start jobs again."""
        self._at_work().resume()

    def snapshot(self) -> PoolSnapshot:
        """Return the state of the pool at this instant; call it on the thread of the pool's loop.

        `stats` and `size` can be called from any thread.
        """
        engine = self._engine()
        engine.check_thread()
        return views.snapshot(engine, self.id, self._created_at)

    async def refresh(self) -> PoolSnapshot:
        """Fetch and return the latest snapshot: from the store if the pool is durable.

        In memory this equals `snapshot`.
        """
        return self.snapshot()

    def stats(self) -> PoolStats:
        """Return the figures worth plotting; also emitted as an event every 10 s."""
        return views.stats(self._engine())

    def health(self) -> PoolHealth:
        """Return the health of the pool: which workers are busy, idle or show no activity.

        Any thread can call it, so a blocked loop can be distinguished from a busy one. A pool that
        is not started has no workers.
        """
        return not_started(self._config) if self._live is None else health_of(self._live)

    def health_check(self) -> HealthCheck:
        """Return the health as a dict for any JSON encoder, awaited or not.

        A web application can use `return await pool.health_check()`.
        """
        return HealthCheck(self.health().to_dict())

    def size(self) -> int:
        """Return how many jobs are running or waiting."""
        engine = self._engine()
        return engine.active + engine.desk.waiting

    def dead(self) -> list[Job]:
        """Return the latest jobs that failed permanently, oldest first."""
        return self._engine().dead.jobs()

    def audit(self, after: int = 0, kind: str = "") -> list[AuditLine]:
        """Return audit records of the pool and its jobs, oldest first.

        Only records numbered above `after` whose kind starts with `kind`, among the last 10,000.
        Call it on the thread of the pool's loop.
        """
        _AFTER.require("audit: after", after)
        _KIND.require("audit: kind", kind)
        engine = self._engine()
        engine.check_thread()
        lines = engine.read_audit()
        return [line for line in lines if line.number > after and line.kind.startswith(kind)]

    async def rerun(self, job: Job | str) -> Ticket[object]:
        """Run a dead job again, as a new job with the same call, options and context.

        If the pool has no room, PoolFull is raised and the dead letter stays.
        """
        DEAD_JOB.require("rerun: job", job)
        engine = self._here()
        with engine.dead.rerunning(job if isinstance(job, str) else job.id) as dead:
            work = await has_place(engine, engine.intake.again(dead))
            if work.snapshot().status is Status.REJECTED:
                raise engine.intake.full()
            now, by = engine.clock.now(), work.snapshot().submitted_by
            engine.audit.act_on(audit.RERUN, dead.snapshot(), now, by, work.id)
        return work

    def _engine(self) -> Engine:
        if self._live is None:
            raise UsageError(
                f"pool {self.name!r} is not started; use `async with` or `await pool.start()`"
            )
        return self._live

    def _here(self) -> Engine:
        engine = self._engine()
        engine.check_here()
        return engine

    def _at_work(self) -> Engine:
        engine = self._here()
        if engine.stopped:
            raise UsageError(f"pool {self.name!r} was drained; create a new one")
        return engine

    async def _stop(self) -> DrainReport:
        assert self._drain is not None
        try:
            return await self._drain.run()
        finally:
            registry.unregister(self)
            if self._checkup is not None:
                self._checkup.stop()

    def _announce(self) -> None:
        if self._events.live:
            config = self._config
            rules = config.max_concurrent, str(config.queue), str(config.backpressure)
            self._events.emit(events.PoolStarted(config.name, self.id, *rules))


def check_parts(runtime: object, events: object, what: str = "Pool") -> None:
    table = {kind: instance_of(kind, f"{kind.__name__}()").or_none() for kind in (Runtime, Events)}
    raise_faults(
        what, table[Runtime].faults("runtime", runtime) + table[Events].faults("events", events)
    )


def default_runtime() -> Runtime:
    """Return the runtime that pools share unless they are given another."""
    if not _RUNTIME:
        _RUNTIME.append(Runtime())
    return _RUNTIME[0]
