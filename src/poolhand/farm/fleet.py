"""The fleet: all worker processes of a supervisor, kept at the wanted number."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Event, Task
from collections import deque
from collections.abc import Callable
from itertools import count

from msgspec.structs import replace

from poolhand.durable.worker.running_claim import Unfinished, cut_short_text
from poolhand.farm.output_relay import OutputRelay
from poolhand.farm.protocol import (
    CutShort,
    Goodbye,
    HeartbeatMessage,
    SnapshotAnswer,
    Start,
    StartFailed,
    TroubleReport,
    WorkerMessages,
)
from poolhand.farm.records import LONGEST_TEXT, MOST_TROUBLES, History, Snapshot, Trouble
from poolhand.farm.worker_handle import WorkerHandle
from poolhand.observe import events
from poolhand.observe.failures import warn
from poolhand.pool.slots.process_parent import ending
from poolhand.rules.scaling.worker_count import (
    Deaths,
    Plan,
    Processes,
    Verdict,
    came_up,
    died,
    held_text,
    judge,
    may_start_at,
    plan,
    to_retire,
)
from poolhand.runtime import Runtime

LOST_FOR = 3  # heartbeat intervals without a check: this process was suspended meanwhile
ANSWER_WITHIN = 5.0
LAST_OUTPUT = 0.5  # seconds for reading the last output of a dead process

_log = logging.getLogger("poolhand")


class Fleet:
    """Starts, monitors and retires worker processes; lives on the supervisor's loop.

    `on_death` is called when a worker ends without having settled its jobs: its leases are to be
    reaped.
    """

    def __init__(
        self,
        start_message: Start,
        runtime: Runtime,
        heard: events.Events,
        on_death: Callable[[], None],
        hides_output: bool = False,
    ) -> None:
        self.workers: dict[str, WorkerHandle] = {}
        self.wanted = start_message.settings.min_workers
        self.held = 0
        self.settings = start_message.settings
        self.changed = Event()
        self.troubles: deque[Trouble] = deque(maxlen=MOST_TROUBLES)
        self.history = History(start_message.settings.task_history_max)
        self._start_message = start_message
        self._runtime = runtime
        self._events = heard
        self._on_death = on_death
        self._hides = hides_output
        self.relay = OutputRelay(shows=not hides_output)
        self._numbers, self._questions = count(1), count(1)
        self._deaths = Deaths()
        self._closed = False
        self._ended_totals = [0, 0]
        self.handed_back: list[str] = []
        self._tasks: set[Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Snapshot]] = {}
        self._watched_at = runtime.monotonic()

    # State.

    @property
    def staying(self) -> list[WorkerHandle]:
        """The workers that are to stay, oldest first."""
        return [one for one in self.workers.values() if one.stays]

    @property
    def ready(self) -> list[WorkerHandle]:
        """The staying workers that claim jobs."""
        return [one for one in self.staying if one.is_ready]

    @property
    def capacity(self) -> int:
        return sum(one.slots for one in self.ready)

    @property
    def slots(self) -> int:
        """How many jobs the workers that claim can run at once, outgoing workers included."""
        return sum(
            one.slots for one in self.workers.values() if one.is_ready and not one.is_leaving
        )

    @property
    def active(self) -> int:
        """How many jobs run in the staying workers."""
        return sum(one.heartbeat.active for one in self.staying if one.heartbeat is not None)

    @property
    def all_busy(self) -> bool:
        """Whether all wanted workers are ready and none has a free slot."""
        if len(self.ready) < self.wanted:
            return False
        stuck = sum(one.heartbeat.stuck for one in self.ready if one.heartbeat is not None)
        return self.active + stuck >= self.capacity

    @property
    def totals(self) -> tuple[int, int]:
        """How many attempts have succeeded and failed, in all workers since the start."""
        heartbeats = [one.heartbeat for one in self.workers.values() if one.heartbeat is not None]
        completed = self._ended_totals[0] + sum(heartbeat.completed for heartbeat in heartbeats)
        return completed, self._ended_totals[1] + sum(heartbeat.failed for heartbeat in heartbeats)

    # Operations.

    async def keep(self) -> None:
        """Start missing workers and retire surplus ones, as `rules/scaling` decides."""
        plan = self._plan()
        if plan.stop:
            active = [
                (one.id, one.heartbeat.active if one.heartbeat else 0) for one in self.staying
            ]
            for id in to_retire(active, plan.stop):
                self.retire(self.workers[id], None, "fewer are enough")
        self._set_held(plan.held)
        starts = plan.start
        if starts and not self._closed and self._runtime.monotonic() >= self.starts_at:
            # While workers die before they are ready, start one at a time.
            if self._deaths.unready:
                starts = int(all(one.is_ready for one in self.staying))
            for _ in range(starts):
                await self._start_worker()

    @property
    def starts_at(self) -> float:
        """The earliest time at which the next worker may be started."""
        return may_start_at(self._deaths)

    def retire(self, handle: WorkerHandle, grace: float | None, why: str) -> None:
        if handle.leaving is None:
            self._events.emit(events.ProcessLeaving("", handle.id, why))
        handle.retire(grace, why, self._runtime.monotonic())
        self.changed.set()

    async def renew(self) -> None:
        """Replace every worker, one after the other.

        An old worker runs until its replacement is ready. Without room for one more process the old
        one ends first; the next one is replaced only when the others are ready.
        """
        for old in self.staying:
            while self._lacks_workers(old):
                await self.wait_for_change()
            if not old.stays or self._closed:
                continue
            old.outgoing = True
            self.changed.set()
            while self._lacks_workers(old) and not self._plan().retire_first:
                await self.wait_for_change()
            if old.id in self.workers and not self._closed:
                replaced = len(self.ready) >= self.wanted
                why = (
                    "it was replaced by a new worker"
                    if replaced
                    else "its process is needed for a new worker"
                )
                self.retire(old, None, why)

    def _lacks_workers(self, old: WorkerHandle) -> bool:
        """Return whether fewer workers than wanted are ready while the old one still exists."""
        return old.id in self.workers and not self._closed and len(self.ready) < self.wanted

    def _plan(self) -> Plan:
        return plan(self.settings, self.wanted, self._processes())

    def _processes(self) -> Processes:
        staying = len(self.staying)
        leaving = sum(one.is_leaving for one in self.workers.values())
        return Processes(staying, len(self.workers) - staying - leaving, leaving)

    def _set_held(self, held: int) -> None:
        """Record how many workers cannot be started yet; log it when that begins."""
        if held and not self.held and not self._closed:
            bounds = (self.settings.max_workers, self.settings.surge)
            why = held_text(*bounds, held, self._processes().leaving)
            _log.info("farm waiting missing=%d why=%r", held, why)
        self.held = held

    def watch(self) -> None:
        """Ping all workers; terminate and then kill hung ones."""
        now = self._runtime.monotonic()
        suspended_for = now - self._watched_at - LOST_FOR * self.settings.heartbeat_interval_s
        self._watched_at = now
        for handle in list(self.workers.values()):
            if suspended_for > 0 and handle.heard_at is not None:
                # This process was suspended, so missing heartbeats prove nothing.
                handle.heard_at = now
            handle.look()
            handle.ping()
            verdict, why = judge(handle.liveness_facts(), self.settings, now)
            if verdict is Verdict.TERMINATE:
                handle.terminated_at = now
                self.trouble(f"worker {handle.id} is replaced: {why}", handle.id)
                handle.terminate()
                self.changed.set()
            elif verdict is Verdict.KILL:
                handle.kill()

    def close(self, grace: float | None) -> None:
        """Start no more workers, and stop all within the grace."""
        self._closed, self.held = True, 0
        for handle in list(self.workers.values()):
            self.retire(handle, grace, "the farm stops")

    async def snapshot(self, handle: WorkerHandle, after: int, limit: int) -> Snapshot | None:
        """Return a worker's running and recently finished jobs; None if it does not answer."""
        number = next(self._questions)
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        handle.request_snapshot(number, after, limit)
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._asked[number]

    async def wait_for_change(self) -> None:
        """Wait for the next change of a worker."""
        self.changed.clear()
        await self.changed.wait()

    def trouble(self, text: str, worker: str | None = None, job: str | None = None) -> None:
        """Record, log and emit a trouble."""
        text = text[:LONGEST_TEXT]
        self.troubles.append(Trouble(self._runtime.wall(), text, worker, job))
        place = f"farm {self._start_message.farm}" if worker is None else f"worker {worker}"
        warn(f"{place}: {text}", events.FarmTrouble, self._events)
        self._events.emit(events.FarmTrouble("", text, worker, job))

    # Steps.

    async def _start_worker(self) -> None:
        id = f"{self._start_message.farm}.{next(self._numbers)}"
        now, wall = self._runtime.monotonic(), self._runtime.wall()
        handle = WorkerHandle(
            replace(self._start_message, worker=id, settings=self.settings), now, wall
        )
        try:
            await handle.start(self.relay)
        except OSError as error:
            self._deaths = died(self._deaths, False, now)
            self.trouble(f"no worker process can be started: {error}")
            return
        self.workers[id] = handle
        self._events.emit(events.ProcessStarted("", id, handle.pid))
        task = asyncio.get_running_loop().create_task(self._serve_worker(handle), name=id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closed:
            # The farm was stopped during the start; nothing runs in this worker yet.
            self.retire(handle, 0.0, "the farm stops")

    async def _serve_worker(self, handle: WorkerHandle) -> None:
        await handle.listen(self._handle_message, self._runtime.monotonic)
        del self.workers[handle.id]
        if handle.heartbeat is not None:
            self._ended_totals[0] += handle.heartbeat.completed
            self._ended_totals[1] += handle.heartbeat.failed
        last_output = ""
        if self._hides:
            # Output is hidden: the trouble quotes the end of it.
            last_output = await asyncio.to_thread(self.relay.last, handle.id, LAST_OUTPUT)
        self._report_end(handle, last_output)
        self.changed.set()

    def _report_end(self, handle: WorkerHandle, last_output: str) -> None:
        """Report how a process has ended, and have its leases reaped if that was not planned."""
        heartbeat = handle.heartbeat
        if handle.leaving is not None and (handle.said_goodbye or handle.code == 0):
            if not handle.said_goodbye:
                # Running code may have blocked its loop until the process exited.
                if handle.cut_short is None and heartbeat is not None and heartbeat.jobs:
                    jobs = [Unfinished(job.id, job.name) for job in heartbeat.jobs]
                    ids = tuple(job.id for job in heartbeat.jobs)
                    text = f"{cut_short_text(jobs)} (those with on_crash='fail' fail instead)"
                    self._cut_short(handle, ids, text)
                handle.handed_back = len(handle.cut_short or ())
                self._on_death()
            done = (0, 0) if heartbeat is None else (heartbeat.completed, heartbeat.failed)
            self._events.emit(events.ProcessEnded("", handle.id, *done, handle.handed_back))
            if handle.leaves_by_itself and not any(done):
                # Back off as after a death: the next worker may do the same, for ever.
                self._deaths = died(self._deaths, True, self._runtime.monotonic())
                self.trouble(
                    f"worker {handle.id} ended without running a job: {handle.leaving}", handle.id
                )
            return
        if not self._closed:
            was_ready = handle.is_ready or handle.leaving is not None
            self._deaths = died(self._deaths, was_ready, self._runtime.monotonic())
        why = handle.failure or last_output
        text = f"worker {handle.id} (process {handle.pid}) {ending(handle.code)}"
        self.trouble(f"{text}: {why}" if why else text, handle.id)
        self._on_death()

    def _cut_short(self, handle: WorkerHandle, handed_back: tuple[str, ...], text: str) -> None:
        """Report jobs that a worker could not finish before it had to end."""
        handle.cut_short = handed_back
        self.handed_back += handed_back
        self.trouble(text, handle.id)

    def _handle_message(self, handle: WorkerHandle, message: WorkerMessages) -> None:
        match message:
            case HeartbeatMessage():
                if message.ready and not handle.is_ready:
                    self._deaths = came_up(self._deaths)
                    took = self._runtime.monotonic() - handle.started_at
                    self._events.emit(events.ProcessReady("", handle.id, round(took, 3)))
                if message.leaving is not None and handle.leaving is None:
                    handle.leaves(message.leaving, self._runtime.monotonic())
                    handle.leaves_by_itself = True
                    self._events.emit(events.ProcessLeaving("", handle.id, message.leaving))
                handle.heartbeat = message
                for job in message.finished:
                    self.history.add(job)
            case TroubleReport(text, job):
                self.trouble(text, handle.id, job)
            case CutShort(handed_back, text):
                self._cut_short(handle, handed_back, text)
            case StartFailed(text):
                handle.failure = text
            case SnapshotAnswer(number, snapshot):
                future = self._asked.get(number)
                if future is not None and not future.done():
                    future.set_result(snapshot)
            case Goodbye(completed, failed, handed_back):
                handle.said_goodbye = True
                handle.handed_back = handed_back
                if handle.heartbeat is not None:
                    handle.heartbeat = replace(
                        handle.heartbeat, completed=completed, failed=failed, active=0
                    )
        self.changed.set()
