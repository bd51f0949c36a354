"""How an app runs a worker: warm-ups before its jobs, and signals that stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from inspect import Parameter, isawaitable, signature
from types import FrameType
from typing import Any, NamedTuple

from poolhand.durable.calls.task_registry import found_at
from poolhand.durable.client.ticket import has_loop
from poolhand.durable.connection.connection import ConnectionSlot
from poolhand.durable.worker.running_claim import draining_text, stopped_text, stopping_text
from poolhand.durable.worker.worker import Worker, WorkerReport
from poolhand.errors import UsageError
from poolhand.pool.slots.process_parent import pack
from poolhand.rules.plain import safe
from poolhand.rules.validation import shown

MAIN = ("__main__", "__mp_main__")  # a child imports the script of its parent under the second name

Call = Callable[[], Any]
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

    def __init__(self, worker: Worker, drain_timeout: float, loop: AbstractEventLoop) -> None:
        self._worker = worker
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
            await self._worker.start()
        except asyncio.CancelledError:
            if not self._count:
                raise
            return WorkerReport(0, 0, 0, 0, 0.0)
        self._started = True
        if not self._count:
            await self._asked.wait()
        self._draining = True
        report = await self._worker.drain(0.0 if self._count > 1 else None)
        if self._worker.cut_short:
            seconds = self._drain_timeout if self._count < 2 else 0.0
            _print_error(f"stopped: {stopped_text(self._worker.cut_short, seconds)}")
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
            self._worker.hurry(0.0)

    def _text(self, number: signal.Signals) -> str:
        if not self._started:
            return "stopping: the worker has not started yet"
        running = self._worker.unfinished()
        if not running:
            return "stopping: no jobs are running"
        if self._count > 1:
            return f"stopping now: {stopping_text(running)}"
        waiting = draining_text(len(running), self._drain_timeout)
        return f"{waiting} ({AGAIN[number]} again to stop now)"


def run_until_signal(
    worker: Worker,
    drain_timeout: float,
    opening: ConnectionSlot,
    close: Callable[[], Awaitable[None]],
) -> WorkerReport:
    """Run a worker until a signal has stopped it, then close its store."""
    with asyncio.Runner() as runner:
        stop = SignalStop(worker, drain_timeout, runner.get_loop())
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
            opening.current.mark_clean_exit(RETURN_WITHIN)
        return report
    finally:
        await close()


def _print_error(text: str) -> None:
    # A signal may come while this thread writes to stderr; without stderr the text is dropped.
    with suppress(RuntimeError, OSError, AttributeError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class WarmUpName(NamedTuple):
    """How a child finds a warm-up: by its number among those of its name, or by its name alone.

    The number counts the warm-ups that importing the module registers under the name; it also finds
    lambdas and methods.
    """

    module: str
    path: str
    number: int
    is_findable: bool


# All warm-ups of this process, of any app, as their modules have registered them.
_registered: dict[tuple[str, str], list[Call]] = {}


def _check_parameters(call: Call) -> None:
    """Raise if a warm-up needs arguments: a worker has none to give."""
    try:
        parameters = signature(call).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [
        one.name
        for one in parameters
        if one.default is Parameter.empty
        and one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            f"warm_up({shown(call)}) is not allowed; it is called without arguments, and needs "
            f"{', '.join(needed)}: give {'it a default' if len(needed) == 1 else 'them defaults'}"
        )


class WarmUps:
    """The warm-ups of an app, in the order in which they were registered."""

    def __init__(self) -> None:
        self._calls: list[tuple[WarmUpName, Call]] = []
        self._begun: dict[tuple[int, int], Future[bool]] = {}

    def add(self, call: Call) -> None:
        if not callable(call):
            raise UsageError(f"warm_up({shown(call)}) is not allowed; give a function")
        _check_parameters(call)
        module = getattr(call, "__module__", None) or ""
        module = MAIN[0] if module in MAIN else module
        path = getattr(call, "__qualname__", None) or type(call).__qualname__
        known = _registered.setdefault((module, path), [])
        self._calls.append((WarmUpName(module, path, len(known), "<" not in path), call))
        known.append(call)

    async def run(self) -> None:
        """Run the warm-ups that this process has not run yet; concurrent callers wait for them."""
        for number, (_, call) in enumerate(tuple(self._calls)):
            while not await self._done(number, call):
                # The caller that ran it got its error; run it here.
                pass

    async def _done(self, number: int, call: Call) -> bool:
        key = (os.getpid(), number)
        mine: Future[bool] = Future()
        found = self._begun.setdefault(key, mine)
        if found is not mine:
            return await asyncio.shield(asyncio.wrap_future(found))
        try:
            made = call()
            if isawaitable(made):
                await made
        except BaseException:
            del self._begun[key]
            mine.set_result(False)
            raise
        mine.set_result(True)
        return True

    def packed(self) -> bytes | None:
        """Return the call that runs the warm-ups in a child; None if there are none."""
        names = tuple(name for name, _ in self._calls)
        return pack(run_apart, (names,), {}) if names else None


def run_apart(names: tuple[tuple[str, str, int, bool], ...]) -> None:
    """Run the warm-ups of these names in a child, which has to find them first."""
    found = [WarmUpName(*name) for name in names]
    for name in found:
        if name.module:
            import_module(name.module)
    for name in found:
        made = _found(name)()
        if isawaitable(made):
            asyncio.run(_await(made))


def _found(name: WarmUpName) -> Call:
    known = _registered.get((name.module, name.path), [])
    if name.number < len(known):
        return known[name.number]
    try:
        if name.is_findable:
            return found_at(name.module, name.path)
    except AttributeError:
        pass
    raise UsageError(
        f"the warm-up {name.module}.{name.path} is not known to a process of its own, which only "
        "imports its module: register it at the top level of that module"
    )


async def _await(made: Any) -> Any:
    return await made
