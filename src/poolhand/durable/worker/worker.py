"""A worker in this process, from its start to its drain."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from msgspec import Struct

from poolhand.durable.calls.capture import begin_capture, end_capture
from poolhand.durable.catalogue import PublishedTasks
from poolhand.durable.connection.connection import OpenStore, StoreConnection
from poolhand.durable.connection.open_blocks import log_closed
from poolhand.durable.worker.executor import Executor
from poolhand.durable.worker.runner import ClaimRunner
from poolhand.durable.worker.running_claim import Unfinished, draining_text, unfinished
from poolhand.errors import StoreError, UsageError
from poolhand.misuse import explain_misuse
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.pool.engine.views import Examined
from poolhand.pool.slots.attempt import IDLE
from poolhand.pool.slots.runner import own_task
from poolhand.rules.job import Job
from poolhand.rules.plain import PlainView
from poolhand.rules.scaling.pool_size import SLOTS
from poolhand.rules.scaling.worker_count import drain_within
from poolhand.rules.validation import (
    FLAG,
    SECONDS,
    Seconds,
    is_name,
    shown,
    to_seconds,
)

_log = logging.getLogger("poolhand")

WRITE_WITHIN = 10.0  # seconds to write outcomes; what is not written runs again in another process
DRAIN_TIMEOUT = 30.0
LOG_AFTER = 1.0  # seconds that leaving `async with` waits for jobs without a line in the log


class WorkerSettings(Struct, frozen=True):
    """The settings of a worker.

    After `quota` attempts it claims no more. `soft_timeout` and `hard_timeout` apply to jobs
    without timeouts of their own. Jobs stopped at the end have `stop_grace` seconds to stop. If it
    `captures`, output and log lines of jobs go into their events. One that `rests` has an event
    loop for jobs alone, which is not watched while there are none. `before` is the packed call that
    each child makes before its first job.
    """

    slots: int
    pools: tuple[str, ...] | None = None
    drain_timeout: float = DRAIN_TIMEOUT
    captures: bool = False
    quota: int | None = None
    soft_timeout: float | None = None
    hard_timeout: float | None = None
    stop_grace: float = STOP_GRACE
    rests: bool = False
    before: bytes | None = None


def checked_settings(
    slots: int, pools: Iterable[str] | None, drain_timeout: Seconds, captures: bool
) -> WorkerSettings:
    """Return the settings for these arguments, or raise one error that lists every fault."""
    faults: list[str] = []
    within = to_seconds(drain_timeout)
    faults += SLOTS.faults("slots", slots)
    faults += SECONDS.faults("drain_timeout", within)
    faults += FLAG.faults("capture", captures)
    names, fault = _names(pools)
    if faults or fault:
        raise UsageError("worker: " + "; ".join([*faults, *([fault] if fault else [])]))
    return WorkerSettings(slots, names, within, captures)


def checked_pools(pools: Iterable[str] | None, what: str) -> tuple[str, ...] | None:
    """Return pool names, None for all; raise if they are not valid names."""
    names, fault = _names(pools)
    if fault:
        raise UsageError(f"{what}: {fault}")
    return names


def _names(pools: object) -> tuple[tuple[str, ...] | None, str]:
    """Return pool names, None for all, and the fault if they are not valid names."""
    if pools is None:
        return None, ""
    # A str is one invalid value, not a list of letters.
    given = pools if isinstance(pools, Iterable) and not isinstance(pools, str) else (None,)
    names: tuple[Any, ...] = tuple(given)
    if names and all(map(is_name, names)):
        return names, ""
    if isinstance(pools, Collection) and not pools:
        return None, (
            f"pools={shown(pools)} names no pool; leave it out to serve the pools of the app's "
            "tasks, or give a list of names of pools"
        )
    cure = f": pools=[{shown(pools)}]" if is_name(pools) else ""
    return None, (
        f"pools={shown(pools)} is not allowed; give a list of names of pools{cure}, or None for all"
    )


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
        settings: WorkerSettings,
        hooks: WorkerHooks | None = None,
    ) -> None:
        self._opened = opened
        self._executor = executor
        self._configs = configs
        self._settings = settings
        self._hooks = WorkerHooks() if hooks is None else hooks
        self._worker: ClaimRunner | None = None
        # Called with the jobs that still run at the end of a drain, before they are stopped.
        self.on_overrun: Callable[[Sequence[Unfinished]], None] | None = None
        self.cut_short: tuple[Unfinished, ...] = ()
        self._deadline = 0.0
        self._drained: Task[WorkerReport] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Called, on any thread, when the store is closed while this worker runs.
        self.on_store_closed: Callable[[], None] = log_closed

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
            _log.warning("%s%s", draining_text(len(jobs), self._settings.drain_timeout), again)

    async def start(self) -> Self:
        """Begin to claim and run jobs on the running event loop."""
        if self._worker is not None:
            raise UsageError("this worker was started before; ask the app for another one")
        if self._hooks.before is not None:
            await self._hooks.before()
        self._executor.codes.check()
        connection = await self._opened.connection()
        self._loop = asyncio.get_running_loop()
        connection.local_workers.add(self)
        try:
            return await self._start(connection)
        except BaseException:
            connection.local_workers.discard(self)
            raise

    async def _start(self, connection: StoreConnection) -> Self:
        catalogue = await self._published(connection)
        if self._worker is not None:
            raise UsageError("this worker is being started twice; start it once")
        # No await from here on: a cancellation there would leave a worker that is never drained.
        worker = ClaimRunner(connection, self._executor, self._configs, self._settings, catalogue)
        worker.announcer.heard = self._hooks.heard
        self._worker = worker
        if self._settings.captures:
            begin_capture()
        worker.begin()
        if self._settings.pools is None and self._executor.pools() == ():
            _log.warning(
                "this worker serves no pool: its app has no tasks and declares no pools; import "
                "the modules that register them, or give the worker pools=[…]"
            )
        if self._hooks.begun is not None:
            self._hooks.begun(connection)
        return self

    async def _published(self, connection: StoreConnection) -> PublishedTasks | None:
        """Publish the tasks, so that they can be submitted by name as soon as the worker runs."""
        if self._hooks.catalogue is None:
            return None
        catalogue = self._hooks.catalogue()
        # The heartbeat publishes it again, and more often if that fails.
        with suppress(StoreError):
            document = catalogue.document(connection.thread.runtime.wall())
            await connection.thread.ask(lambda: connection.store.put([document]))
        return catalogue

    async def drain(self, timeout: Seconds | None = None) -> WorkerReport:
        """Claim no more, let jobs finish within `timeout` seconds, hand the rest back."""
        seconds = self._settings.drain_timeout if timeout is None else to_seconds(timeout)
        SECONDS.require("drain: timeout", seconds)
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
        announcer = self._at_work().announcer
        return announcer.completed, announcer.failed

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
        runtime, loop_watch = worker.connection.thread.runtime, worker.loop_watch
        return Examined(shown, runtime, loop_watch.thread, loop_watch.silence, stale_after)

    def grow(self, slots: int) -> None:
        """Have at least so many slots."""
        self._at_work().grow(slots)

    @property
    def is_active(self) -> bool:
        """Whether it was started on a loop that still exists, and is not drained."""
        if self._loop is None or self._loop.is_closed():
            return False
        return self._drained is None or not self._drained.done()

    def runs(self, attempt: object) -> bool:
        """Return whether this attempt runs here; from any thread."""
        runner = self._worker
        works = [] if runner is None else list(runner.running.values())
        return any(work.place is attempt for work in works)

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
        thread = worker.connection.thread
        worker.refuse()
        # A closed store is no reason not to stop: the leases expire by themselves.
        with suppress(StoreError):
            await thread.ask(worker.dispatcher.stop_claiming)
        worker.receive()
        if not await self._idle(worker, 0.0):
            await self._cut_short(worker)
        stuck = worker.slots.stuck
        worker.dispatcher.send()
        with suppress(StoreError):
            await thread.ask(lambda: worker.dispatcher.finish(WRITE_WITHIN))
        worker.receive()
        await worker.announcer.aside.over()
        await worker.announcer.callbacks_over(max(0.0, self._deadline - worker.now()))
        worker.close()
        if self._settings.captures:
            end_capture()
        return WorkerReport(*self.attempts, worker.handed_back, stuck, worker.now() - began)

    async def _cut_short(self, worker: ClaimRunner) -> None:
        """Stop what still runs; note which jobs that were and which did not stop."""
        cut = {token: work for token, work in worker.running.items() if not work.lost}
        self.cut_short = tuple(map(unfinished, cut.values()))
        if self.on_overrun is not None:
            self.on_overrun(self.cut_short)
        grace = self._settings.stop_grace
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
