"""The control thread of a worker process: sends heartbeats to the supervisor, receives orders.

It is a thread of its own, so that neither a slow import nor a job that blocks the event loop makes
the worker look dead. When the supervisor has died, it stops the worker at once; when the supervisor
is only silent, it drains the worker. It ends the process if that takes too long.
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
from poolhand.farm.records import MOST_JOBS, History, running
from poolhand.rules.job import Job
from poolhand.rules.scaling.worker_count import is_silent
from poolhand.runtime import Runtime, resident_bytes

LATE = 0.5  # seconds after the grace at which a process that still runs exits hard
CLEAN_EXIT_SECONDS = 0.3  # for the clean exit marker, which keeps attempts from being charged
ORPHAN_SECONDS = 3.0  # for handing jobs back after the supervisor has died
END_SECONDS = 2.0  # between the last message and a hard exit of the process
MOST_FINISHED = 50  # finished jobs in one heartbeat
SEND_SECONDS = 5.0
LOOK_EVERY = 1.0  # most seconds between checks of the deadline, however long the interval


class WorkerAtWork(Protocol):
    """The state of a worker that other threads may read."""

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
    """Measures from another thread for how long an event loop has been blocked."""

    def __init__(self, loop: AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._asked_at: float | None = None

    def look(self) -> float:
        """Return for how many seconds the loop has been blocked; start the next probe if not."""
        if self._asked_at is not None:
            return self._now() - self._asked_at
        self._asked_at = self._now()
        with suppress(RuntimeError):
            # A closed loop needs no watching.
            self._loop.call_soon_threadsafe(self._answer_probe)
        return 0.0

    def _answer_probe(self) -> None:
        self._asked_at = None


class ControlThread:
    """Exchanges messages with the supervisor, on its own thread, from the process's start."""

    def __init__(self, link: socket.socket, runtime: Runtime) -> None:
        self._link = link
        self._now = runtime.monotonic
        self._inbox = MessageBuffer()
        self._send_lock, self._heartbeat_lock = Lock(), Lock()
        self._open = self._hears = True
        self._nothing = Event()
        self._early: list[SupervisorMessages] = []
        self.start_message = self._first_message()
        settings = self.start_message.settings
        self.history = History(settings.task_history_max)
        self._settings = settings
        self._interval = settings.heartbeat_interval_s
        self._heard_at = self._looked_at = self._now()
        self._heartbeat_at = 0.0
        self._reported = 0
        self._pulses: list[Pulse] = []
        self._worker: WorkerAtWork | None = None
        self._on_stop: Callable[[Stop], None] | None = None
        self._clean_exit: Callable[[float], None] | None = None
        self._leaving: Stop | None = None
        self._ends_at: float | None = None

    def start(self) -> None:
        Thread(target=self._serve, name="poolhand-control", daemon=True).start()

    def watch(self, *loops: AbstractEventLoop) -> None:
        """Report in heartbeats for how long these loops have been blocked."""
        self._pulses = [Pulse(loop, self._now) for loop in loops]

    def ready(
        self,
        worker: WorkerAtWork,
        on_stop: Callable[[Stop], None],
        clean_exit: Callable[[float], None],
    ) -> None:
        """Report that the worker claims jobs.

        Both callbacks are called on the control thread: `on_stop` when the worker has to stop,
        `clean_exit` before a hard exit with code still running.
        """
        self._on_stop = on_stop
        self._clean_exit = clean_exit
        # Set last: from here on a Stop calls `on_stop` instead of exiting the process.
        self._worker = worker
        self._send_heartbeat()

    def send(self, message: WorkerMessages) -> None:
        """Send a message; from any thread. A closed pipe is ignored."""
        with self._send_lock:
            if self._open:
                try:
                    self._link.sendall(packed(message))
                except OSError:
                    # Half of it may be sent: later messages could not be decoded.
                    self._open = False

    def leave(self, grace: float | None, why: str) -> None:
        """Stop the worker, unless it already stops within less; from any thread."""
        self._stop(Stop(self.start_message.farm, grace, why))

    @property
    def is_leaving(self) -> bool:
        """Whether the worker has been stopped."""
        return self._leaving is not None

    def end_soon(self) -> None:
        """Exit the process soon, even if something still runs."""
        self._ends_at = min(self._ends_at or float("inf"), self._now() + END_SECONDS)

    # The thread.

    def _serve(self) -> None:
        for message in self._early:
            self._handle(message)
        while True:
            self._listen(self._pause())
            now = self._now()
            if self._ends_at is not None and now >= self._ends_at:
                if self._clean_exit is not None:
                    self._clean_exit(CLEAN_EXIT_SECONDS)
                _exit()
            if now >= self._heartbeat_at:
                self._heartbeat_at = now + self._interval
                self._send_heartbeat()
                self._look(now)

    def _pause(self) -> float:
        """Return how long to wait for messages before the next thing is due."""
        # Exit exactly on time: the supervisor kills soon after the grace.
        due = min(self._heartbeat_at, self._ends_at or self._heartbeat_at)
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
        for message in self._inbox.from_supervisor(data):
            self._handle(message)

    def _handle(self, message: SupervisorMessages) -> None:
        match message:
            case Stop():
                self._stop(message)
            case SnapshotRequest(number, after, limit):
                jobs = running(self._worker.jobs()) if self._worker is not None else ()
                me = self.start_message
                found = self.history.snapshot(me.farm, me.worker, jobs, after, limit)
                self.send(SnapshotAnswer(number, found))
            case Ping() | Start():
                pass

    def _stop(self, stop: Stop) -> None:
        if stop.farm != self.start_message.farm:
            return  # Meant for another farm.
        if self._leaving is not None and not _is_sooner(stop, self._leaving):
            return
        self._leaving = stop
        if stop.grace is not None:
            self._ends_at = self._now() + stop.grace + LATE
        if self._worker is None:
            # No job runs yet.
            _exit()
        if self._on_stop is not None:
            self._on_stop(stop)
        self._heartbeat_at = 0.0

    def _orphaned(self) -> None:
        """Stop at once: the supervisor has died, and nothing else would end this process."""
        self._stop(Stop(self.start_message.farm, 0.0, "the supervisor has died"))
        self._ends_at = min(self._ends_at or float("inf"), self._now() + ORPHAN_SECONDS)
        self._open = self._hears = False

    def _look(self, now: float) -> None:
        """Leave if the supervisor is silent, or if this process has reached one of its limits."""
        # Do not count the time in which this thread could not run and receive.
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

    def say_goodbye(self, message: Goodbye) -> None:
        """Send the last messages: a final heartbeat, and that all jobs are settled."""
        self._send_heartbeat()
        self.send(message)

    def _send_heartbeat(self) -> None:
        worker, leaving = self._worker, self._leaving
        completed, failed = (0, 0) if worker is None else worker.attempts
        with self._heartbeat_lock:
            # The last heartbeat is sent by another thread.
            ended, self._reported = self.history.newest(self._reported, MOST_FINISHED)
        self.send(
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

    def _first_message(self) -> Start:
        while True:
            data = self._link.recv(CHUNK)
            if not data:
                raise EOFError("the supervisor has died")
            messages = self._inbox.from_supervisor(data)
            if messages:
                first = messages[0]
                assert isinstance(first, Start)
                self._early = messages[1:]
                self._link.settimeout(SEND_SECONDS)
                return first


def _is_sooner(new: Stop, old: Stop) -> bool:
    if new.grace is None:
        return False
    return old.grace is None or new.grace < old.grace


def _exit() -> None:
    """Exit the process now: jobs it still runs go back to the queue when its lease is reaped."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
