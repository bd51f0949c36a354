"""The post of a worker process: a thread that shows its supervisor life, and hears its orders.

It has a thread of its own, so that neither a module that takes long to import nor a job that blocks
the event loop makes the worker look dead. When the supervisor is gone the worker is told to stop at
once; when it only says nothing, to drain. What does not end in time is ended from here.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Protocol

from poolhand.farm.history import History, running
from poolhand.farm.protocol import (
    CHUNK,
    Goodbye,
    HeartbeatMessage,
    MessageBuffer,
    Ping,
    SnapshotAnswer,
    SnapshotRequest,
    Start,
    Stop,
    SupervisorMessages,
    WorkerMessages,
    packed,
)
from poolhand.farm.records import MOST_JOBS
from poolhand.rules.job import Job
from poolhand.rules.scaling.liveness import is_silent
from poolhand.runtime import Runtime, resident_bytes

LATE = 0.5  # seconds after the end of a grace, when a process that is still there is ended
FAREWELL_SECONDS = 0.3  # for saying that what is cut short is not its own fault
ORPHAN_SECONDS = 3.0  # what a worker has that lost its supervisor, to give its jobs back
END_SECONDS = 2.0  # between the last word and the end of the process
MOST_FINISHED = 50  # jobs told in one beat
SEND_SECONDS = 5.0
LOOK_EVERY = 1.0  # whether the time has come to end, however rarely it beats


class WorkerAtWork(Protocol):
    """What can be seen of a worker from another thread."""

    @property
    def running(self) -> int: ...

    @property
    def stuck(self) -> int: ...

    @property
    def wedged(self) -> bool: ...

    @property
    def spent(self) -> bool: ...

    @property
    def attempts(self) -> tuple[int, int]: ...

    def jobs(self) -> list[Job]: ...


class Pulse:
    """Notices, from outside, for how long an event loop has not turned."""

    def __init__(self, loop: AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._asked_at: float | None = None

    def look(self) -> float:
        """Return for how many seconds the loop has not answered, and ask it again if it has."""
        if self._asked_at is not None:
            return self._now() - self._asked_at
        self._asked_at = self._now()
        with suppress(RuntimeError):
            # The loop is closed: nobody waits for it any more.
            self._loop.call_soon_threadsafe(self._turn)
        return 0.0

    def _turn(self) -> None:
        self._asked_at = None


class ControlThread:
    """Speaks with the supervisor, on a thread of its own, from the first moment of the process."""

    def __init__(self, link: socket.socket, runtime: Runtime) -> None:
        self._link = link
        self._now = runtime.monotonic
        self._inbox = MessageBuffer()
        self._sending, self._beating = Lock(), Lock()
        self._open = self._hears = True
        self._nothing = Event()
        self._early: list[SupervisorMessages] = []
        self.employ = self._first_order()
        settings = self.employ.settings
        self.history = History(settings.task_history_max)
        self._settings = settings
        self._interval = settings.heartbeat_interval_s
        self._heard_at = self._looked_at = self._now()
        self._beats_at = 0.0
        self._told = 0
        self._pulses: list[Pulse] = []
        self._worker: WorkerAtWork | None = None
        self._on_stop: Callable[[Stop], None] | None = None
        self._farewell: Callable[[float], None] | None = None
        self._leaving: Stop | None = None
        self._ends_at: float | None = None

    def start(self) -> None:
        Thread(target=self._serve, name="poolhand-post", daemon=True).start()

    def watch(self, *loops: AbstractEventLoop) -> None:
        """Tell of these loops when they do not turn."""
        self._pulses = [Pulse(loop, self._now) for loop in loops]

    def ready(
        self,
        worker: WorkerAtWork,
        on_stop: Callable[[Stop], None],
        farewell: Callable[[float], None],
    ) -> None:
        """Tell that the worker takes jobs.

        Called on the thread of the post: `on_stop` when it shall stop, `farewell` before the
        process is ended under running code.
        """
        self._on_stop = on_stop
        self._farewell = farewell
        # Last: from here on it is not ended, but told to stop.
        self._worker = worker
        self._beat()

    def say(self, word: WorkerMessages) -> None:
        """Send a word; from any thread. A supervisor that is gone hears nothing."""
        with self._sending:
            if self._open:
                try:
                    self._link.sendall(packed(word))
                except OSError:
                    # Half of it may be sent: nothing that follows could be understood.
                    self._open = False

    def leave(self, grace: float | None, why: str) -> None:
        """Have the worker stop, unless it does so before that; from any thread."""
        self._stop(Stop(self.employ.farm, grace, why))

    @property
    def is_leaving(self) -> bool:
        """Whether the worker was told to stop."""
        return self._leaving is not None

    def end_soon(self) -> None:
        """Have the process ended soon, whatever still keeps it."""
        self._ends_at = min(self._ends_at or float("inf"), self._now() + END_SECONDS)

    # The thread.

    def _serve(self) -> None:
        for order in self._early:
            self._obey(order)
        while True:
            self._listen(self._pause())
            now = self._now()
            if self._ends_at is not None and now >= self._ends_at:
                if self._farewell is not None:
                    self._farewell(FAREWELL_SECONDS)
                _exit()
            if now >= self._beats_at:
                self._beats_at = now + self._interval
                self._beat()
                self._look(now)

    def _pause(self) -> float:
        """Return how long nothing is to be done, unless something is heard."""
        # Ended at the moment it has to: the supervisor kills soon after the end of a grace.
        due = min(self._beats_at, self._ends_at or self._beats_at)
        return max(0.0, min(LOOK_EVERY, due - self._now()))

    def _listen(self, seconds: float) -> None:
        if not self._hears:
            self._nothing.wait(seconds)
            return
        ready, _, _ = select.select([self._link], [], [], seconds)
        if not ready:
            return
        try:
            data = self._link.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._orphaned()
            return
        self._heard_at = self._now()
        for order in self._inbox.from_supervisor(data):
            self._obey(order)

    def _obey(self, order: SupervisorMessages) -> None:
        match order:
            case Stop():
                self._stop(order)
            case SnapshotRequest(number, after, limit):
                jobs = running(self._worker.jobs()) if self._worker is not None else ()
                me = self.employ
                found = self.history.snapshot(me.farm, me.worker, jobs, after, limit)
                self.say(SnapshotAnswer(number, found))
            case Ping() | Start():
                pass

    def _stop(self, stop: Stop) -> None:
        if stop.farm != self.employ.farm:
            return  # Somebody else's.
        if self._leaving is not None and not _is_sooner(stop, self._leaving):
            return
        self._leaving = stop
        if stop.grace is not None:
            self._ends_at = self._now() + stop.grace + LATE
        if self._worker is None:
            # Nothing runs yet, and nothing shall.
            _exit()
        if self._on_stop is not None:
            self._on_stop(stop)
        self._beats_at = 0.0

    def _orphaned(self) -> None:
        """Stop at once: who started this process is gone, and nobody else would end it."""
        self._stop(Stop(self.employ.farm, 0.0, "the supervisor is gone"))
        self._ends_at = min(self._ends_at or float("inf"), self._now() + ORPHAN_SECONDS)
        self._open = self._hears = False

    def _look(self, now: float) -> None:
        """Leave if the supervisor is silent, or if this process has come to an end of its own."""
        # While this thread could not run, nobody could be heard.
        self._heard_at += max(0.0, now - self._looked_at - 2 * self._interval)
        self._looked_at = now
        worker, settings = self._worker, self._settings
        grace = settings.worker_shutdown_grace_s
        if is_silent(self._heard_at, settings, now):
            self.leave(grace, "the supervisor is silent")
        if worker is None:
            return
        if worker.wedged:
            self.leave(settings.hard_exit_after_s, "a job did not stop at its hard timeout")
        limit = settings.max_memory_mb_per_worker
        if limit and resident_bytes() > limit * 1024 * 1024:
            self.leave(None, f"more than {limit} MB of memory")
        if worker.spent:
            self.leave(None, f"{settings.max_jobs_per_worker} jobs are done")

    def bye(self, word: Goodbye) -> None:
        """Say the last words: how it stands at the end, and that all is written."""
        self._beat()
        self.say(word)

    def _beat(self) -> None:
        worker, leaving = self._worker, self._leaving
        completed, failed = (0, 0) if worker is None else worker.attempts
        with self._beating:
            # The last beat comes from another thread.
            ended, self._told = self.history.newest(self._told, MOST_FINISHED)
        self.say(
            HeartbeatMessage(
                ready=worker is not None,
                leaving=None if leaving is None else leaving.why,
                active=0 if worker is None else worker.running,
                stuck=0 if worker is None else worker.stuck,
                completed=completed,
                failed=failed,
                memory=resident_bytes(),
                blocked=max((pulse.look() for pulse in self._pulses), default=0.0),
                jobs=() if worker is None else running(worker.jobs()[:MOST_JOBS]),
                finished=ended,
            )
        )

    def _first_order(self) -> Start:
        while True:
            data = self._link.recv(CHUNK)
            if not data:
                raise EOFError("the supervisor is gone")
            orders = self._inbox.from_supervisor(data)
            if orders:
                first = orders[0]
                assert isinstance(first, Start)
                self._early = orders[1:]
                self._link.settimeout(SEND_SECONDS)
                return first


def _is_sooner(new: Stop, old: Stop) -> bool:
    if new.grace is None:
        return False
    return old.grace is None or new.grace < old.grace


def _exit() -> None:
    """End the process now: whatever it still runs goes back when its lease is taken."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
