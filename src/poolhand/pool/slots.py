"""Slots: where jobs run, are timed, asked to stop, and judged."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Callable
from contextvars import Context
from functools import partial
from inspect import isawaitable
from typing import Any, Protocol

from poolhand.context import running
from poolhand.pool.alarm import NEVER, Alarm
from poolhand.pool.attempt import BUSY, IDLE, NOTHING, STUCK, Attempt, Slot
from poolhand.pool.clock import Clock
from poolhand.pool.work import Work
from poolhand.rules.job import HARD_TIMEOUT, SOFT_TIMEOUT
from poolhand.rules.outcome import (
    Asked,
    Cancelled,
    Failed,
    Outcome,
    judge_cancelled,
    judge_error,
    timed_out,
    unreadable,
)
from poolhand.runtime import Runtime

HARD_STOP = Asked.HARD_STOP
LATE = 0.02  # deadlines may be noticed this much late, so that one look serves many
HARD_STOP_GRACE = 0.03  # a timed-out job that stops at once frees its slot before its caller hears


class SlotOwner(Protocol):
    """What the slots tell their owner: each attempt is settled once and its slot freed once.

    `completed` and `failed` come with the slot already free; after `gave_up` the slot is stuck,
    and `recovered` follows when its code has ended.
    """

    def marked(self, attempt: Attempt, mark: str) -> None: ...

    def completed(self, attempt: Attempt, value: Any, now: float) -> None: ...

    def failed(self, attempt: Attempt, outcome: Outcome, now: float) -> None: ...

    def gave_up(self, attempt: Attempt, outcome: Outcome, now: float) -> None: ...

    def recovered(self, attempt: Attempt, now: float) -> None: ...


class Slots:
    """A growing and shrinking set of slots on one event loop.

    A job gets a task of its own, in the context of its submitter. A job that does not stop when it
    must is settled all the same; its slot stays stuck until its code is really gone.
    """

    def __init__(
        self, pool: str, owner: SlotOwner, loop: AbstractEventLoop, runtime: Runtime, clock: Clock
    ) -> None:
        self.stuck = 0
        self.all: list[Slot] = []
        self._pool = pool
        self._owner = owner
        self._loop = loop
        self._runtime = runtime
        self._now = clock.now
        self._idle: list[Slot] = []
        self._size = 0
        self._busy_for = 0.0
        self._runs = 0
        self._alarm = Alarm(loop, clock, self._look_for_late)
        # A task factory may run a task while it is made, in the middle of our books.
        self._eager = loop.get_task_factory() is not None

    def resize(self, size: int) -> None:
        """Have `size` slots; busy ones beyond that stay until they are idle."""
        self._size = size
        while len(self.all) < size:
            self.all.append(Slot(len(self.all), self._pool))
        self._retire()
        idle = (slot for slot in reversed(self.all[:size]) if slot.state is IDLE)
        self._idle = list(idle)

    def _retire(self) -> None:
        """Let go of idle slots at the end that are too many."""
        while len(self.all) > self._size and self.all[-1].state is IDLE:
            self.all.pop()

    def average_seconds(self) -> float | None:
        """Return how long an attempt takes, None before the first has ended."""
        return self._busy_for / self._runs if self._runs else None

    def start(self, work: Work, now: float) -> Attempt:
        """Run a job in a free slot."""
        slot = self._idle.pop()
        attempt = Attempt(work, slot, now)
        slot.state = BUSY
        slot.attempt = work.place = attempt
        deadline = work.terms.deadline
        if deadline is not None:
            attempt.due_at = due_at = now + deadline
            if due_at < self._alarm.at:
                self._alarm.set(due_at)
        context = work.fresh_context()
        if work.run_in == "thread":
            self._start_thread(attempt, context)
        elif self._eager:
            self._loop.call_soon(self._create_task, attempt, context)
        else:
            attempt.task = self._loop.create_task(
                self._on_loop(attempt, work), name=slot.name, context=context
            )
        return attempt

    def cancel(self, attempt: Attempt, grace: float, now: float) -> None:
        """Ask a running job to stop; it is settled after `grace` seconds even if it does not."""
        if not attempt.live:
            return
        attempt.unwanted = True
        if attempt.asked < Asked.CANCEL:
            self._owner.marked(attempt, "cancel")
            self._ask(attempt, Asked.CANCEL, "cancelled")
            hard = attempt.work.terms.hard
            attempt.due_at = NEVER if hard is None else attempt.began + hard
        attempt.due_at = min(attempt.due_at, now + grace)
        self._alarm.set(attempt.due_at)

    def _create_task(self, attempt: Attempt, context: Context) -> None:
        coroutine = self._on_loop(attempt, attempt.work)
        task = self._loop.create_task(coroutine, name=attempt.slot.name, context=context)
        if not task.done():
            attempt.task = task

    def _start_thread(self, attempt: Attempt, context: Context) -> None:
        call = partial(self._in_thread, attempt, attempt.work.call, context)
        try:
            self._runtime.in_thread(call, attempt.slot.name)
        except Exception as error:
            # No thread is to be had: that is the job's misfortune, not that of whoever called here.
            self._loop.call_soon(self._ended, attempt, None, error)

    def reclaim(self) -> None:
        """Free the slots whose task was ended by others before it could begin."""
        for slot in self.all:
            attempt = slot.attempt
            if attempt is not None and attempt.task is not None and attempt.task.done():
                self._ended(attempt, None, CancelledError())

    def close(self) -> None:
        self._alarm.close()

    async def _on_loop(self, attempt: Attempt, work: Work) -> None:
        attempt.begun = True
        running.set(attempt)
        try:
            if attempt.asked is not NOTHING:
                # Cancelling a task that has not begun would have ended it without a trace.
                raise CancelledError
            assert work.call is not None
            value = work.call()
            if work.run_in == "async" or isawaitable(value):
                value = await value
        except BaseException as error:
            self._raised(attempt, error)
        else:
            self._ended(attempt, value, None)

    def _in_thread(
        self, attempt: Attempt, call: Callable[[], Any] | None, context: Context
    ) -> None:
        attempt.begun = True
        context.run(running.set, attempt)
        value: Any = None
        failure: BaseException | None = None
        try:
            if attempt.asked is not NOTHING:
                raise CancelledError
            assert call is not None
            value = context.run(call)
        except BaseException as error:
            failure = error
        try:
            self._loop.call_soon_threadsafe(self._thread_ended, attempt, value, failure, context)
        except RuntimeError:
            # The loop was closed while the thread ran; nobody waits any more.
            return

    def _thread_ended(
        self, attempt: Attempt, value: Any, failure: BaseException | None, context: Context
    ) -> None:
        if failure is not None or not _is_awaitable(value):
            self._ended(attempt, value, failure)
        elif not attempt.live:
            _discard(value)
            self._ended(attempt, None, None)
        else:
            # A plain function may return a coroutine, as a lambda does: the slot goes on with it.
            attempt.begun = False
            attempt.task = self._loop.create_task(
                self._await(attempt, value), name=attempt.slot.name, context=context
            )

    async def _await(self, attempt: Attempt, awaitable: Any) -> None:
        attempt.begun = True
        running.set(attempt)
        try:
            if attempt.asked is not NOTHING:
                _discard(awaitable)
                raise CancelledError
            value = await awaitable
        except BaseException as error:
            self._raised(attempt, error)
        else:
            self._ended(attempt, value, None)

    def _raised(self, attempt: Attempt, error: BaseException) -> None:
        # By its type: an error may lie about its class, or break when asked.
        if issubclass(type(error), GeneratorExit) and not self._loop.is_running():
            # The loop is gone and the interpreter clears up; there is nobody left to tell.
            raise error
        self._ended(attempt, None, error)

    def _ended(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        """Note that the code of an attempt is really gone."""
        now = self._now()
        outcome = None if error is None else _judge(attempt, error)
        slot = attempt.slot
        was_stuck = slot.state is STUCK
        slot.state = IDLE
        slot.attempt = attempt.task = None
        slot.busy_for += now - attempt.began
        slot.runs += 1
        self._busy_for += now - attempt.began
        self._runs += 1
        if slot.index < self._size:
            self._idle.append(slot)
        else:
            self._retire()
        if outcome is None and attempt.asked is not HARD_STOP and not was_stuck:
            slot.completed += 1
            self._owner.completed(attempt, value, now)
        elif was_stuck:
            self.stuck -= 1
            self._owner.recovered(attempt, now)
        else:
            outcome = outcome or timed_out(attempt.work.id, HARD_TIMEOUT)
            slot.failed += isinstance(outcome, Failed)
            self._owner.failed(attempt, outcome, now)

    def _give_up(self, attempt: Attempt, now: float) -> None:
        """Settle a job that does not stop; its slot is lost until its code ends."""
        attempt.slot.state = STUCK
        self.stuck += 1
        hard = attempt.asked is Asked.HARD_STOP
        outcome = timed_out(attempt.work.id, HARD_TIMEOUT) if hard else Cancelled()
        attempt.slot.failed += hard
        self._owner.gave_up(attempt, outcome, now)

    def _ask(self, attempt: Attempt, asked: Asked, message: str) -> None:
        attempt.asked = asked
        if attempt.begun and attempt.task is not None:
            attempt.task.cancel(message)

    def _look_for_late(self, now: float) -> None:
        """Deal with the jobs that are past a deadline, and find the next one.

        Slots are few and this is rare: it spares every job the arming and disarming of a timer.
        """
        for slot in tuple(self.all):
            attempt = slot.attempt
            if attempt is not None and attempt.due_at <= now:
                self._pass_deadline(attempt, now)
        following = min((slot.attempt.due_at for slot in self.all if slot.attempt), default=NEVER)
        if following < NEVER:
            self._alarm.set(max(following, now + LATE))

    def _pass_deadline(self, attempt: Attempt, now: float) -> None:
        attempt.due_at = NEVER
        terms = attempt.work.terms
        if attempt.asked >= Asked.CANCEL:
            self._give_up(attempt, now)
        elif terms.soft is None or attempt.asked is Asked.SOFT_STOP:
            attempt.due_at = now + HARD_STOP_GRACE
            self._owner.marked(attempt, HARD_TIMEOUT)
            self._ask(attempt, Asked.HARD_STOP, HARD_TIMEOUT)
        else:
            if terms.hard is not None:
                attempt.due_at = attempt.began + terms.hard
            self._owner.marked(attempt, SOFT_TIMEOUT)
            self._ask(attempt, Asked.SOFT_STOP, SOFT_TIMEOUT)


def _judge(attempt: Attempt, error: BaseException) -> Outcome:
    """Say what an error means, whatever it does to those who look at it."""
    job_id = attempt.work.id
    try:
        if isinstance(error, CancelledError):
            return judge_cancelled(attempt.asked, job_id)
        return judge_error(error, attempt.asked, job_id)
    except BaseException:
        return unreadable(job_id)


def _is_awaitable(value: object) -> bool:
    try:
        return isawaitable(value)
    except BaseException:
        return False


def _discard(awaitable: Any) -> None:
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
