"""Runners of job code: on the event loop, in a thread or in a child process."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, Task, isfuture
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from inspect import CORO_CLOSED, CORO_CREATED, getcoroutinestate, isawaitable
from threading import current_thread
from typing import Any, Generic, TypeVar, cast

from poolhand.context import running
from poolhand.observe.events import Events
from poolhand.pool.slots import forks
from poolhand.pool.slots.attempt import NOTHING, Attempt, OffLoop, Runnable
from poolhand.pool.slots.process_answer import Answer, contents_of
from poolhand.pool.slots.process_parent import (
    Child,
    ChildLost,
    ChildPhase,
    Children,
    ProcessCall,
    lost,
)
from poolhand.rules.outcome import StopRequest
from poolhand.runtime import Runtime

T = TypeVar("T")
W = TypeVar("W", bound=Runnable)
Ended = Callable[[Attempt[W], Any, BaseException | None], None]


class JobRunner(Generic[W]):
    """Runs attempts in the given context, and reports when their code has really ended."""

    def __init__(
        self,
        pool: str,
        loop: AbstractEventLoop,
        runtime: Runtime,
        events: Events,
        ended: Ended[W],
        came_up: Callable[[Attempt[W]], None],
    ) -> None:
        self.children = Children(pool, runtime)
        self._came_up = came_up
        self._loop = loop
        self._runtime = runtime
        self._events = events
        self._ended = ended
        self._generation = forks.generation

    @property
    def eager(self) -> bool:
        """Whether a task may run while it is created, in the middle of a state change."""
        return self._loop.get_task_factory() is not None

    def run(self, attempt: Attempt[W], context: Context) -> None:
        """Begin to run an attempt; its end is reported later, never from within this call."""
        run_in = attempt.work.run_in
        if run_in == "thread":
            outside = attempt.outside = OffLoop()
            self._start_thread(attempt, partial(self._in_thread, attempt, outside, context))
        elif run_in == "process":
            outside = attempt.outside = OffLoop()
            process_call = self._process_call(attempt, context)
            self._start_thread(attempt, partial(self._in_process, attempt, outside, process_call))
        elif self.eager:
            self._loop.call_soon(self._create_task, attempt, context)
        else:
            attempt.task = self._loop.create_task(
                self.on_loop(attempt, attempt.work), name=attempt.slot.name, context=context
            )

    def ask(self, attempt: Attempt[W], message: str) -> None:
        """Ask the code of an attempt to stop."""
        if attempt.begun and attempt.task is not None:
            attempt.task.cancel(message)
        elif attempt.asked is StopRequest.HARD_STOP:
            self.kill(attempt)
        elif attempt.outside is not None and (call := attempt.outside.call) is not None:
            # Read once: its thread may clear it meanwhile.
            child, number = call
            child.ask(number)

    def kill(self, attempt: Attempt[W]) -> bool:
        """Kill the code of an attempt; return whether that was possible and not yet done."""
        outside = attempt.outside
        if outside is None or outside.killed or attempt.work.run_in != "process":
            return False
        # Set the flag first: the thread that sees the child die reads it.
        outside.killed = True
        if (call := outside.call) is not None:
            child, number = call
            child.kill(number)
        return True

    def _create_task(self, attempt: Attempt[W], context: Context) -> None:
        make = partial(self.on_loop, attempt, attempt.work)
        task = start_task(self._loop, make, attempt.slot.name, context, lambda: attempt.begun)
        if task is not None and not task.done():
            attempt.task = task

    def _start_thread(self, attempt: Attempt[W], call: Callable[[], None]) -> None:
        try:
            self._runtime.in_thread(call, attempt.slot.name)
        except Exception as error:
            # No thread is available: fail the job, not the code that called here.
            self._loop.call_soon(self._ended, attempt, None, error)

    async def on_loop(self, attempt: Attempt[W], work: W) -> None:
        running.set(attempt)
        try:
            if attempt.asked is not NOTHING:
                # Cancelling a task that has not begun would have ended it without running this.
                raise CancelledError
            attempt.begun = True
            value = work.call()  # type: ignore[misc, operator]
            if work.run_in == "async" or isawaitable(value):
                value = await value
        except BaseException as error:
            self._raised(attempt, error)
            # The traceback may reference this frame, which must not keep the job alive.
            del attempt, work
        else:
            self._ended(attempt, value, None)

    def _in_thread(self, attempt: Attempt[W], outside: OffLoop, context: Context) -> None:
        call: Any = attempt.work.call
        attempt.begun = True
        outside.thread = current_thread()
        context.run(running.set, attempt)
        value: Any = None
        failure: BaseException | None = None
        try:
            if attempt.asked is not NOTHING:
                raise CancelledError
            outside.entered = True
            value = context.run(call)
        except BaseException as error:
            failure = error
        if forks.generation != self._generation:
            forks.end_fork(attempt.snapshot(), forks.ended_with(failure))
        outside.thread = None
        self._report(self._thread_ended, attempt, value, failure, context)
        # The traceback may reference this frame, which must not keep the job alive.
        del attempt, context

    def _process_call(self, attempt: Attempt[W], context: Context) -> ProcessCall:
        work, tracer = attempt.work, self._events.tracer
        assert isinstance(work.call, bytes)
        trace_context = None if tracer is None else tracer.trace_context(context)
        return ProcessCall(
            work.snapshot(), attempt.submitter, attempt.token, work.call, trace_context
        )

    def _in_process(self, attempt: Attempt[W], outside: OffLoop, process_call: ProcessCall) -> None:
        attempt.begun = True
        value: Any = None
        failure: BaseException | None = None
        try:
            if attempt.asked is not NOTHING:
                raise CancelledError
            value, failure = self._in_child(attempt, outside, process_call)
        except ChildLost as loss:
            # A copy: the traceback of the error holds the pipe of the child.
            outside.loss = None if outside.killed else ChildLost(loss.pid, loss.code, loss.phase)
            failure = CancelledError() if outside.killed else lost(attempt.work.id, loss)
        except BaseException as error:
            # Drop the traceback: its frame would reference the error that references it.
            failure = BaseException.with_traceback(error, None)
        self._report(self._ended, attempt, value, failure)

    def _in_child(
        self, attempt: Attempt[W], outside: OffLoop, process_call: ProcessCall
    ) -> tuple[Any, BaseException | None]:
        """Have a child make the call; use another child if this one died since its last job."""
        answer: Answer | None = None
        while answer is None:
            child = self.children.take()
            outside.call = child, child.take()
            try:
                answer = self._by_child(attempt, outside, child, process_call)
            except ChildLost as loss:
                if loss.phase is ChildPhase.BUSY or child.is_new:
                    raise
            finally:
                outside.call = None
                self.children.give_back(child)
        return contents_of(answer, attempt.work.id)

    def _by_child(
        self, attempt: Attempt[W], outside: OffLoop, child: Child, process_call: ProcessCall
    ) -> Answer:
        # Check before too: a kill that found no call has ended nothing.
        _check_wanted(attempt)
        child.come_up()
        _check_wanted(attempt)
        if self.children.before is not None:
            self._report(self._came_up, attempt)
        outside.entered = True
        return child.run(process_call, attempt.asked is not NOTHING, attempt.work)

    def _report(self, call: Callable[..., None], *details: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *details)
        except RuntimeError:
            # The loop was closed while the thread ran; there are no waiters left.
            return

    def _thread_ended(
        self, attempt: Attempt[W], value: Any, failure: BaseException | None, context: Context
    ) -> None:
        if failure is not None or not _is_awaitable(value):
            self._ended(attempt, value, failure)
        elif not attempt.live:
            discard(value)
            self._ended(attempt, None, None)
        else:
            # A plain function may return a coroutine, as a lambda does: the slot awaits it.
            attempt.begun = False
            make = partial(self._await, attempt, value)
            name = attempt.slot.name
            attempt.task = start_task(self._loop, make, name, context, lambda: attempt.begun)

    async def _await(self, attempt: Attempt[W], awaitable: Any) -> None:
        attempt.begun = True
        running.set(attempt)
        try:
            if attempt.asked is not NOTHING:
                discard(awaitable)
                raise CancelledError
            value = await awaitable
        except BaseException as error:
            self._raised(attempt, error)
        else:
            self._ended(attempt, value, None)

    def _raised(self, attempt: Attempt[W], error: BaseException) -> None:
        # By type: an error may lie about its class, or raise when inspected.
        if issubclass(type(error), GeneratorExit) and not self._loop.is_running():
            # The loop is closed and the interpreter is shutting down: no waiter is left.
            raise error
        self._ended(attempt, None, error)


def start_task(
    loop: AbstractEventLoop,
    make: Callable[[], Coroutine[Any, Any, None]],
    name: str,
    context: Context | None = None,
    begun: Callable[[], bool] = lambda: True,
) -> Task[None] | None:
    """Start a task with the loop's task factory or, if the factory is broken, a plain task.

    Returns None if the coroutine had begun when the factory raised: it cannot be reached. For a
    closed coroutine, `begun` says whether it had.
    """
    coroutine = make()
    why: Exception
    try:
        task: Any = loop.create_task(coroutine, name=name, context=context)
        if isfuture(task):
            return cast("Task[None]", task)
        why = TypeError(f"it has made {type(task).__name__} instead of a task")
    except Exception as error:
        why = error
    text = "the task factory of this event loop is broken; jobs run in plain tasks"
    loop.call_exception_handler({"message": text, "exception": why})
    state = getcoroutinestate(coroutine)
    if state != CORO_CREATED and (state != CORO_CLOSED or begun()):
        return None
    coroutine.close()
    return Task(make(), loop=loop, name=name, context=context)


def own_task(loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str) -> Task[T]:
    """Start an internal task without the loop's task factory, which a job may have set."""
    if loop.get_task_factory() is None:
        return loop.create_task(coroutine, name=name)
    return Task(coroutine, loop=loop, name=name)


def leave_behind(task: asyncio.Future[Any]) -> None:
    """Let a loop end while this task continues; otherwise `asyncio.run` may wait for it for ever.

    Code that swallows its cancellation does so again when `asyncio.run` cancels all tasks. The task
    is not closed at program exit either: it could catch GeneratorExit and continue. An extra
    reference keeps the task alive until it is done.
    """
    if not isinstance(task, asyncio.Task) or task.done():
        return
    asyncio._unregister_task(task)
    # It was reported as stuck; a second report when the loop ends adds nothing.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with suppress(ImportError):
        # Imported only here: few programs need it.
        from ctypes import py_object, pythonapi

        pythonapi.Py_IncRef(py_object(task))
        task.add_done_callback(lambda done: pythonapi.Py_DecRef(py_object(done)))


# The frames that call the code of a job; the watchdog uses them to find the job on a stack.
FRAMES_OF_JOBS = frozenset({JobRunner.on_loop.__code__, JobRunner._await.__code__})


def _check_wanted(attempt: Attempt[Runnable]) -> None:
    if attempt.asked >= StopRequest.CANCEL:
        raise CancelledError


def _is_awaitable(value: object) -> bool:
    try:
        return isawaitable(value)
    except BaseException:
        return False


def discard(awaitable: Any) -> None:
    """Close an awaitable that will not be awaited."""
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
