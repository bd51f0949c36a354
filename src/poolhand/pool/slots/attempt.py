"""An attempt: one run of one job in one slot; the clock and the timers of slots."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import Awaitable, Callable
from contextvars import Context
from datetime import datetime, timedelta
from enum import StrEnum
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

from poolhand.context import running
from poolhand.observe.events import Events
from poolhand.pool.options import SubmitTerms
from poolhand.pool.slots.process_parent import Child, ChildLost
from poolhand.rules.job import Job
from poolhand.rules.outcome import StopRequest
from poolhand.runtime import Runtime


class PoolClock:
    """Reads both clocks; due times use the monotonic clock only."""

    __slots__ = ("_runtime", "now")

    def __init__(self, runtime: Runtime) -> None:
        self.now = runtime.monotonic
        self._runtime = runtime

    def wall(self) -> datetime:
        return self._runtime.wall()

    def wall_at(self, moment: float) -> datetime:
        """Return the wall time of a past monotonic moment, by the current wall clock."""
        return self._runtime.wall() - timedelta(seconds=self.now() - moment)


NEVER = float("inf")


class Alarm:
    """Calls `ring(now)` once at the earliest time it was set to, never before."""

    __slots__ = ("_clock", "_loop", "_ring", "_timer", "at")

    def __init__(
        self, loop: AbstractEventLoop, clock: PoolClock, ring: Callable[[float], None]
    ) -> None:
        self.at = NEVER
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._timer: TimerHandle | None = None

    def set(self, at: float) -> None:
        if at < self.at:
            self.close()
            self.at = at
            self._timer = self._loop.call_later(max(0.0, at - self._clock.now()), self._go_off)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.at = NEVER

    def _go_off(self) -> None:
        now = self._clock.now()
        at, self.at, self._timer = self.at, NEVER, None
        if now < at:
            # Timers of an event loop may fire slightly early; an alarm must not.
            self.set(at)
        else:
            self._ring(now)


class Ticker:
    """Calls `tick` every `seconds` after creation; it uses a timer, not a task."""

    __slots__ = ("_loop", "_seconds", "_tick", "_timer")

    def __init__(self, loop: AbstractEventLoop, seconds: float, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._tick = tick
        self._timer: TimerHandle | None = loop.call_later(seconds, self._go_off)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _go_off(self) -> None:
        # Rearm before the call: `tick` may stop the ticker.
        self._timer = self._loop.call_later(self._seconds, self._go_off)
        self._tick()


class AttemptWatch(Protocol):
    """The pool or worker whose jobs run on a loop; its events report a blocked loop."""

    @property
    def label(self) -> str: ...

    @property
    def events(self) -> Events: ...

    @property
    def stopped(self) -> bool: ...


class Runnable(Protocol):
    """The part of a job that a slot uses: its call, its terms and its host.

    `place` is the attempt while the job runs.
    """

    job: Job
    terms: SubmitTerms
    run_in: str
    call: Callable[[], Any] | bytes | None
    place: Any

    @property
    def id(self) -> str: ...

    @property
    def token(self) -> int | None: ...

    @property
    def host(self) -> AttemptWatch: ...

    def snapshot(self) -> Job: ...

    def fresh_context(self) -> Context: ...

    @property
    def attempt_values(self) -> dict[str, Any]: ...

    def emit(self, kind: str, data: bytes) -> Awaitable[None]: ...

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]: ...

    def ask_sync(self, verb: str, *details: Any) -> Any: ...


W_co = TypeVar("W_co", bound=Runnable, covariant=True)


class SlotState(StrEnum):
    """The state of a slot; a stuck slot runs code whose job is already over."""

    IDLE = "idle"
    BUSY = "busy"
    STUCK = "stuck"


# Module-level names: looking a member up in its enum costs as much as a call, for every job.
IDLE, BUSY, STUCK = SlotState
NOTHING = StopRequest.NOTHING


class Slot(Generic[W_co]):
    """A place for one running job, and its counters."""

    __slots__ = (
        "attempt",
        "busy_for",
        "completed",
        "failed",
        "id",
        "index",
        "name",
        "runs",
        "state",
    )

    def __init__(self, index: int, pool: str) -> None:
        self.index = index
        self.id = f"worker-{index:03d}"
        self.name = f"{pool}-{self.id}"
        self.state = IDLE
        self.attempt: Attempt[W_co] | None = None
        self.completed = 0
        self.failed = 0
        self.runs = 0
        self.busy_for = 0.0


class OffLoop:
    """The part of an attempt that runs outside of the loop.

    Its code runs in `thread`, or a thread waits for a child process that executes `call` unless
    it was `killed`. `entered`: the call was made, or sent to the child. `loss`: how that child
    died. `sign` is the processor time at the last sign of activity, and when that was.
    """

    __slots__ = ("call", "entered", "killed", "loss", "sign", "thread")

    def __init__(self) -> None:
        self.entered = False
        self.killed = False
        self.loss: ChildLost | None = None
        self.call: tuple[Child, int] | None = None
        self.sign: tuple[float | None, float] | None = None
        self.thread: Thread | None = None


class Attempt(Generic[W_co]):
    """A job in a slot. `asked` is the strongest stop request so far, `begun`: its runner has begun.

    `due_at` is its next deadline; an `unwanted` attempt was cancelled and is not retried. Its code
    runs in `task`, or `outside` of the loop.
    """

    __slots__ = (
        "asked",
        "began",
        "begun",
        "due_at",
        "outside",
        "slot",
        "task",
        "unwanted",
        "work",
    )

    def __init__(self, work: W_co, slot: Slot[W_co], began: float) -> None:
        self.work = work
        self.slot = slot
        self.began = began
        self.begun = False
        self.asked = NOTHING
        self.due_at = NEVER
        self.unwanted = False
        self.task: Task[None] | None = None
        self.outside: OffLoop | None = None

    @property
    def live(self) -> bool:
        """Whether this attempt still decides the outcome of its job."""
        return self.slot.attempt is self and self.slot.state is BUSY

    @property
    def entered(self) -> bool:
        """Whether the code of the job may have had an effect."""
        return self.begun if self.outside is None else self.outside.entered

    @property
    def stop_requested(self) -> bool:
        return self.asked is not NOTHING or not self.live

    @property
    def submitter(self) -> str:
        return self.work.job.session or self.slot.name

    @property
    def token(self) -> int | None:
        return self.work.token

    def snapshot(self) -> Job:
        return self.work.snapshot()

    @property
    def attempt_values(self) -> dict[str, Any]:
        return self.work.attempt_values

    def emit(self, kind: str, data: bytes) -> Awaitable[None]:
        return self.work.emit(kind, data)

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]:
        return self.work.ask(verb, *details)


def current_job() -> Job | None:
    """Return the record of the job this code runs in, or None outside of a job."""
    inside = running.get()
    job = None if inside is None else inside.snapshot()
    return job if isinstance(job, Job) else None
