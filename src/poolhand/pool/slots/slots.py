"""Slots: run jobs, enforce their deadlines, ask them to stop and judge their outcomes."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, current_task
from itertools import count, islice
from typing import Any, Generic, Protocol, TypeVar

from poolhand.errors import JobLost
from poolhand.observe.events import Events
from poolhand.observe.failures import warn_overran
from poolhand.pool.slots import forks
from poolhand.pool.slots.attempt import (
    BUSY,
    IDLE,
    NEVER,
    STUCK,
    Alarm,
    Attempt,
    PoolClock,
    Runnable,
    Slot,
)
from poolhand.pool.slots.fault import fault_of
from poolhand.pool.slots.runner import JobRunner, leave_behind
from poolhand.rules.job import HARD_TIMEOUT, SOFT_TIMEOUT, Fault
from poolhand.rules.outcome import (
    SELF_CANCELLED,
    Cancelled,
    Failed,
    Outcome,
    StopRequest,
    judge_cancelled,
    judge_error,
    timed_out,
    unreadable,
)
from poolhand.runtime import Runtime

HARD_STOP = StopRequest.HARD_STOP
LATE = 0.02  # deadlines may be noticed this late, so that one timer serves many jobs
OVERRUN = 0.1  # seconds after a timeout from which a job that completes is logged
HARD_STOP_GRACE = 0.03  # a timed-out job that stops at once frees its slot before its caller wakes


W = TypeVar("W", bound=Runnable)
W_contra = TypeVar("W_contra", bound=Runnable, contravariant=True)


class SlotOwner(Protocol[W_contra]):
    """The callbacks of the slots: each attempt is settled once and its slot freed once.

    `completed` and `failed` are called with the slot already free. After `gave_up` the slot is
    stuck, and `recovered` follows when its code has ended. `vanished` is called before `failed`
    when the process or task of the attempt is gone, `done` after the deadlines were checked.
    """

    def marked(self, attempt: Attempt[W_contra], mark: str) -> None: ...

    def completed(self, attempt: Attempt[W_contra], value: Any, now: float) -> None: ...

    def failed(self, attempt: Attempt[W_contra], outcome: Outcome, now: float) -> None: ...

    def gave_up(self, attempt: Attempt[W_contra], outcome: Outcome, now: float) -> None: ...

    def recovered(self, attempt: Attempt[W_contra], now: float) -> None: ...

    def vanished(self, attempt: Attempt[W_contra], why: str) -> None: ...

    def done(self) -> None: ...


class Slots(Generic[W]):
    """A resizable set of slots on one event loop.

    Each job gets its own task, in the context of its submitter. A job that does not stop when it
    must is settled anyway; its slot stays stuck until its code has really ended.
    """

    def __init__(
        self,
        pool: str,
        owner: SlotOwner[W],
        loop: AbstractEventLoop,
        runtime: Runtime,
        clock: PoolClock,
        events: Events,
    ) -> None:
        self.stuck = 0
        self.failed_attempts = 0
        self.all: list[Slot[W]] = []
        self._pool = pool
        self._owner = owner
        self._events = events
        self._loop = loop
        self._now = clock.now
        self._idle: dict[int, Slot[W]] = {}
        self._size = 0
        self._busy_for = 0.0
        self._runs = 0
        self._generation = forks.generation
        self._alarm = Alarm(loop, clock, self._look_for_late)
        self._substrate = JobRunner(pool, loop, runtime, events, self._ended, self._came_up)

    def resize(self, size: int) -> None:
        """Set the number of slots; idle slots go first, surplus busy ones once they are idle."""
        self._size = size
        taken = {slot.index for slot in self.all}
        free = (index for index in count() if index not in taken)
        new: list[Slot[W]] = [Slot(next(free), self._pool) for _ in range(size - len(self.all))]
        idle = (slot for slot in reversed(self.all) if slot.state is IDLE)
        gone = set(islice(idle, max(0, len(self.all) - size)))
        stay = [slot for slot in [*self.all, *new] if slot not in gone]
        # A new list: another thread may be iterating over the old one.
        self.all = sorted(stay, key=lambda slot: slot.index)
        self._idle = {slot.index: slot for slot in reversed(self.all) if slot.state is IDLE}
        self._substrate.children.keep(size)

    def surplus(self) -> list[Slot[W]]:
        """Return the busy slots that retire once idle, if they become idle first."""
        busy = [slot for slot in self.all if slot.state is not IDLE]
        return busy[len(busy) - max(0, len(self.all) - self._size) :]

    def average_seconds(self) -> float | None:
        """Return the average duration of an attempt, or None before the first has ended."""
        return self._busy_for / self._runs if self._runs else None

    def start(self, work: W, now: float, index: int | None = None) -> Attempt[W]:
        """Run a job in a free slot, or in the free slot with that number."""
        slot = self._idle.popitem()[1] if index is None else self._idle.pop(index)
        attempt = Attempt(work, slot, now)
        slot.state = BUSY
        slot.attempt = work.place = attempt
        if work.terms.deadline is not None and not (
            work.run_in == "process" and self._substrate.children.before is not None
        ):
            self._arm(attempt, now)
        context = work.fresh_context()
        tracer = self._events.tracer
        if tracer is not None:
            tracer.started(work.snapshot(), slot.index, context)
        if work.run_in == "async" and not self._substrate.eager:
            # The path of nearly every job: it saves a call.
            attempt.task = self._loop.create_task(
                self._substrate.on_loop(attempt, work), name=slot.name, context=context
            )
        else:
            self._substrate.run(attempt, context)
        return attempt

    def _arm(self, attempt: Attempt[W], now: float) -> None:
        """Start the timeout of an attempt now."""
        deadline = attempt.work.terms.deadline
        if deadline is not None:
            attempt.due_at = due_at = now + deadline
            if due_at < self._alarm.at:
                self._alarm.set(due_at)

    def _came_up(self, attempt: Attempt[W]) -> None:
        """Start the timeout of an attempt once its child has run its warm-up."""
        if attempt.live and attempt.asked is StopRequest.NOTHING:
            attempt.began = self._now()
            self._arm(attempt, attempt.began)

    def prepare_children(self, before: bytes | None) -> None:
        """Have each child make this packed call before its first job, outside of its timeout."""
        self._substrate.children.before = before

    def cancel(self, attempt: Attempt[W], grace: float, now: float) -> None:
        """Ask a running job to stop; settle it after `grace` seconds even if it does not."""
        if not attempt.live:
            return
        attempt.unwanted = True
        if attempt.asked < StopRequest.CANCEL:
            self._owner.marked(attempt, "cancel")
            self._ask(attempt, StopRequest.CANCEL, "cancelled")
            hard = attempt.work.terms.hard
            attempt.due_at = NEVER if hard is None else attempt.began + hard
        attempt.due_at = min(attempt.due_at, now + grace)
        self._alarm.set(attempt.due_at)

    def reclaim(self) -> None:
        """Free the slots whose task was ended by other code before it could begin."""
        for slot in tuple(self.all):
            attempt = slot.attempt
            if attempt is not None and attempt.task is not None and attempt.task.done():
                self._owner.vanished(attempt, "its task was ended from outside the pool")
                self._ended(attempt, None, CancelledError())

    def close(self) -> None:
        """Release the resources for running jobs, and abandon code that did not stop."""
        self._alarm.close()
        for slot in self.all:
            if slot.attempt is not None and slot.attempt.task is not None:
                leave_behind(slot.attempt.task)
        self._substrate.children.keep(0)

    def _ended(self, attempt: Attempt[W], value: Any, error: BaseException | None) -> None:
        """Settle an attempt whose code has really ended, and free its slot."""
        if forks.generation != self._generation:
            forks.end_fork(attempt.snapshot(), forks.ended_with(error))
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
        if len(self.all) <= self._size:
            self._idle[slot.index] = slot
        else:
            self.all.remove(slot)
        if outcome is None and attempt.asked is not HARD_STOP and not was_stuck:
            slot.completed += 1
            if attempt.due_at < now - OVERRUN:
                _check_overrun(attempt, now)
            self._owner.completed(attempt, value, now)
        elif was_stuck:
            self.stuck -= 1
            self._owner.recovered(attempt, now)
        else:
            outcome = outcome or timed_out(attempt.work.id, HARD_TIMEOUT)
            if isinstance(outcome, Failed):
                self._count_failure(attempt, outcome)
            self._owner.failed(attempt, outcome, now)

    def recount(self, attempt: Attempt[W]) -> None:
        """Count a completed attempt as failed: its owner cannot store the result."""
        attempt.slot.completed -= 1
        attempt.slot.failed += 1
        self.failed_attempts += 1

    def _count_failure(self, attempt: Attempt[W], outcome: Failed) -> None:
        attempt.slot.failed += 1
        self.failed_attempts += 1
        error = outcome.error
        # Compare ids: a job may re-raise that another job was lost.
        if type(error) is JobLost and error.job_id == attempt.work.id:
            self._owner.vanished(attempt, error.message)

    def _give_up(self, attempt: Attempt[W], now: float) -> None:
        """Settle a job that does not stop; its slot is stuck until its code ends."""
        attempt.slot.state = STUCK
        self.stuck += 1
        hard = attempt.asked is StopRequest.HARD_STOP
        outcome = timed_out(attempt.work.id, HARD_TIMEOUT) if hard else Cancelled()
        attempt.slot.failed += hard
        self.failed_attempts += hard
        self._owner.gave_up(attempt, outcome, now)

    def _ask(self, attempt: Attempt[W], asked: StopRequest, message: str) -> None:
        attempt.asked = asked
        self._substrate.ask(attempt, message)

    def _look_for_late(self, now: float) -> None:
        """Handle the jobs that are past a deadline, and set the alarm for the next one.

        Slots are few and this is rare: it saves every job setting and cancelling its own timer.
        """
        for slot in tuple(self.all):
            attempt = slot.attempt
            if attempt is not None and attempt.due_at <= now:
                self._pass_deadline(attempt, now)
        following = min((slot.attempt.due_at for slot in self.all if slot.attempt), default=NEVER)
        if following < NEVER:
            self._alarm.set(max(following, now + LATE))
        self._owner.done()

    def _pass_deadline(self, attempt: Attempt[W], now: float) -> None:
        attempt.due_at = NEVER
        terms = attempt.work.terms
        if attempt.asked >= StopRequest.CANCEL:
            if self._substrate.kill(attempt):
                attempt.due_at = now + HARD_STOP_GRACE
            else:
                self._give_up(attempt, now)
        elif terms.soft is None or attempt.asked is StopRequest.SOFT_STOP:
            attempt.due_at = now + HARD_STOP_GRACE
            self._owner.marked(attempt, HARD_TIMEOUT)
            self._ask(attempt, StopRequest.HARD_STOP, HARD_TIMEOUT)
        else:
            if terms.hard is not None:
                attempt.due_at = attempt.began + terms.hard
            self._owner.marked(attempt, SOFT_TIMEOUT)
            self._ask(attempt, StopRequest.SOFT_STOP, SOFT_TIMEOUT)


def _check_overrun(attempt: Attempt[Runnable], now: float) -> None:
    """Warn of code on the loop that completed after its hard timeout.

    The timeout was not noticed: nothing else runs on a blocked loop.
    """
    hard, ran = attempt.work.terms.hard, now - attempt.began
    if hard is not None and hard + OVERRUN < ran and attempt.outside is None:
        warn_overran(attempt.snapshot(), ran, hard)


def _judge(attempt: Attempt[Runnable], error: BaseException) -> Outcome:
    """Judge an error, even if inspecting it raises."""
    job_id = attempt.work.id
    try:
        if isinstance(error, CancelledError):
            return judge_cancelled(attempt.asked, job_id)
        return judge_error(error, attempt.asked, job_id)
    except BaseException:
        return unreadable(job_id)


def fault_of_end(attempt: Attempt[Any], outcome: Outcome) -> Fault | None:
    """Return what the code of an attempt raised, None where it ended otherwise.

    Called in the step in which the attempt ended.
    """
    if isinstance(outcome, Failed):
        return fault_of(outcome.error)
    is_own = isinstance(outcome, Cancelled) and _raised_it_itself(attempt)
    return SELF_CANCELLED if is_own else None


def _raised_it_itself(attempt: Attempt[Any]) -> bool:
    """Return whether neither the slot nor code outside asked for the cancellation of an attempt."""
    if attempt.asked is not StopRequest.NOTHING or attempt.unwanted or not attempt.entered:
        return False
    if attempt.outside is not None:
        return True
    task = current_task()
    return task is not None and not task.cancelling()
