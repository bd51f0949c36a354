"""The supervisor: starts worker processes, monitors, scales and stops them.

It only carries out decisions: `rules/scaling/worker_count` decides how many workers are wanted,
`rules/scaling/liveness` decides which worker is hung. It runs no job itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from socket import gethostname
from typing import Any, Protocol

from msgspec.structs import replace

from poolhand.contract import PoolRow
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
from poolhand.rules.scaling.farm_settings import FarmSettings, Verbosity
from poolhand.rules.scaling.worker_count import CapWatch, Load, Trend, decide, runnable, wanted_for
from poolhand.runtime import Runtime

UP_WITHIN = 15.0
# Seconds after the grace at which workers still alive get SIGTERM, and then SIGKILL. Both come
# after the moment at which workers exit by themselves, and within the second a stop may take.
TERM_AFTER, KILL_AFTER = 0.7, 0.9
AGAIN_AFTER = 1.0
TELL_EVERY = 1.0  # most seconds between two checks whether the record has to be written
MOST_NAMED = 20  # jobs listed in the FarmStopped event
LAST_WRITE = 0.5  # seconds for deleting the record of a stopped farm
Work = Callable[[], Coroutine[Any, Any, None]]

_log = logging.getLogger("poolhand")


class SupervisedApp(Protocol):
    """The part of an App that a supervisor uses."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def events(self) -> events.Events: ...

    def served_pools(self) -> tuple[str, ...]: ...

    async def station(self) -> StoreConnection: ...

    async def close(self) -> None: ...


class Supervisor:
    """One farm, from start to stop; lives on the main thread, which starts the processes.

    `stop`, `renew` and `end_within` may be called from signal handlers of the loop.
    """

    def __init__(
        self,
        app: SupervisedApp,
        name: str,
        settings: FarmSettings,
        pools: tuple[str, ...] | None,
        speech: Verbosity,
    ) -> None:
        self.id = _name_of_farm(app.runtime)
        employ = Start(name, self.id, "", settings, pools, speech.loglevel, speech.verbose)
        self._app = app
        self._employ = employ
        self._now = app.runtime.monotonic
        self._started_at = app.runtime.wall()
        self.state = FarmState.STARTING
        self._trend = Trend()
        self._caps = CapWatch()
        self._demand = self._queued = 0
        self._asked_for = employ.settings.min_workers
        self._ends_at: float | None = None
        self._stopping = asyncio.Event()
        self._wished = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._station: StoreConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._staff = Fleet(
            employ, app.runtime, app.events, self._look_for_dead, hides_output=speech.quiet
        )

    @property
    def settings(self) -> FarmSettings:
        return self._staff.settings

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> None:
        """Run the farm until a stop is requested and all workers have ended."""
        self._loop = asyncio.get_running_loop()
        self._station = station = await self._app.station()
        self._notices = ControlInbox(station, self.id)
        station.heard[TOPIC] = self._hint
        settings = self.settings
        bounds = (settings.min_workers, settings.max_workers, settings.prefetch_per_worker)
        self._tell(events.FarmStarted("", self.id, self._employ.app, *bounds))
        self._start(self._come_up)
        for work in (
            self._watch,
            self._tell_how_it_is,
            self._scale,
            self._keep,
            self._grant_wishes,
        ):
            self._start(partial(self._go_on, work))
        await self._stopping.wait()
        await self._come_to_an_end()
        await asyncio.to_thread(self._staff.relay.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_WRITE):
                await self._notices.withdraw()
                # Reap killed workers, so that their unfinished jobs can be claimed at once.
                await station.reap()
        await self._app.close()
        handed_back = tuple(self._staff.handed_back[:MOST_NAMED])
        self._tell(events.FarmStopped("", self.id, *self._staff.totals, handed_back))

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
        self._tell(events.FarmStopping("", self.id, grace))
        self._staff.close(grace)
        self._stopping.set()

    def renew(self) -> None:
        """Replace every worker by a new one, one after the other."""
        if self._renewing is None or self._renewing.done():
            self._renewing = self._start(self._staff.renew)

    def record(self) -> FarmRecord:
        """Return this farm's record, which every interface shows."""
        now, settings = self._now(), self.settings
        host, _, pid, _ = self._app.runtime.identity()
        completed, failed = self._staff.totals
        return FarmRecord(
            id=self.id,
            host=host,
            pid=pid,
            app=self._employ.app,
            state=self.state,
            started_at=self._started_at,
            written_at=self._app.runtime.wall(),
            minimum=settings.min_workers,
            maximum=settings.max_workers,
            prefetch=settings.prefetch_per_worker,
            external=settings.external,
            wanted=self._asked_for if settings.external else self._staff.wanted,
            demand=self._demand,
            capacity=self._staff.slots,
            queued=self._queued,
            completed=completed,
            failed=failed,
            workers=tuple(one.record(now) for one in self._staff.hired.values()),
            troubles=tuple(self._staff.troubles),
            surge=settings.surge,
            held=self._staff.held,
            pools=self._served,
        )

    # Loops.

    async def _come_up(self) -> None:
        try:
            async with asyncio.timeout(UP_WITHIN):
                while len(self._staff.ready) < self.settings.min_workers:
                    await self._staff.news()
        except TimeoutError:
            up, least = len(self._staff.ready), self.settings.min_workers
            self._staff.trouble(f"after {UP_WITHIN:g} s {up} of at least {least} workers are ready")
        if self.state is FarmState.STARTING:
            self.state = FarmState.RUNNING

    async def _watch(self) -> None:
        """Ping the workers, and replace those that are hung."""
        while True:
            self._staff.watch()
            await asyncio.sleep(self.settings.heartbeat_interval_s)

    async def _tell_how_it_is(self) -> None:
        # A loop of its own: an unavailable store must not delay the pings.
        while True:
            with suppress(StoreError):
                await self._notices.tell(self.record())
            # Capped even with a long heartbeat interval: a stale record looks abandoned.
            await asyncio.sleep(min(TELL_EVERY, self.settings.heartbeat_interval_s))

    async def _scale(self) -> None:
        """Read the load and set the wanted number of workers accordingly."""
        while not self._stopping.is_set():
            # Skip this round if the store does not answer: never scale without figures.
            with suppress(StoreError):
                self._look(await self._pools())
            await asyncio.sleep(self.settings.scale_check_interval_s)

    def _look(self, rows: Sequence[PoolRow]) -> None:
        staff, settings = self._staff, self.settings
        running = sum(row.running for row in rows)
        could_run = sum(runnable(r.running, r.queued, r.slots, r.paused) for r in rows)
        startable = could_run - running
        self._queued = sum(row.queued for row in rows)
        self._look_at_caps(rows)
        if settings.external:
            self._demand = could_run
            self._asked_for = wanted_for(settings, could_run)
            return
        self._demand = startable + self._own(running, startable)
        load = Load(staff.wanted, self._demand, startable, staff.all_busy)
        step = decide(settings, load, self._trend, self._now())
        self._trend = step.trend
        if step.wanted != staff.wanted:
            self._tell(events.FarmScaled("", staff.wanted, step.wanted, step.why))
            staff.wanted = step.wanted
            staff.changed.set()

    def _look_at_caps(self, rows: Sequence[PoolRow]) -> None:
        """Report pools whose cap, not the number of workers, keeps jobs waiting."""
        capped = {
            row.spec.name: row
            for row in rows
            if row.slots is not None and row.queued and row.running >= row.slots and not row.paused
        }
        for name in self._caps.look(capped, self._staff.capacity > self._staff.active):
            row = capped[name]
            jobs = "1 job waits" if row.queued == 1 else f"{row.queued:,} jobs wait"
            self._staff.trouble(
                f"{jobs} in pool {name!r} behind its cap of {row.slots}, while workers have free "
                "slots; raise its max_concurrent, or resize it with `poolhand pools resize`"
            )

    def _own(self, running: int, startable: int) -> int:
        """Return how many running jobs belong to this farm: those of other farms are no load."""
        told = self._staff.active
        if not startable:
            return told
        # While jobs wait, free workers are claiming them; heartbeats report that a little later.
        return max(told, min(running, self._staff.capacity))

    async def _keep(self) -> None:
        """Start and retire workers until their number is the wanted one, after every change."""
        while not self._stopping.is_set():
            await self._staff.keep()
            waits = self._staff.starts_at - self._now()
            with suppress(TimeoutError):
                async with asyncio.timeout(waits if waits > 0 else None):
                    await self._staff.news()

    async def _grant_wishes(self) -> None:
        while True:
            with suppress(StoreError):
                await self._notices.grant(self._grant)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.scale_check_interval_s):
                    await self._wished.wait()
            self._wished.clear()

    async def _go_on(self, work: Work) -> None:
        """Run a loop for as long as the farm lives; when it fails, log it and restart it."""
        while True:
            try:
                await work()
                return
            except Exception as error:
                self._staff.trouble(f"the supervisor failed: {type(error).__name__}: {error}")
                _log.exception("the supervisor failed and goes on")
            await asyncio.sleep(AGAIN_AFTER)

    # Steps.

    @property
    def _served(self) -> tuple[str, ...]:
        return self._employ.pools or self._app.served_pools()

    async def _pools(self) -> list[PoolRow]:
        assert self._station is not None
        station, names = self._station, self._served
        return await station.keeper.ask(lambda: station.store.pools(names))

    async def _grant(self, wish: ControlRequest) -> ControlAnswer:
        hired = None if wish.worker is None else self._staff.hired.get(wish.worker)
        if wish.worker is not None and hired is None:
            return ControlAnswer(False, f"there is no worker {wish.worker}")
        match wish.kind:
            case ControlKind.DRAIN if hired is not None:
                self._staff.dismiss(hired, None, f"{wish.by} wants it")
                return ControlAnswer(True, f"worker {hired.id} ends when its jobs are over")
            case ControlKind.DRAIN:
                self.end_within(None)
                return ControlAnswer(True, f"farm {self.id} ends when its jobs are over")
            case ControlKind.RESTART:
                self.renew()
                return ControlAnswer(True, "all workers are replaced, one after the other")
            case ControlKind.BOUNDS:
                return self._bound(wish)
            case ControlKind.SNAPSHOT if hired is not None:
                found = await self._staff.snapshot(hired, wish.after, wish.limit)
                if found is None:
                    return ControlAnswer(False, f"worker {hired.id} does not answer")
                return ControlAnswer(True, "", found)
            case ControlKind.SNAPSHOT:
                running = [job for one in self.record().workers for job in one.jobs]
                history = self._staff.history
                page = history.snapshot(self.id, None, running, wish.after, wish.limit)
                return ControlAnswer(True, "", page)

    def _bound(self, wish: ControlRequest) -> ControlAnswer:
        least = self.settings.min_workers if wish.minimum is None else wish.minimum
        most = self.settings.max_workers if wish.maximum is None else wish.maximum
        if not 0 <= least <= most:
            return ControlAnswer(False, f"at least {least} and at most {most} cannot both be")
        self._staff.settings = replace(self.settings, min_workers=least, max_workers=most)
        if self.settings.external:
            self._staff.wanted = least
            self._staff.changed.set()
        return ControlAnswer(True, f"{least} to {most} workers")

    async def _come_to_an_end(self) -> None:
        """Wait for all workers; after the grace terminate, then kill, the remaining ones."""
        for after, blow in ((TERM_AFTER, WorkerHandle.terminate), (KILL_AFTER, WorkerHandle.kill)):
            await self._gone_by(after)
            for hired in list(self._staff.hired.values()):
                blow(hired)
        await self._gone_by(None)

    async def _gone_by(self, after: float | None) -> None:
        """Wait for all workers, at most until `after` seconds past the deadline, which may move."""
        while self._staff.hired:
            left = None
            if self._ends_at is not None and after is not None:
                left = self._ends_at + after - self._now()
                if left <= 0:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._staff.news()

    def _look_for_dead(self) -> None:
        if self._station is not None:
            self._station.look_for_dead()

    def _hint(self) -> None:
        """Note that a control request may have arrived; called on the store thread's loop."""
        assert self._loop is not None
        with suppress(RuntimeError):
            # The loop is closed: the farm handles no more requests.
            self._loop.call_soon_threadsafe(self._wished.set)

    def _start(self, work: Work) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        return task

    def _tell(self, event: events.Event) -> None:
        self._app.events.emit(event)


def _name_of_farm(runtime: Runtime) -> str:
    host = re.sub(r"[^\w-]", "-", gethostname().partition(".")[0])[:40]
    return f"{host or 'farm'}-{runtime.salt()[:6]}"
