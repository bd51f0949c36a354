"""An event loop whose schedule is determined by a seed.

One seed is one interleaving, whatever PYTHONHASHSEED and the addresses of objects are, as long as
the program itself iterates over no set of strings or plain objects. `asyncio.as_completed` does
that with bare coroutines: pass it tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import sys
import weakref
from asyncio.events import _set_running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from heapq import heappop, heappush
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, TypeVarTuple

from poolhand.testing.seeded_order import Handle, Queued, Shuffled

if TYPE_CHECKING:
    # The same class to a type checker, without abstract socket methods.
    from asyncio import BaseEventLoop as EventLoop
else:
    from asyncio import AbstractEventLoop as EventLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Order = Literal["permute", "fifo"]
Call = Callable[[*Ts], object]
Fault = dict[str, Any]
FaultHandler = Callable[[asyncio.AbstractEventLoop, Fault], object]

MAX_STEPS = 1_000_000
START_TIME = 1000.0
# Timers this close are one moment: rounding must not distinguish 0.1 + 0.2 from 0.3.
SAME_MOMENT = 1e-9
FIRST_SWEEP = 64
CLOSED = "Event loop is closed"
OUTSIDE = "a thread may reach the loop only through call_soon_threadsafe"


class Stalled(Exception):
    """The program cannot continue: nothing can wake it, or it loops without progress."""


class SeededLoop(EventLoop):
    """An event loop with virtual time that picks the next ready callback by its seed.

    `order="permute"` is more hostile than asyncio, which promises first in, first out;
    `order="fifo"` keeps that promise. Time stands still while any callback is ready, then jumps to
    the next timer. There are no sockets, threads or signals. `failures` holds the contexts passed
    to the exception handler, `steps` counts the callbacks run.
    """

    def __init__(
        self, seed: int = 0, *, order: Order = "permute", max_steps: int = MAX_STEPS
    ) -> None:
        if order not in ("permute", "fifo"):
            raise ValueError(f"order={order!r}: must be 'permute' or 'fifo'")
        self.seed = seed
        self.order = order
        self.max_steps = max_steps
        self.steps = 0
        self.failures: list[Fault] = []
        self._ready: Shuffled | Queued = Shuffled(seed) if order == "permute" else Queued()
        self._timers: list[tuple[float, int, Handle]] = []
        self._time = START_TIME
        self._tasks: list[_Task[Any]] = []
        self._sweep_at = FIRST_SWEEP
        self._generators: dict[int, weakref.ref[AsyncGenerator[Any, Any]]] = {}
        self._numbers = 0
        self._barred = ""  # why call_soon and call_at raise
        self._running = self._stopping = self._closed = self._debug = False
        self._handler: FaultHandler | None = None

    @property
    def trace(self) -> int:
        """A fingerprint of every choice so far: equal traces are equal interleavings."""
        return hash((self._ready.choices, self.steps, self._time))

    def time(self) -> float:
        return self._time

    def call_soon(
        self, callback: Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._barred:
            raise RuntimeError(self._barred)
        handle = Handle(callback, args, copy_context() if context is None else context, self._time)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback from a call of `in_thread`; a real thread cannot wake this loop."""
        if self._closed:
            raise RuntimeError(CLOSED)
        handle = Handle(callback, args, copy_context() if context is None else context, self._time)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._barred:
            raise RuntimeError(self._barred)
        handle = Handle(callback, args, copy_context() if context is None else context, when)
        if when <= self._time:
            self._ready.append(handle)
        elif when < math.inf:  # a timer at infinity never fires: time must not jump there
            heappush(self._timers, (when, self._number(), handle))
        return handle

    def get_task_factory(self) -> None:
        return None

    def create_future(self) -> asyncio.Future[Any]:
        future: _Future[Any] = _Future(loop=self)
        future.number = self._number()
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a task; the loop references it until it is done."""
        number = self._number()
        # Not asyncio's default name: its counter continues across loops, so a replay would differ
        task = _Task(number, coro, self, f"Task-{number}" if name is None else str(name), context)
        if len(self._tasks) >= self._sweep_at:
            self.sweep()
        self._tasks.append(task)
        return task

    def pending_tasks(self) -> list[_Task[Any]]:
        """Return the tasks that are not done, in order of creation."""
        return [task for task in self._tasks if not task.done()]

    def call_outside(self, delay: float, call: Callable[[], object]) -> None:
        """Make `call` after `delay` as another thread would: no running loop, an empty context.

        Using the loop other than by `call_soon_threadsafe` raises RuntimeError in `call`.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        handle = Handle(self._step_outside, (call,), Context(), self._time + delay)
        heappush(self._timers, (handle.at, self._number(), handle))

    def _step_outside(self, call: Callable[[], object]) -> None:
        _set_running_loop(None)
        self._barred = OUTSIDE
        try:
            call()
        finally:
            self._barred = ""
            _set_running_loop(self)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> NoReturn:
        raise NotImplementedError("no threads on a SeededLoop: call SeededRuntime.in_thread")

    def run_forever(self) -> None:
        self._run(lambda: False)

    def run_until_complete(self, future: Awaitable[T] | Generator[Any, None, T]) -> T:
        """Run until `future` is done; raises Stalled if nothing is left that could complete it."""
        task: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        self._run(task.done)
        if not task.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return task.result()

    def run_ready(self) -> None:
        """Run until no callback is ready; time stands still."""
        ready = self._ready
        self._run(lambda: not ready)

    def _run(self, done: Callable[[], bool]) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)
        _refuse_nested_run()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._meet_generator, finalizer=self._end_generator)
        _set_running_loop(self)
        self._running = True
        try:
            self._spin(done)
        finally:
            self._running = self._stopping = False
            _set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _spin(self, done: Callable[[], bool]) -> None:
        ready = self._ready
        take = ready.take
        while not done() and not self._stopping:
            if not ready:
                if not self._jump():
                    raise Stalled(self._describe("stalled: no callback ready, no timer pending"))
                continue
            # Check before taking one: a callback taken and not run would keep its task from ending.
            if self.steps >= self.max_steps:
                passed = self._time - START_TIME
                raise Stalled(self._describe(f"livelock: {self.steps} steps in {passed:g} s"))
            handle = take()
            if handle.dead:
                continue
            self.steps += 1
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"Exception in callback {handle!r}"
                self.call_exception_handler({"message": message, "exception": error})

    def _jump(self) -> bool:
        """Move time to the next timer and make all timers of that moment ready."""
        timers = self._timers
        while timers and timers[0][2].dead:
            heappop(timers)
        if not timers:
            return False
        until = timers[0][0] + SAME_MOMENT
        while timers and timers[0][0] <= until:
            when, _, handle = heappop(timers)
            if not handle.dead:
                self._time = when
                self._ready.append(handle)
        return True

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._running:
            raise RuntimeError("Cannot close a running event loop")
        self._closed = True
        self._barred = CLOSED
        self._ready.clear()
        self._timers.clear()
        self._tasks.clear()

    def sweep(self) -> None:
        """Drop finished tasks, so that exceptions never retrieved are recorded now."""
        self._tasks = self.pending_tasks()
        self._sweep_at = max(FIRST_SWEEP, 2 * len(self._tasks))

    async def shutdown_asyncgens(self) -> None:
        generators = [ref() for ref in self._generators.values()]
        self._generators.clear()
        closing = [generator.aclose() for generator in generators if generator is not None]
        await asyncio.gather(*closing, return_exceptions=True)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor."""

    def _meet_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        number, known = self._number(), self._generators
        known[number] = weakref.ref(generator, lambda _: known.pop(number, None))

    def _end_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.call_soon_threadsafe(self.create_task, generator.aclose())

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def get_exception_handler(self) -> FaultHandler | None:
        return self._handler

    def set_exception_handler(self, handler: FaultHandler | None) -> None:
        self._handler = handler

    def call_exception_handler(self, context: Fault) -> None:
        """Record `context` in `failures`, then call the handler that was set, if any."""
        if self._closed:
            self.default_exception_handler(context)
            return
        self.failures.append(context)
        if self._handler is None:
            return
        try:
            self._handler(self, context)
        except Exception as error:
            self.failures.append({"message": "the exception handler failed", "exception": error})

    def default_exception_handler(self, context: Fault) -> None:
        """Log errors after the loop is closed, when `failures` is no longer read."""
        task = context.get("task")
        # A task destroyed while pending refused to end and was reported as left behind.
        if self._closed and (task is None or task.done()):
            error = context.get("exception")
            logging.getLogger("asyncio").error(context.get("message"), exc_info=error)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _describe(self, what: str) -> str:
        return "\n".join([what, *(f"  {describe_task(task)}" for task in self.pending_tasks())])


def describe_task(task: asyncio.Task[Any]) -> str:
    """Return the task's name and where it waits, from its first frame to the innermost."""
    frames = (
        f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        for frame in _frames(task.get_coro())
    )
    return f"{task.get_name()}: {' > '.join(frames) or 'no frame'}"


def _frames(waiting: object) -> Iterator[FrameType]:
    while True:
        if inspect.iscoroutine(waiting):
            frame, waiting = waiting.cr_frame, waiting.cr_await
        elif inspect.isgenerator(waiting):
            frame, waiting = waiting.gi_frame, waiting.gi_yieldfrom
        else:
            return
        if frame is not None:
            yield frame


def _refuse_nested_run() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("Cannot run the event loop while another loop is running")


class _Future(asyncio.Future[T]):
    """A future whose position in a set depends on its number, not on its address."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[T]):
    """A task whose set position depends on its number: TaskGroup and wait iterate over sets."""

    __slots__ = ("number",)

    def __init__(
        self,
        number: int,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        loop: SeededLoop,
        name: str,
        context: Context | None,
    ) -> None:
        self.number = number  # first: asyncio adds the task to a set during creation
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number
