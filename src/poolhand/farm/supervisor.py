"""The supervisor: starts worker processes, monitors, scales and stops them.

It only carries out decisions: `rules/scaling/worker_count` decides how many workers are wanted and
which worker is hung. It runs no job itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from socket import gethostname
from typing import Any

from msgspec.structs import replace

from poolhand.contract import PoolRow
from poolhand.durable.client.submit import StoreClient
from poolhand.durable.connection.connection import StoreConnection
from poolhand.errors import StoreError
from poolhand.farm.control_inbox import ControlInbox
from poolhand.farm.fleet import Fleet
from poolhand.farm.protocol import Start
from poolhand.farm.records import (
    TOPIC,
    ControlAnswer,
    ControlKind,
    ControlRequest,
    FarmRecord,
    FarmState,
)
from poolhand.farm.worker_handle import WorkerHandle
from poolhand.observe import events
from poolhand.rules.scaling.worker_count import (
    CapWatch,
    FarmSettings,
    Load,
    Trend,
    Verbosity,
    decide,
    runnable,
    wanted_for,
)
from poolhand.runtime import Runtime

UP_WITHIN = 15.0
# Seconds after the grace at which workers still alive get SIGTERM, and then SIGKILL. Both come
# after the moment at which workers exit by themselves, and within the second a stop may take.
TERM_AFTER, KILL_AFTER = 0.7, 0.9
AGAIN_AFTER = 1.0
RECORD_EVERY = 1.0  # most seconds between two checks whether the record has to be written
MOST_NAMED = 20  # jobs listed in the FarmStopped event
LAST_WRITE = 0.5  # seconds for deleting the record of a stopped farm
Work = Callable[[], Coroutine[Any, Any, None]]

_log = logging.getLogger("poolhand")


class Supervisor:
    """One farm, from start to stop; lives on the main thread, which starts the processes.

    `stop`, `renew` and `end_within` may be called from signal handlers of the loop.
    """

    def __init__(
        self,
        app: StoreClient,
        name: str,
        settings: FarmSettings,
        pools: tuple[str, ...] | None,
        verbosity: Verbosity,
    ) -> None:
        self.id = _farm_id(app.runtime)
        start = Start(name, self.id, "", settings, pools, verbosity.loglevel, verbosity.verbose)
        self._app = app
        self._start_message = start
        self._now = app.runtime.monotonic
        self._started_at = app.runtime.wall()
        self.state = FarmState.STARTING
        self._trend = Trend()
        self._caps = CapWatch()
        self._demand = self._queued = 0
        self._asked_for = settings.min_workers
        self._ends_at: float | None = None
        self._stopping = asyncio.Event()
        self._requested = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: StoreConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fleet = Fleet(
            start, app.runtime, app.events, self._look_for_dead, hides_output=verbosity.quiet
        )

    @property
    def settings(self) -> FarmSettings:
        return self._fleet.settings

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> None:
        """Run the farm until a stop is requested and all workers have ended."""
        self._loop = asyncio.get_running_loop()
        self._connection = connection = await self._app.connection()
        self._inbox = ControlInbox(connection, self.id)
        connection.heard[TOPIC] = self._hint
        settings = self.settings
        bounds = (settings.min_workers, settings.max_workers, settings.prefetch_per_worker)
        self._app.events.emit(events.FarmStarted("", self.id, self._start_message.app, *bounds))
        self._start(self._wait_until_ready)
        loops = (self._watch, self._write_records, self._scale, self._keep, self._handle_requests)
        for work in loops:
            self._start(partial(self._repeat_on_error, work))
        await self._stopping.wait()
        await self._end_workers()
        await asyncio.to_thread(self._fleet.relay.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_WRITE):
                await self._inbox.withdraw()
                # Reap killed workers, so that their unfinished jobs can be claimed at once.
                await connection.reap()
        await self._app.close()
        handed_back = tuple(self._fleet.handed_back[:MOST_NAMED])
        self._app.events.emit(events.FarmStopped("", self.id, *self._fleet.totals, handed_back))

    def stop(self, fast: bool = False) -> None:
        """Stop within the grace; with `fast`, or at the second call, hand running jobs back now."""
        # A drain without a time limit does not count as the first call.
        again = self._ends_at is not None
        grace = 0.0 if fast or again else self.settings.worker_shutdown_grace_s
        self.end_within(grace)

    def end_within(self, grace: float | None) -> None:
        """Claim no more jobs; end when the running ones have ended, or after the grace."""
        ends_at = None if grace is None else self._now() + grace
        if self._ends_at is None or (ends_at is not None and ends_at < self._ends_at):
            self._ends_at = ends_at
        self.state = FarmState.STOPPING
        self._app.events.emit(events.FarmStopping("", self.id, grace))
        self._fleet.close(grace)
        self._stopping.set()

    def renew(self) -> None:
        """Replace every worker by a new one, one after the other."""
        if self._renewing is None or self._renewing.done():
            self._renewing = self._start(self._fleet.renew)

    def record(self) -> FarmRecord:
        """Return this farm's record, which every interface shows."""
        now, settings = self._now(), self.settings
        host, _, pid, _ = self._app.runtime.identity()
        completed, failed = self._fleet.totals
        return FarmRecord(
            id=self.id,
            host=host,
            pid=pid,
            app=self._start_message.app,
            state=self.state,
            started_at=self._started_at,
            written_at=self._app.runtime.wall(),
            minimum=settings.min_workers,
            maximum=settings.max_workers,
            prefetch=settings.prefetch_per_worker,
            external=settings.external,
            wanted=self._asked_for if settings.external else self._fleet.wanted,
            demand=self._demand,
            capacity=self._fleet.slots,
            queued=self._queued,
            completed=completed,
            failed=failed,
            workers=tuple(one.record(now) for one in self._fleet.workers.values()),
            troubles=tuple(self._fleet.troubles),
            surge=settings.surge,
            held=self._fleet.held,
            pools=self._served,
        )

    # Loops.

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(UP_WITHIN):
                while len(self._fleet.ready) < self.settings.min_workers:
                    await self._fleet.wait_for_change()
        except TimeoutError:
            up, least = len(self._fleet.ready), self.settings.min_workers
            self._fleet.trouble(f"after {UP_WITHIN:g} s {up} of at least {least} workers are ready")
        if self.state is FarmState.STARTING:
            self.state = FarmState.RUNNING

    async def _watch(self) -> None:
        """Ping the workers, and replace those that are hung."""
        while True:
            self._fleet.watch()
            await asyncio.sleep(self.settings.heartbeat_interval_s)

    async def _write_records(self) -> None:
        # A loop of its own: an unavailable store must not delay the pings.
        while True:
            with suppress(StoreError):
                await self._inbox.publish(self.record())
            # Capped even with a long heartbeat interval: a stale record looks abandoned.
            await asyncio.sleep(min(RECORD_EVERY, self.settings.heartbeat_interval_s))

    async def _scale(self) -> None:
        """Read the load and set the wanted number of workers accordingly."""
        while not self._stopping.is_set():
            # Skip this round if the store does not answer: never scale without figures.
            with suppress(StoreError):
                self._look(await self._pools())
            await asyncio.sleep(self.settings.scale_check_interval_s)

    def _look(self, rows: Sequence[PoolRow]) -> None:
        fleet, settings = self._fleet, self.settings
        running = sum(row.running for row in rows)
        could_run = sum(runnable(r.running, r.queued, r.slots, r.paused) for r in rows)
        startable = could_run - running
        self._queued = sum(row.queued for row in rows)
        self._look_at_caps(rows)
        if settings.external:
            self._demand = could_run
            self._asked_for = wanted_for(settings, could_run)
            return
        self._demand = startable + self._own_load(running, startable)
        load = Load(fleet.wanted, self._demand, startable, fleet.all_busy)
        step = decide(settings, load, self._trend, self._now())
        self._trend = step.trend
        if step.wanted != fleet.wanted:
            self._app.events.emit(events.FarmScaled("", fleet.wanted, step.wanted, step.why))
            fleet.wanted = step.wanted
            fleet.changed.set()

    def _look_at_caps(self, rows: Sequence[PoolRow]) -> None:
        """Report pools whose cap, not the number of workers, keeps jobs waiting."""
        capped = {
            row.spec.name: row
            for row in rows
            if row.slots is not None and row.queued and row.running >= row.slots and not row.paused
        }
        for name in self._caps.look(capped, self._fleet.capacity > self._fleet.active):
            row = capped[name]
            jobs = "1 job waits" if row.queued == 1 else f"{row.queued:,} jobs wait"
            self._fleet.trouble(
                f"{jobs} in pool {name!r} behind its cap of {row.slots}, while workers have free "
                "slots; raise its max_concurrent, or resize it with `poolhand pools resize`"
            )

    def _own_load(self, running: int, startable: int) -> int:
        """Return how many running jobs belong to this farm: those of other farms are no load."""
        reported = self._fleet.active
        if not startable:
            return reported
        # While jobs wait, free workers are claiming them; heartbeats report that a little later.
        return max(reported, min(running, self._fleet.capacity))

    async def _keep(self) -> None:
        """Start and retire workers until their number is the wanted one, after every change."""
        while not self._stopping.is_set():
            await self._fleet.keep()
            waits = self._fleet.starts_at - self._now()
            with suppress(TimeoutError):
                async with asyncio.timeout(waits if waits > 0 else None):
                    await self._fleet.wait_for_change()

    async def _handle_requests(self) -> None:
        while True:
            with suppress(StoreError):
                await self._inbox.handle(self._handle_request)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.scale_check_interval_s):
                    await self._requested.wait()
            self._requested.clear()

    async def _repeat_on_error(self, work: Work) -> None:
        """Run a loop for as long as the farm lives; when it fails, log it and restart it."""
        while True:
            try:
                await work()
                return
            except Exception as error:
                self._fleet.trouble(f"the supervisor failed: {type(error).__name__}: {error}")
                _log.exception("the supervisor failed and continues")
            await asyncio.sleep(AGAIN_AFTER)

    # Steps.

    @property
    def _served(self) -> tuple[str, ...]:
        return self._start_message.pools or self._app.declared.served()

    async def _pools(self) -> list[PoolRow]:
        assert self._connection is not None
        connection, names = self._connection, self._served
        return await connection.thread.ask(lambda: connection.store.pools(names))

    async def _handle_request(self, request: ControlRequest) -> ControlAnswer:
        handle = None if request.worker is None else self._fleet.workers.get(request.worker)
        if request.worker is not None and handle is None:
            return ControlAnswer(False, f"there is no worker {request.worker}")
        match request.kind:
            case ControlKind.DRAIN if handle is not None:
                self._fleet.retire(handle, None, f"{request.by} wants it")
                return ControlAnswer(
                    True, f"worker {handle.id} ends when its running jobs have ended"
                )
            case ControlKind.DRAIN:
                self.end_within(None)
                return ControlAnswer(True, f"farm {self.id} ends when its running jobs have ended")
            case ControlKind.RESTART:
                self.renew()
                return ControlAnswer(True, "all workers are replaced, one after the other")
            case ControlKind.BOUNDS:
                return self._set_bounds(request)
            case ControlKind.SNAPSHOT if handle is not None:
                found = await self._fleet.snapshot(handle, request.after, request.limit)
                if found is None:
                    return ControlAnswer(False, f"worker {handle.id} does not answer")
                return ControlAnswer(True, "", found)
            case ControlKind.SNAPSHOT:
                running = [job for one in self.record().workers for job in one.jobs]
                history = self._fleet.history
                page = history.snapshot(self.id, None, running, request.after, request.limit)
                return ControlAnswer(True, "", page)

    def _set_bounds(self, request: ControlRequest) -> ControlAnswer:
        least = self.settings.min_workers if request.minimum is None else request.minimum
        most = self.settings.max_workers if request.maximum is None else request.maximum
        if not 0 <= least <= most:
            return ControlAnswer(False, f"minimum {least} is greater than maximum {most}")
        self._fleet.settings = replace(self.settings, min_workers=least, max_workers=most)
        if self.settings.external:
            self._fleet.wanted = least
            self._fleet.changed.set()
        return ControlAnswer(True, f"{least} to {most} workers")

    async def _end_workers(self) -> None:
        """Wait for all workers; after the grace terminate, then kill, the remaining ones."""
        for after, send_signal in (
            (TERM_AFTER, WorkerHandle.terminate),
            (KILL_AFTER, WorkerHandle.kill),
        ):
            await self._wait_for_workers(after)
            for handle in list(self._fleet.workers.values()):
                send_signal(handle)
        await self._wait_for_workers(None)

    async def _wait_for_workers(self, after: float | None) -> None:
        """Wait for all workers, at most until `after` seconds past the deadline, which may move."""
        while self._fleet.workers:
            left = None
            if self._ends_at is not None and after is not None:
                left = self._ends_at + after - self._now()
                if left <= 0:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._fleet.wait_for_change()

    def _look_for_dead(self) -> None:
        if self._connection is not None:
            self._connection.look_for_dead()

    def _hint(self) -> None:
        """Note that a control request may have arrived; called on the store thread's loop."""
        assert self._loop is not None
        with suppress(RuntimeError):
            # The loop is closed: the farm handles no more requests.
            self._loop.call_soon_threadsafe(self._requested.set)

    def _start(self, work: Work) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        return task


def _farm_id(runtime: Runtime) -> str:
    host = re.sub(r"[^\w-]", "-", gethostname().partition(".")[0])[:40]
    return f"{host or 'farm'}-{runtime.salt()[:6]}"
