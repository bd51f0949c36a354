"""The supervisor's handle on one worker process: start it, exchange messages, stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from poolhand.farm.output_relay import OutputRelay
from poolhand.farm.protocol import (
    CHUNK,
    HeartbeatMessage,
    MessageBuffer,
    Ping,
    SnapshotRequest,
    Start,
    Stop,
    SupervisorMessages,
    WorkerMessages,
    packed,
)
from poolhand.farm.records import WorkerRecord, WorkerState
from poolhand.rules.scaling.worker_count import LivenessFacts

ENTRY = "poolhand.worker_process"
GONE_EVERY = 0.02  # seconds between polls of a process that has closed its pipe
GONE_WITHIN = 5.0  # seconds until such a process is killed


class WorkerHandle:
    """One worker process and the pipe to it; lives on the supervisor's loop.

    An `outgoing` worker runs on until its replacement is ready.
    """

    def __init__(self, start_message: Start, now: float, wall: datetime) -> None:
        self.id = start_message.worker
        self.started_at = now
        self.heard_at: float | None = None
        self.terminated_at: float | None = None
        self.heartbeat: HeartbeatMessage | None = None
        self.outgoing = False
        self.leaving: str | None = None
        self.leaving_at: float | None = None
        self.leaves_by_itself = False
        self.failure: str | None = None
        self.said_goodbye = False
        self.handed_back = 0
        self.cut_short: tuple[str, ...] | None = None
        self.code: int | None = None
        self.pid = 0
        self._start_message = start_message
        self._wall = wall
        self._process: subprocess.Popen[bytes] | None = None
        self._seen_dead = False
        self._reader: StreamReader | None = None
        self._writer: StreamWriter | None = None

    async def start(self, relay: OutputRelay) -> None:
        """Start the process; on the main thread, as a fork from another may copy held locks."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _spawn(theirs.fileno(), self.id, relay)
            self.pid = self._process.pid
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self.send(self._start_message)

    async def listen(
        self, on_message: Callable[[WorkerHandle, WorkerMessages], None], now: Callable[[], float]
    ) -> None:
        """Receive its messages until the process has ended."""
        assert self._reader is not None
        inbox = MessageBuffer()
        try:
            while data := await self._reader.read(CHUNK):
                self.heard_at = now()
                for message in inbox.from_worker(data):
                    on_message(self, message)
        except OSError:
            pass  # The worker's end of the pipe is closed.
        except msgspec.MsgspecError as error:
            # Another version of poolhand, or a job that wrote to the pipe.
            self.failure = f"it sent a message that cannot be decoded: {error}"
            self.kill()
        self.code = await self._ended()
        assert self._writer is not None
        self._writer.close()

    async def _ended(self) -> int:
        """Wait for the exit of a process that has closed its pipe; kill it if that takes long."""
        assert self._process is not None
        looks = 0
        while (code := self._process.poll()) is None:
            await asyncio.sleep(GONE_EVERY)
            looks += 1
            if looks * GONE_EVERY >= GONE_WITHIN:
                self.kill()
        return code

    def look(self) -> None:
        """Close the pipe if the process has ended while a child of it keeps the pipe open."""
        if self._process is None or self._writer is None or self._process.poll() is None:
            return
        if self._seen_dead:
            self._writer.transport.abort()
        # Close at the second look: by then its last messages have been read.
        self._seen_dead = True

    def send(self, message: SupervisorMessages) -> None:
        """Send a message; a closed pipe is ignored."""
        if self._writer is not None and not self._writer.is_closing():
            with suppress(OSError):
                self._writer.write(packed(message))

    def ping(self) -> None:
        self.send(Ping())

    def leaves(self, why: str, now: float) -> None:
        """Record that it claims no more jobs; the first reason counts."""
        if self.leaving is None:
            self.leaving, self.leaving_at = why, now

    def retire(self, grace: float | None, why: str, now: float) -> None:
        """Send the message to claim no more jobs, finish the running ones, and exit."""
        self.leaves(why, now)
        self.send(Stop(self._start_message.farm, grace, why))

    def request_snapshot(self, number: int, after: int, limit: int) -> None:
        self.send(SnapshotRequest(number, after, limit))

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self.code is None:
            # send_signal polls first, so it never signals a reused pid.
            self._process.send_signal(number)

    @property
    def is_ready(self) -> bool:
        return self.heartbeat is not None and self.heartbeat.ready

    @property
    def stays(self) -> bool:
        """Whether it counts towards the wanted number: it is neither leaving nor outgoing."""
        return not self.is_leaving and not self.outgoing

    @property
    def is_leaving(self) -> bool:
        """Whether it claims no more jobs while its process still exists."""
        return self.leaving is not None or self.terminated_at is not None

    @property
    def slots(self) -> int:
        return self._start_message.settings.prefetch_per_worker

    def liveness_facts(self) -> LivenessFacts:
        blocked = 0.0 if self.heartbeat is None else self.heartbeat.blocked
        return LivenessFacts(self.started_at, self.heard_at, self.terminated_at, blocked)

    @property
    def state(self) -> WorkerState:
        if self.terminated_at is not None:
            return WorkerState.HUNG
        if self.leaving is not None:
            return WorkerState.LEAVING
        return WorkerState.READY if self.is_ready else WorkerState.STARTING

    def record(self, now: float) -> WorkerRecord:
        """Return its part of the farm's record."""
        heartbeat = self.heartbeat or _NOTHING
        heard_at = self.started_at if self.heard_at is None else self.heard_at
        return WorkerRecord(
            id=self.id,
            pid=self.pid,
            state=self.state,
            slots=self.slots,
            active=heartbeat.active,
            stuck=heartbeat.stuck,
            completed=heartbeat.completed,
            failed=heartbeat.failed,
            started_at=self._wall,
            heard=round(now - heard_at, 1),
            memory=heartbeat.memory,
            blocked=round(heartbeat.blocked, 1),
            jobs=heartbeat.jobs,
            leaving_at=self._leaving_at(),
            leaving_why=self.leaving,
        )

    def _leaving_at(self) -> datetime | None:
        since = self.leaving_at if self.terminated_at is None else self.terminated_at
        return None if since is None else self._wall + timedelta(seconds=since - self.started_at)


def _spawn(pipe: int, id: str, relay: OutputRelay) -> subprocess.Popen[bytes]:
    output, errors = relay.open(id)
    try:
        return subprocess.Popen(  # noqa: S603 - our own module, by the interpreter that runs
            # The id is an argument so that `ps` shows it.
            [sys.executable, "-m", ENTRY, str(pipe), id],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            pass_fds=[pipe],
            # A group of its own: Ctrl-C in a terminal must reach the supervisor alone.
            process_group=0,
        )
    finally:
        os.close(output)
        os.close(errors)


_NOTHING = HeartbeatMessage(False, None, 0, 0, 0, 0, 0, 0.0)
