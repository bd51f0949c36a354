"""One run of an agent: create it, run it, close it."""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError, Future
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from threading import current_thread
from typing import Any, NamedTuple

from poolhand.context import running, stop_requested
from poolhand.errors import UsageError
from poolhand.pool.options import where_to_run
from poolhand.pool.slots.attempt import NEVER, Attempt, OffLoop, Runnable
from poolhand.pool.slots.runner import discard
from poolhand.runtime import Runtime

LOG = logging.getLogger("poolhand")
CLOSE_SECONDS = 10.0  # how long closing an agent may take on the loop


class AgentCall(NamedTuple):
    """A step: a function to call, and where. A step that `closes` runs whatever happened before.

    If `succeeded`, the run is done and this step cannot make it fail.
    """

    fn: Callable[[], Any]
    in_thread: bool
    closes: bool = False
    succeeded: bool = False


class AgentRunOver(NamedTuple):
    """The end of the steps, with the result of the run."""

    value: Any


Steps = Generator[AgentCall, Any, Any]


def steps(factory: Callable[[], Any], session_id: str, payload: Any) -> Steps:
    """Create, run and close an agent; each step's result or error is sent back in here."""
    in_thread = _is_made_in_thread(factory)
    agent = yield AgentCall(factory, in_thread)
    try:
        if stop_requested():
            # Cancelled while the agent was created in a thread, which cannot be interrupted.
            raise CancelledError
        run = _run_of(agent)
        in_thread = _is_plain(run)
        result = yield AgentCall(partial(run, session_id=session_id, payload=payload), in_thread)
    except GeneratorExit:
        raise
    except BaseException:
        yield from _closing(agent, in_thread, succeeded=False)
        raise
    yield from _closing(agent, in_thread, succeeded=True)
    return result


class AgentRun:
    """Executes steps on the loop, or in a thread with as many consecutive steps as possible.

    A thread cannot be interrupted. The run waits for it even when cancelled, so that its slot stays
    occupied for as long as its code runs.
    """

    def __init__(self, steps: Steps, runtime: Runtime) -> None:
        self._steps = steps
        self._runtime = runtime
        self._cancelled: CancelledError | None = None

    async def run(self) -> Any:
        inside = running.get()
        assert isinstance(inside, Attempt)
        step = self._next()
        while isinstance(step, AgentCall):
            if step.succeeded:
                # The work is done: a timeout must not undo it.
                inside.due_at = NEVER
            step = await (self._in_thread(step, inside) if step.in_thread else self._on_loop(step))
        return step.value

    def _next(
        self, value: Any = None, error: BaseException | None = None
    ) -> AgentCall | AgentRunOver:
        try:
            return self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration as end:
            return AgentRunOver(end.value)

    async def _on_loop(self, step: AgentCall) -> AgentCall | AgentRunOver:
        try:
            value = step.fn()
            if isawaitable(value):
                async with asyncio.timeout(CLOSE_SECONDS if step.closes else None):
                    value = await value
        except GeneratorExit:
            # The loop is closed; nothing can be awaited any more.
            raise
        except BaseException as error:
            return self._next(error=error)
        return self._next(value)

    async def _in_thread(
        self, step: AgentCall, inside: Attempt[Runnable]
    ) -> AgentCall | AgentRunOver:
        ended: Future[Callable[[], AgentCall | AgentRunOver]] = (
            asyncio.get_running_loop().create_future()
        )
        work = partial(copy_context().run, self._plainly, step, inside)
        try:
            self._runtime.in_thread(partial(_carry_out, work, ended), inside.slot.name)
        except Exception as error:
            # No thread is available.
            return self._next(error=error)
        await self._end_of(ended, inside)
        following = ended.result()()
        if self._cancelled is None or isinstance(following, AgentRunOver) or following.closes:
            return following
        # A plain call returned an awaitable, but the run was cancelled: close it unawaited.
        discard(following.fn())
        return self._next(error=self._cancelled)

    async def _end_of(self, ended: Future[Any], inside: Attempt[Runnable]) -> None:
        heard = inside.asked
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except CancelledError as cancel:
                if inside.asked <= heard:
                    # Not cancelled by the pool: the loop is ending and cannot wait for a thread.
                    raise
                heard, self._cancelled = inside.asked, cancel

    def _plainly(self, step: AgentCall, inside: Attempt[Runnable]) -> AgentCall | AgentRunOver:
        """Execute steps in this thread until one belongs on the loop or none is left."""
        outside = inside.outside = OffLoop()
        outside.entered, outside.thread = True, current_thread()
        try:
            return self._taken(step)
        finally:
            inside.outside = None

    def _taken(self, step: AgentCall) -> AgentCall | AgentRunOver:
        following: AgentCall | AgentRunOver = step
        while isinstance(following, AgentCall) and following.in_thread:
            try:
                value = following.fn()
                if isawaitable(value):
                    return following._replace(fn=partial(_given, value), in_thread=False)
            except BaseException as error:
                following = self._next(error=error)
            else:
                following = self._next(value)
        return following


def is_factory(value: Any) -> bool:
    """Return whether this can be called to create an agent; generator functions cannot."""
    try:
        return callable(value) and where_to_run(value, None, None) in ("async", "thread")
    except UsageError:
        return False


def _is_plain(fn: Callable[..., Any]) -> bool:
    return where_to_run(fn, None, None) != "async"


def _is_made_in_thread(factory: Callable[[], Any]) -> bool:
    made: Any = factory
    while isinstance(made, partial):
        made = made.func
    if not isinstance(made, type):
        return _is_plain(factory)
    # A constructor is called where its agent will live, which follows from `run`.
    run = getattr(made, "run", None)
    return callable(run) and _is_plain(run)


def _run_of(agent: Any) -> Callable[..., Any]:
    run: Callable[..., Any] | None = getattr(agent, "run", None)
    if not callable(run):
        kind = type(agent).__qualname__
        raise UsageError(
            f"agent_factory returned a {kind}, which has no method run(session_id=…, payload=…)"
        )
    return run


def _closing(agent: Any, in_thread: bool, succeeded: bool) -> Steps:
    """Close an agent that can be closed; a failure is logged and has no other effect."""
    try:
        close = getattr(agent, "aclose", None) or getattr(agent, "close", None)
        if callable(close):
            yield AgentCall(close, in_thread and _is_plain(close), True, succeeded)
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, CancelledError) and _is_cancelled() and not succeeded:
            raise
        LOG.error("closing a %s failed", type(agent).__qualname__, exc_info=error)


def _is_cancelled() -> bool:
    """Return whether this task is being cancelled: an agent may raise CancelledError itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # In a thread there is no task.
    return task is not None and task.cancelling() > 0


def _carry_out(
    work: Callable[[], AgentCall | AgentRunOver],
    ended: Future[Callable[[], AgentCall | AgentRunOver]],
) -> None:
    """Do the work of a thread and report its outcome to the loop."""
    try:
        outcome = partial(_given, work())
    except BaseException as error:
        outcome = partial(_raised, error)
    with suppress(RuntimeError):
        # The loop may be closed by now; then there is no waiter.
        ended.get_loop().call_soon_threadsafe(ended.set_result, outcome)


def _given(value: Any) -> Any:
    return value


def _raised(error: BaseException) -> Any:
    raise error
