"""A worker in this process, from its start to its drain."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from msgspec import Struct

from poolhand.durable.calls.capture import begin_capture, end_capture
from poolhand.durable.catalogue import PublishedTasks
from poolhand.durable.client.ticket import OpenStore
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.worker.executor import Executor
from poolhand.durable.worker.runner import ClaimRunner
from poolhand.durable.worker.settings import WorkerSettings
from poolhand.durable.worker.unfinished import Unfinished, draining_text, unfinished
from poolhand.errors import StoreError, UsageError
from poolhand.misuse import explain_misuse
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.vitals import Examined
from poolhand.pool.slots.attempt import IDLE
from poolhand.pool.slots.runner import own_task
from poolhand.rules.job import Job
from poolhand.rules.scaling.farm_settings import drain_within
from poolhand.rules.validation import SECONDS_ALLOWED, Seconds, is_seconds, shown, to_seconds
from poolhand.rules.values.plain import PlainView

_log = logging.getLogger("poolhand")

WRITE_WITHIN = 10.0  # seconds to write outcomes; what is not written runs again in another process
LOG_AFTER = 1.0  # seconds that leaving `async with` waits for jobs without a line in the log


class WorkerReport(PlainView, frozen=True):
    """Counts of a worker: attempts that ended, jobs handed back, code that would not stop.

    `completed` and `failed` count what was written: a result that cannot be stored is a failure.
    """

    completed: int
    failed: int
    handed_back: int
    stuck: int
    seconds: float


class WorkerHooks(Struct, frozen=True):
    """Callbacks of a worker: `heard` gets each job that ends in it, `begun` is called at its start.

    `before` is awaited before it claims anything; `catalogue` lists the tasks to publish.
    """

    heard: Callable[[Job], None] | None = None
    begun: Callable[[StoreConnection], None] | None = None
    before: Callable[[], Awaitable[None]] | None = None
    catalogue: Callable[[], PublishedTasks] | None = None


@explain_misuse
class Worker:
    """Runs jobs while its `async with` block lasts; leaving it drains the worker.

    A drain waits for running jobs up to its timeout and hands back the rest. Jobs that only wait
    stay in the store.
    """

    def __init__(
        self,
        opened: OpenStore,
        executor: Executor,
        configs: Mapping[str, PoolConfig],
        terms: WorkerSettings,
        hooks: WorkerHooks | None = None,
    ) -> None:
        self._opened = opened
        self._executor = executor
        self._configs = configs
        self._terms = terms
        self._hooks = WorkerHooks() if hooks is None else hooks
        self._worker: ClaimRunner | None = None
        # Called with the jobs that still run at the end of a drain, before they are stopped.
        self.on_overrun: Callable[[Sequence[Unfinished]], None] | None = None
        self.cut_short: tuple[Unfinished, ...] = ()
        self._deadline = 0.0
        self._drained: Task[WorkerReport] | None = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        waiting = asyncio.get_running_loop().call_later(LOG_AFTER, self._log_waiting, kind)
        try:
            await self.drain()
        except (asyncio.CancelledError, KeyboardInterrupt):
            # Interrupted while draining: stop now, but hand every job back.
            if self._drained is not None and self._worker is not None:
                self.hurry(0.0)
                while not self._drained.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([self._drained])
            raise
        finally:
            waiting.cancel()

    def _log_waiting(self, kind: type[BaseException] | None) -> None:
        """Log that leaving `async with` waits for jobs."""
        if jobs := self.unfinished():
            # Ctrl-C cancels the task that asyncio.run was given.
            again = " (press Ctrl-C again to stop now)" if kind is asyncio.CancelledError else ""
            _log.warning("%s%s", draining_text(len(jobs), self._terms.drain_timeout), again)

    async def start(self) -> Self:
        """Begin to claim and run jobs on the running event loop."""
        if self._worker is not None:
            raise UsageError("this worker was started before; ask the app for another one")
        if self._hooks.before is not None:
            await self._hooks.before()
        self._executor.codes.check()
        station = await self._opened.station()
        catalogue = await self._published(station)
        if self._worker is not None:
            raise UsageError("this worker is being started twice; start it once")
        # No await from here on: a cancellation there would leave a worker that is never drained.
        worker = ClaimRunner(station, self._executor, self._configs, self._terms)
        worker.announcing.heard = self._hooks.heard
        worker.line.catalogue = catalogue
        self._worker = worker
        if self._terms.captures:
            begin_capture()
        worker.begin()
        if self._terms.pools is None and self._executor.pools() == ():
            _log.warning(
                "this worker serves no pool: its app has no tasks and declares no pools; import "
                "the modules that register them, or give the worker pools=[…]"
            )
        if self._hooks.begun is not None:
            self._hooks.begun(station)
        return self

    async def _published(self, station: StoreConnection) -> PublishedTasks | None:
        """Publish the tasks, so that they can be submitted by name as soon as the worker runs."""
        if self._hooks.catalogue is None:
            return None
        catalogue = self._hooks.catalogue()
        # The heartbeat publishes it again, and more often if that fails.
        with suppress(StoreError):
            document = catalogue.document(station.keeper.runtime.wall())
            await station.keeper.ask(lambda: station.store.put([document]))
        return catalogue

    async def drain(self, timeout: Seconds | None = None) -> WorkerReport:
        """Claim no more, let jobs finish within `timeout` seconds, hand the rest back."""
        seconds = self._terms.drain_timeout if timeout is None else to_seconds(timeout)
        if not is_seconds(seconds):
            raise UsageError(
                f"drain(timeout={shown(timeout)}) is not allowed; give {SECONDS_ALLOWED}"
            )
        worker = self._at_work()
        if asyncio.get_running_loop() is not worker.loop:
            raise UsageError("a worker is drained on the event loop that it was started on")
        if self._drained is None:
            self._deadline = worker.now() + seconds
            self._drained = self._begin_to_stop(worker)
        elif timeout is not None:
            self.hurry(seconds)
        try:
            return await asyncio.shield(self._drained)
        except asyncio.CancelledError:
            if not self._drained.cancelled():
                raise
            # A job has cancelled every task of the loop, or the loop ends, as at a second Ctrl-C:
            # nothing is awaited, but running jobs still have to be handed back.
            self._drained = self._begin_to_stop(worker)
            if worker.guard.ending:
                self.hurry(0.0)
            return await asyncio.shield(self._drained)

    def _begin_to_stop(self, worker: ClaimRunner) -> Task[WorkerReport]:
        return own_task(worker.loop, self._stop(worker), "worker-drain")

    @property
    def running(self) -> int:
        """How many jobs run in this worker now."""
        return len(self._at_work().running)

    @property
    def stuck(self) -> int:
        """How many slots run code whose job is over."""
        return self._at_work().slots.stuck

    @property
    def wedged(self) -> bool:
        """Whether code runs on after its hard timeout, which only the end of the process stops."""
        return self._at_work().wedged

    @property
    def spent(self) -> bool:
        """Whether this worker has run as many attempts as its quota allows."""
        return self._at_work().spent

    @property
    def attempts(self) -> tuple[int, int]:
        """How many attempts completed and failed here, by the outcomes that were written."""
        announcing = self._at_work().announcing
        return announcing.completed, announcing.failed

    def needs(self, grace: float) -> float:
        """Return how long a drain of `grace` seconds may take: no longer than its jobs may run."""
        return drain_within(grace, [one.terms.soft for one in self._at_work().running.values()])

    def unfinished(self) -> list[Unfinished]:
        """Return the records of the jobs that run now, as if they were to be stopped."""
        works = list(self._at_work().running.values())
        return [unfinished(work) for work in works if not work.lost]

    def jobs(self) -> list[Job]:
        """Return the jobs that run in this worker now; from any thread."""
        # Copy to a list first: that is atomic, while jobs begin and end.
        return [work.job for work in list(self._at_work().running.values())]

    def examined(self, most: int, stale_after: float) -> Examined:
        """Return the slots to be examined: those in use, and idle ones up to `most` in all."""
        worker = self._at_work()
        slots = tuple(worker.slots.all)
        room = most - sum(slot.state is not IDLE for slot in slots)
        idle = {slot.id for slot in slots if slot.state is IDLE}
        spare = set(sorted(idle)[max(0, room) :])
        shown = tuple(slot for slot in slots if slot.id not in spare)
        runtime, attention = worker.station.keeper.runtime, worker.attention
        return Examined(shown, runtime, attention.thread, attention.silence, stale_after)

    def grow(self, slots: int) -> None:
        """Have at least so many slots."""
        self._at_work().grow(slots)

    def _at_work(self) -> ClaimRunner:
        if self._worker is None:
            raise UsageError("this worker is not started; use `async with app.worker(…)`")
        return self._worker

    def hurry(self, timeout: float) -> None:
        """Make the deadline of a drain earlier, never later."""
        worker = self._at_work()
        self._deadline = min(self._deadline, worker.now() + timeout)
        worker.changed.set()

    async def _stop(self, worker: ClaimRunner) -> WorkerReport:
        began = worker.now()
        keeper = worker.station.keeper
        worker.refuse()
        # A closed store is no reason not to stop: the leases expire by themselves.
        with suppress(StoreError):
            await keeper.ask(worker.line.hand.stop_claiming)
        worker.receive()
        if not await self._idle(worker, 0.0):
            await self._cut_short(worker)
        stuck = worker.slots.stuck
        worker.tray.send()
        with suppress(StoreError):
            await keeper.ask(lambda: worker.line.finish(WRITE_WITHIN))
        worker.receive()
        await worker.announcing.aside.over()
        await worker.announcing.callbacks.over(max(0.0, self._deadline - worker.now()))
        worker.close()
        if self._terms.captures:
            end_capture()
        return WorkerReport(*self.attempts, worker.handed_back, stuck, worker.now() - began)

    async def _cut_short(self, worker: ClaimRunner) -> None:
        """Stop what still runs; note which jobs that were and which did not stop."""
        cut = {token: work for token, work in worker.running.items() if not work.lost}
        self.cut_short = tuple(map(unfinished, cut.values()))
        if self.on_overrun is not None:
            self.on_overrun(self.cut_short)
        grace = self._terms.stop_grace
        worker.stop_now(grace)
        self._deadline = worker.now()
        await self._idle(worker, 2 * grace)
        stuck = worker.running.keys()
        # Jobs that have ended meanwhile were not cut short.
        self.cut_short = tuple(
            unfinished(work, token in stuck)
            for token, work in cut.items()
            if work.returned and (work.given_back or token in stuck)
        )

    async def _idle(self, worker: ClaimRunner, grace: float) -> bool:
        """Wait until nothing runs, or the deadline, which may move, is past by `grace`."""
        worker.slots.reclaim()
        while worker.running:
            left = self._deadline + grace - worker.now()
            if left <= 0:
                return False
            worker.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await worker.changed.wait()
            worker.slots.reclaim()
        return True
