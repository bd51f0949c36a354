"""The agent pool, which creates, runs and closes an agent for each job; the lifespan of pools."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Self

from poolhand.errors import PoolhandError, UsageError
from poolhand.misuse import explain_misuse
from poolhand.observe.events import Events
from poolhand.pool.config import ALLOWED as POOL_ALLOWED
from poolhand.pool.config import HISTORY, PoolOptions
from poolhand.pool.engine.drain import DrainReport
from poolhand.pool.engine.views import HealthCheck, PoolSnapshot
from poolhand.pool.engine.work import Work
from poolhand.pool.faces.agent_run import AgentRun, is_factory, steps
from poolhand.pool.faces.fanout import label_of
from poolhand.pool.pool import Pool
from poolhand.pool.registry import get_pool
from poolhand.pool.slots.fault import ending_of
from poolhand.pool.submitter import UNSET, Submitter
from poolhand.pool.ticket import Ticket, wait
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import bounded, fail_fast
from poolhand.rules.scaling.pool_size import SLOTS, Autoscale, autoscale_faults
from poolhand.rules.validation import (
    FLAG,
    SECONDS,
    OptionRule,
    OptionTable,
    Seconds,
    instance_of,
    is_text,
    no_option,
    raise_faults,
    table_faults,
    to_seconds,
)
from poolhand.runtime import Runtime

ENDED_KEPT = 1_000
MIN_WORKERS = 2
MAX_WORKERS = 50
DRAIN_SECONDS = 60.0

ALLOWED: OptionTable = {
    "num_workers": SLOTS,
    "max_queue_size": HISTORY,
    "agent_factory": OptionRule(is_factory, "a function or a class that returns an agent"),
    "session_id": OptionRule(is_text, "a non-blank text"),
    "block": FLAG,
    "job_id": instance_of(str, "a text that submit_nowait returned"),
}
# Options of a pool that have another name here.
OTHERWISE = {
    "max_concurrent": "num_workers=…",
    "backpressure": "max_queue_size=…",
    "autoscale": "`await pool.auto_scale(…)`",
    "run_in": "a plain or an async `run` of the agent, which decides where it runs",
}
KNOWN = (
    "num_workers",
    "max_queue_size",
    "agent_factory",
    "name",
    *(one for one in PoolOptions.__annotations__ if one not in OTHERWISE),
)
# The settings of an Autoscale, by their names in `auto_scale`.
SCALE_NAMES = {
    "min": "min_workers",
    "max": "max_workers",
    "up_at": "scale_up_threshold",
    "down_at": "scale_down_threshold",
    "interval": "check_interval",
}


@explain_misuse
class AgentPool:
    """A pool of `num_workers` slots that creates an agent for each job, runs it and closes it.

    `agent_factory()` creates an agent, `agent.run(session_id=…, payload=…)` is the job, `aclose()`
    or `close()`, if it exists, ends it whatever happened. Each may be async or plain, and plain
    code does not block the loop: an agent whose `run` is plain is created, run and closed in one
    thread. An agent whose `run` is async lives on the loop, but a factory that is a plain function
    is called in a thread; write a factory that needs the running loop as `async def`.

    Turns of one session run one at a time in submit order. Up to `max_queue_size` jobs wait; with 0
    none waits, and a job that finds no free slot is refused with NoFreeSlot. Further options are
    those of a Pool: `retry`, `soft_timeout`, `cancel_grace` and so on. With a `scope` its jobs are
    stored; an agent lives in this process, and a job that was not over when the process ended has
    failed.
    """

    def __init__(
        self,
        num_workers: int = 10,
        max_queue_size: int = 100,
        agent_factory: Callable[[], Any] | None = None,
        name: str | None = None,
        timeout: Seconds | None = None,
        *,
        runtime: Runtime | None = None,
        events: Events | None = None,
        **options: Any,
    ) -> None:
        given = {
            "num_workers": num_workers,
            "max_queue_size": max_queue_size,
            "agent_factory": agent_factory,
        }
        faults = table_faults(ALLOWED, given) + _take_unknown(options)
        options = {"drain_timeout": DRAIN_SECONDS, **options, "timeout": timeout}
        if not faults:
            options["max_concurrent"] = num_workers
            options["backpressure"] = bounded(max_queue_size) if max_queue_size else fail_fast()
        self._runtime = runtime
        self._events = events
        self._options = options
        try:
            # Also after an earlier error, so that all errors are reported at once.
            self._pool = self._make_pool(name)
        except UsageError as error:
            faults.append(error.message)
        if faults or agent_factory is None:
            raise UsageError("AgentPool: " + "; ".join(faults))
        self.num_workers = num_workers
        self._job = self._make_job(agent_factory)
        self._started = False
        self._live: dict[str, Ticket[Any]] = {}
        self._over: OrderedDict[str, Ticket[Any]] = OrderedDict()
        self._seeing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<AgentPool {self.name!r}>"

    @property
    def name(self) -> str:
        return self._pool.name

    @property
    def pool(self) -> Pool:
        """The underlying pool; a new start creates another one."""
        return self._pool

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self._pool.leave()

    async def start(self) -> Self:
        """Open the pool; a second call has no effect, and after a drain it starts afresh."""
        if self._started and get_pool(self._pool.id) is None:
            self._pool = self._make_pool(self.name)
            for job_id in list(self._live):
                self._retire(job_id)
        if self._pool.is_draining:
            raise UsageError(f"{self!r} is draining; start it again when that is over")
        await self._pool.start()
        self._started = True
        return self

    async def submit(self, session_id: str, payload: Any, *, block: bool = True) -> dict[str, Any]:
        """Run an agent and wait: status "success" with its `result`, or "error" with its `error`.

        On a full pool it waits for a place, or with `block=False` raises PoolFull. If the caller is
        cancelled, the job continues.
        """
        view = self._view(session_id, block)
        if block:
            ticket = await view.submit(self._job, session_id, payload)
        else:
            ticket = await view.submit_or_refuse(self._job, session_id, payload)
        self._keep(ticket)
        job = await wait(ticket)
        status = "success" if job.status is Status.COMPLETED else "error"
        return {"status": status, **_ending(job)}

    async def submit_nowait(self, session_id: str, payload: Any) -> str:
        """Submit a job and return its id, for `get`; a full pool raises PoolFull."""
        view = self._view(session_id)
        ticket = await view.submit_or_refuse(self._job, session_id, payload)
        self._keep(ticket)
        return ticket.id

    def get(self, job_id: str) -> dict[str, Any] | None:
        """Return the status of a job, and its `result` or `error` when it is over.

        It knows all jobs that wait or run and the latest 1,000 that are over; None for others.
        """
        ticket = self._find(job_id)
        if ticket is None:
            return None
        job = ticket.snapshot()
        found = {"job_id": job.id, "status": job.status.value}
        return {**found, **_ending(job)} if job.status.terminal else found

    async def cancel(self, job_id: str) -> bool:
        """Cancel a job and wait until it is over; return whether it ended cancelled."""
        ticket = self._find(job_id)
        return ticket is not None and await ticket.cancel()

    def health_check(self) -> HealthCheck:
        """Return the health of the pool as a dict for any JSON encoder, awaited or not."""
        return self._pool.health_check()

    def snapshot(self) -> PoolSnapshot:
        """Return the state of the pool at this instant."""
        return self._pool.snapshot()

    async def auto_scale(
        self,
        min_workers: int = MIN_WORKERS,
        max_workers: int = MAX_WORKERS,
        scale_up_threshold: float = 0.8,
        scale_down_threshold: float = 0.3,
        check_interval: Seconds = 10.0,
    ) -> None:
        """Let the started pool choose its size from now on; returns at once."""
        given = {
            "min": min_workers,
            "max": max_workers,
            "up_at": scale_up_threshold,
            "down_at": scale_down_threshold,
            "interval": to_seconds(check_interval),
        }
        raise_faults("auto_scale", autoscale_faults(given, SCALE_NAMES))
        self._pool.set_autoscale(Autoscale(**given))

    async def drain(self, timeout: Seconds = DRAIN_SECONDS) -> DrainReport:
        """Stop within `timeout` seconds: refuse new jobs, finish existing ones, and report."""
        return await self._pool.drain(timeout)

    def _make_pool(self, name: str | None) -> Pool:
        return Pool(name, runtime=self._runtime, events=self._events, **self._options)

    def _make_job(self, factory: Callable[[], Any]) -> Callable[[str, Any], Awaitable[Any]]:
        async def job(session_id: str, payload: Any) -> Any:
            return await AgentRun(steps(factory, session_id, payload), self._pool.runtime).run()

        # The name of the jobs in logs, traces and snapshots.
        job.__qualname__ = label_of(factory)
        return job

    def _view(self, session_id: str, block: bool = True) -> Submitter:
        faults = table_faults(ALLOWED, {"session_id": session_id, "block": block})
        raise_faults(f"AgentPool {self.name!r}, submit", faults)
        return self._pool.with_options(session=session_id)

    def _find(self, job_id: str) -> Ticket[Any] | None:
        ALLOWED["job_id"].require("job_id", job_id)
        return self._live.get(job_id) or self._over.get(job_id)

    def _keep(self, ticket: Ticket[Any]) -> None:
        """Keep a job findable by its id until `ENDED_KEPT` others have ended after it."""
        job_id = ticket.id
        self._live[job_id] = ticket
        if ticket.status.terminal:
            self._retire(job_id)
        elif isinstance(ticket, Work):
            ticket.add_waiter().add_done_callback(lambda _: self._retire(job_id))
        else:
            seen = asyncio.create_task(self._see_over(ticket), name=f"{self.name}-{job_id}")
            self._seeing.add(seen)
            seen.add_done_callback(self._seeing.discard)

    async def _see_over(self, ticket: Ticket[Any]) -> None:
        """Wait for the end of a stored job."""
        # If the store is closed first, the state known by then is final.
        with suppress(PoolhandError):
            await wait(ticket)
        self._retire(ticket.id)

    def _retire(self, job_id: str) -> None:
        ticket = self._live.pop(job_id, None)
        if ticket is not None:
            self._over[job_id] = ticket
            if len(self._over) > ENDED_KEPT:
                self._over.popitem(last=False)


def _ending(job: Job) -> dict[str, Any]:
    """Return how a job ended: with its result, or with an error as text."""
    error = ending_of(job)
    return {"result": job.result} if error is None else {"error": error}


def _take_unknown(options: dict[str, Any]) -> list[str]:
    """Remove unknown options, and return the errors about them."""
    unknown = [word for word in options if word not in PoolOptions.__annotations__]
    for word in unknown:
        del options[word]
    return [
        f"{word!r} is not an option of an agent pool; use {other}"
        for word, other in OTHERWISE.items()
        if word in options
    ] + [no_option(word, KNOWN, " of an agent pool") for word in unknown]


Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]

LIFESPAN_ALLOWED: OptionTable = {
    "pool": OptionRule(lambda value: isinstance(value, Pool | AgentPool), "a Pool or an AgentPool"),
    "drain_timeout": SECONDS,
    "autoscale": POOL_ALLOWED["autoscale"],
}


@explain_misuse
def pool_lifespan(
    pool: Pool | AgentPool, *, drain_timeout: Seconds = 30.0, autoscale: Autoscale | None = UNSET
) -> Lifespan:
    """Return a lifespan for FastAPI or Starlette that starts the pool and drains it at the end.

    An AgentPool scales itself as by `auto_scale()`, with bounds that include its `num_workers`; a
    Pool scales as its own option says. `autoscale` overrides these settings, None keeps the size.
    An AgentPool can be started again by the same lifespan.
    """
    within = to_seconds(drain_timeout)
    given = {"pool": pool, "drain_timeout": within}
    if autoscale is not UNSET:
        given["autoscale"] = autoscale
    raise_faults("pool_lifespan", table_faults(LIFESPAN_ALLOWED, given))

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        await pool.start()
        try:
            if autoscale is not UNSET:
                beneath = pool.pool if isinstance(pool, AgentPool) else pool
                beneath.set_autoscale(autoscale)
            elif isinstance(pool, AgentPool):
                # Widen the bounds to include the given size, whatever it is.
                await pool.auto_scale(
                    min_workers=min(MIN_WORKERS, pool.num_workers),
                    max_workers=max(MAX_WORKERS, pool.num_workers),
                )
            yield
        finally:
            await (pool.pool if isinstance(pool, AgentPool) else pool).leave(within)

    return lifespan
