"""The fleet: all worker processes of a supervisor, kept at the wanted number."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Event, Task
from collections import deque
from collections.abc import Callable
from itertools import count

from msgspec.structs import replace

from poolhand.durable.worker.unfinished import Unfinished, cut_short_text
from poolhand.farm.history import History
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
from poolhand.farm.records import LONGEST_TEXT, MOST_TROUBLES, Snapshot, Trouble
from poolhand.farm.worker_handle import WorkerHandle
from poolhand.observe import events
from poolhand.observe.failures import warn
from poolhand.pool.slots.process_parent import ending
from poolhand.rules.scaling.liveness import Deaths, Verdict, came_up, died, judge, may_start_at
from poolhand.rules.scaling.worker_count import Plan, Processes, held_text, plan, to_dismiss
from poolhand.runtime import Runtime

LOST_FOR = 3  # heartbeat intervals without a check: this process was suspended meanwhile
ANSWER_WITHIN = 5.0
LAST_WORDS = 0.5  # seconds for reading the last output of a dead process

_log = logging.getLogger("poolhand")


class Fleet:
    """Starts, monitors and retires worker processes; lives on the supervisor's loop.

    `on_death` is called when a worker ends without having settled its jobs: its leases are to be
    reaped.
    """

    def __init__(
        self,
        employ: Start,
        runtime: Runtime,
        heard: events.Events,
        on_death: Callable[[], None],
        hides_output: bool = False,
    ) -> None:
        self.hired: dict[str, WorkerHandle] = {}
        self.wanted = employ.settings.min_workers
        self.held = 0
        self.settings = employ.settings
        self.changed = Event()
        self.troubles: deque[Trouble] = deque(maxlen=MOST_TROUBLES)
        self.history = History(employ.settings.task_history_max)
        self._employ = employ
        self._runtime = runtime
        self._events = heard
        self._on_death = on_death
        self._hides = hides_output
        self.relay = OutputRelay(shows=not hides_output)
        self._numbers, self._questions = count(1), count(1)
        self._deaths = Deaths()
        self._closed = False
        self._gone = [0, 0]
        self.handed_back: list[str] = []
        self._tasks: set[Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Snapshot]] = {}
        self._looked_at = runtime.monotonic()

    # State.

    @property
    def staying(self) -> list[WorkerHandle]:
        """The workers that are to stay, oldest first."""
        return [one for one in self.hired.values() if one.stays]

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
        return sum(one.slots for one in self.hired.values() if one.is_ready and not one.is_leaving)

    @property
    def active(self) -> int:
        """How many jobs run in the staying workers."""
        return sum(one.beat.active for one in self.staying if one.beat is not None)

    @property
    def all_busy(self) -> bool:
        """Whether all wanted workers are ready and none has a free slot."""
        if len(self.ready) < self.wanted:
            return False
        stuck = sum(one.beat.stuck for one in self.ready if one.beat is not None)
        return self.active + stuck >= self.capacity

    @property
    def totals(self) -> tuple[int, int]:
        """How many attempts have succeeded and failed, in all workers since the start."""
        beats = [one.beat for one in self.hired.values() if one.beat is not None]
        completed = self._gone[0] + sum(beat.completed for beat in beats)
        return completed, self._gone[1] + sum(beat.failed for beat in beats)

    # Operations.

    async def keep(self) -> None:
        """Start missing workers and retire surplus ones, as `rules/scaling` decides."""
        plan = self._plan()
        if plan.stop:
            active = [(one.id, one.beat.active if one.beat else 0) for one in self.staying]
            for id in to_dismiss(active, plan.stop):
                self.dismiss(self.hired[id], None, "fewer are enough")
        self._hold(plan.held)
        starts = plan.start
        if starts and not self._closed and self._runtime.monotonic() >= self.starts_at:
            # While workers die before they are ready, start one at a time.
            if self._deaths.unready:
                starts = int(all(one.is_ready for one in self.staying))
            for _ in range(starts):
                await self._hire()

    @property
    def starts_at(self) -> float:
        """The earliest time at which the next worker may be started."""
        return may_start_at(self._deaths)

    def dismiss(self, hired: WorkerHandle, grace: float | None, why: str) -> None:
        if hired.leaving is None:
            self._tell(events.ProcessLeaving("", hired.id, why))
        hired.dismiss(grace, why, self._runtime.monotonic())
        self.changed.set()

    async def renew(self) -> None:
        """Replace every worker, one after the other.

        An old worker runs until its replacement is ready. Without room for one more process the old
        one ends first; the next one is replaced only when the others are ready.
        """
        for old in self.staying:
            while self._awaits(old):
                await self.news()
            if not old.stays or self._closed:
                continue
            old.outgoing = True
            self.changed.set()
            while self._awaits(old) and not self._plan().retire_first:
                await self.news()
            if old.id in self.hired and not self._closed:
                replaced = len(self.ready) >= self.wanted
                why = "another one has taken its place" if replaced else "its place is needed"
                self.dismiss(old, None, why)

    def _awaits(self, old: WorkerHandle) -> bool:
        """Return whether fewer workers than wanted are ready while the old one still exists."""
        return old.id in self.hired and not self._closed and len(self.ready) < self.wanted

    def _plan(self) -> Plan:
        return plan(self.settings, self.wanted, self._processes())

    def _processes(self) -> Processes:
        staying = len(self.staying)
        leaving = sum(one.is_leaving for one in self.hired.values())
        return Processes(staying, len(self.hired) - staying - leaving, leaving)

    def _hold(self, held: int) -> None:
        """Record how many workers cannot be started yet; log it when that begins."""
        if held and not self.held and not self._closed:
            bounds = (self.settings.max_workers, self.settings.surge)
            why = held_text(*bounds, held, self._processes().leaving)
            _log.info("farm waiting missing=%d why=%r", held, why)
        self.held = held

    def watch(self) -> None:
        """Ping all workers; terminate and then kill hung ones."""
        now = self._runtime.monotonic()
        away = now - self._looked_at - LOST_FOR * self.settings.heartbeat_interval_s
        self._looked_at = now
        for hired in list(self.hired.values()):
            if away > 0 and hired.heard_at is not None:
                # This process was suspended, so missing heartbeats prove nothing.
                hired.heard_at = now
            hired.look()
            hired.show_life()
            verdict, why = judge(hired.sight(), self.settings, now)
            if verdict is Verdict.TERMINATE:
                hired.told_at = now
                self.trouble(f"worker {hired.id} is replaced: {why}", hired.id)
                hired.terminate()
                self.changed.set()
            elif verdict is Verdict.KILL:
                hired.kill()

    def close(self, grace: float | None) -> None:
        """Start no more workers, and stop all within the grace."""
        self._closed, self.held = True, 0
        for hired in list(self.hired.values()):
            self.dismiss(hired, grace, "the farm stops")

    async def snapshot(self, hired: WorkerHandle, after: int, limit: int) -> Snapshot | None:
        """Return a worker's running and recently finished jobs; None if it does not answer."""
        number = next(self._questions)
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        hired.ask(number, after, limit)
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._asked[number]

    async def news(self) -> None:
        """Wait for the next change of a worker."""
        self.changed.clear()
        await self.changed.wait()

    def trouble(self, text: str, worker: str | None = None, job: str | None = None) -> None:
        """Record, log and emit a trouble."""
        text = text[:LONGEST_TEXT]
        self.troubles.append(Trouble(self._runtime.wall(), text, worker, job))
        place = f"farm {self._employ.farm}" if worker is None else f"worker {worker}"
        warn(f"{place}: {text}", events.FarmTrouble, self._events)
        self._tell(events.FarmTrouble("", text, worker, job))

    # Steps.

    async def _hire(self) -> None:
        id = f"{self._employ.farm}.{next(self._numbers)}"
        now, wall = self._runtime.monotonic(), self._runtime.wall()
        hired = WorkerHandle(replace(self._employ, worker=id, settings=self.settings), now, wall)
        try:
            await hired.start(self.relay)
        except OSError as error:
            self._deaths = died(self._deaths, False, now)
            self.trouble(f"no worker process can be started: {error}")
            return
        self.hired[id] = hired
        self._tell(events.ProcessStarted("", id, hired.pid))
        task = asyncio.get_running_loop().create_task(self._attend(hired), name=id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closed:
            # The farm was stopped during the start; nothing runs in this worker yet.
            self.dismiss(hired, 0.0, "the farm stops")

    async def _attend(self, hired: WorkerHandle) -> None:
        await hired.listen(self._hear, self._runtime.monotonic)
        del self.hired[hired.id]
        if hired.beat is not None:
            self._gone[0] += hired.beat.completed
            self._gone[1] += hired.beat.failed
        last_words = ""
        if self._hides:
            # Output is hidden: the trouble quotes the end of it.
            last_words = await asyncio.to_thread(self.relay.last, hired.id, LAST_WORDS)
        self._part(hired, last_words)
        self.changed.set()

    def _part(self, hired: WorkerHandle, last_words: str) -> None:
        """Report how a process has ended, and have its leases reaped if that was not planned."""
        beat = hired.beat
        if hired.leaving is not None and (hired.said_bye or hired.code == 0):
            if not hired.said_bye:
                # Running code may have blocked its loop until the process exited.
                if hired.cut_short is None and beat is not None and beat.jobs:
                    jobs = [Unfinished(job.id, job.name) for job in beat.jobs]
                    ids = tuple(job.id for job in beat.jobs)
                    text = f"{cut_short_text(jobs)} (those with on_crash='fail' fail instead)"
                    self._cut_short(hired, ids, text)
                hired.handed_back = len(hired.cut_short or ())
                self._on_death()
            done = (0, 0) if beat is None else (beat.completed, beat.failed)
            self._tell(events.ProcessEnded("", hired.id, *done, hired.handed_back))
            if hired.leaves_by_itself and not any(done):
                # Back off as after a death: the next worker may do the same, for ever.
                self._deaths = died(self._deaths, True, self._runtime.monotonic())
                self.trouble(f"worker {hired.id} has run nothing: {hired.leaving}", hired.id)
            return
        if not self._closed:
            was_ready = hired.is_ready or hired.leaving is not None
            self._deaths = died(self._deaths, was_ready, self._runtime.monotonic())
        why = hired.failure or last_words
        text = f"worker {hired.id} (process {hired.pid}) {ending(hired.code)}"
        self.trouble(f"{text}: {why}" if why else text, hired.id)
        self._on_death()

    def _cut_short(self, hired: WorkerHandle, handed_back: tuple[str, ...], text: str) -> None:
        """Report jobs that a worker could not finish before it had to end."""
        hired.cut_short = handed_back
        self.handed_back += handed_back
        self.trouble(text, hired.id)

    def _hear(self, hired: WorkerHandle, word: WorkerMessages) -> None:
        match word:
            case HeartbeatMessage():
                if word.ready and not hired.is_ready:
                    self._deaths = came_up(self._deaths)
                    took = self._runtime.monotonic() - hired.started_at
                    self._tell(events.ProcessReady("", hired.id, round(took, 3)))
                if word.leaving is not None and hired.leaving is None:
                    hired.leaves(word.leaving, self._runtime.monotonic())
                    hired.leaves_by_itself = True
                    self._tell(events.ProcessLeaving("", hired.id, word.leaving))
                hired.beat = word
                for job in word.finished:
                    self.history.add(job)
            case TroubleReport(text, job):
                self.trouble(text, hired.id, job)
            case CutShort(handed_back, text):
                self._cut_short(hired, handed_back, text)
            case StartFailed(text):
                hired.failure = text
            case SnapshotAnswer(number, snapshot):
                future = self._asked.get(number)
                if future is not None and not future.done():
                    future.set_result(snapshot)
            case Goodbye(completed, failed, handed_back):
                hired.said_bye = True
                hired.handed_back = handed_back
                if hired.beat is not None:
                    hired.beat = replace(hired.beat, completed=completed, failed=failed, active=0)
        self.changed.set()

    def _tell(self, event: events.Event) -> None:
        self._events.emit(event)
