"""A worker that blocks its script until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from poolhand.durable.client.sync_ticket import has_loop
from poolhand.durable.connection.opening import ConnectionSlot
from poolhand.durable.worker.unfinished import draining_text, stopped_text, stopping_text
from poolhand.durable.worker.worker import Worker, WorkerReport
from poolhand.errors import UsageError
from poolhand.rules.values.escape import safe

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = {signal.SIGINT: "press Ctrl-C", signal.SIGTERM: "send SIGTERM"}
# Seconds, to record a clean exit for code that does not stop before its process ends.
RETURN_WITHIN = 0.5


def check_can_block() -> None:
    """Raise where a worker cannot block: on an event loop, or on a thread without signals."""
    if has_loop():
        raise UsageError(
            "run_worker would block the event loop that runs here; use `async with app.worker(…)`"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "run_worker handles signals, which only the main thread can do; in other threads use "
            "`async with app.worker(…)` under asyncio.run"
        )


def print_start(store: str, slots: int) -> None:
    """Print which store a worker serves, so that a wrong one is noticed at once."""
    many = "1 slot" if slots == 1 else f"{slots:,} slots"
    _print_error(f"starting a worker with {many}: {safe(store)}")


class SignalStop:
    """Stops a worker: the first signal begins its drain, the second one ends the drain.

    A third one ends the process as a crash does: there may be a job that blocks the event loop, and
    KeyboardInterrupt would make it fail.
    """

    def __init__(self, shift: Worker, drain_timeout: float, loop: AbstractEventLoop) -> None:
        self._shift = shift
        self._drain_timeout = drain_timeout
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._asked = asyncio.Event()
        self._started = self._draining = False
        self._count = 0

    def listen(self) -> None:
        for number in STOP_SIGNALS:
            before = signal.getsignal(number)
            # A process started in the background of a shell ignores Ctrl-C; it continues to.
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._handle)

    def restore(self) -> None:
        while self._before:
            number, before = self._before.popitem()
            # None: it was set by code that is not Python, and cannot be set again from here.
            if before is not None:
                signal.signal(number, before)

    async def run(self) -> WorkerReport:
        """Start the worker, wait for the first signal, drain."""
        self._task = asyncio.current_task()
        try:
            await self._shift.start()
        except asyncio.CancelledError:
            if not self._count:
                raise
            return WorkerReport(0, 0, 0, 0, 0.0)
        self._started = True
        if not self._count:
            await self._asked.wait()
        self._draining = True
        report = await self._shift.drain(0.0 if self._count > 1 else None)
        if self._shift.cut_short:
            seconds = self._drain_timeout if self._count < 2 else 0.0
            _print_error(f"stopped: {stopped_text(self._shift.cut_short, seconds)}")
        return report

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            for one in self._before:
                signal.signal(one, signal.SIG_DFL)
        if self._count > 2:
            # A third signal came while the second one was handled.
            signal.raise_signal(number)
        # Printed here, not on the loop: a job may block that.
        _print_error(self._text(signal.Signals(number)))
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._asked.set()
        if not self._started and self._task is not None:
            self._task.cancel()
        elif self._draining and self._count > 1:
            self._shift.hurry(0.0)

    def _text(self, number: signal.Signals) -> str:
        if not self._started:
            return "stopping: the worker has not started yet"
        running = self._shift.unfinished()
        if not running:
            return "stopping: no jobs are running"
        if self._count > 1:
            return f"stopping now: {stopping_text(running)}"
        waiting = draining_text(len(running), self._drain_timeout)
        return f"{waiting} ({AGAIN[number]} again to stop now)"


def run_until_signal(
    shift: Worker,
    drain_timeout: float,
    opening: ConnectionSlot,
    close: Callable[[], Awaitable[None]],
) -> WorkerReport:
    """Run a worker until a signal has stopped it, then close its store."""
    with asyncio.Runner() as runner:
        stop = SignalStop(shift, drain_timeout, runner.get_loop())
        # Before the loop runs: the runner replaces only Python's own SIGINT handler.
        stop.listen()
        try:
            return runner.run(_run_and_close(stop, opening, close))
        finally:
            stop.restore()


async def _run_and_close(
    stop: SignalStop, opening: ConnectionSlot, close: Callable[[], Awaitable[None]]
) -> WorkerReport:
    try:
        report = await stop.run()
        if report.stuck and opening.current is not None:
            opening.current.say_farewell(RETURN_WITHIN)
        return report
    finally:
        await close()


def _print_error(text: str) -> None:
    # A signal may come while this thread writes to stderr; without stderr the text is dropped.
    with suppress(RuntimeError, OSError, AttributeError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
