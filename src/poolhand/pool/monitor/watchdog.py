"""Watches an event loop: detects that a job blocks it, and that all its tasks are cancelled."""

from __future__ import annotations

import sys
import traceback
from asyncio import AbstractEventLoop, CancelledError, Future, Task, TimerHandle
from collections.abc import Awaitable, Callable
from threading import Event as Flag
from threading import current_thread, get_ident
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

from poolhand.context import running
from poolhand.observe.events import LoopBlocked
from poolhand.observe.failures import LOGGED_AFTER, logs_blocks, warn_blocked
from poolhand.pool.slots.attempt import Attempt, AttemptWatch, Runnable, Ticker
from poolhand.pool.slots.runner import FRAMES_OF_JOBS, own_task
from poolhand.runtime import Runtime

PULSE = 0.05
BLOCKED = 0.1
REST_AFTER = 1.0  # seconds without a job after which a loop that jobs alone use is not watched
UNHEARD = 1.0  # how often to check for subscribers; each check interrupts the loop
MOST_FRAMES = 30
# Where asyncio's own loop waits, and where a loop without Python code (uvloop) appears to be.
WAITING = frozenset({"selectors", "asyncio.runners"})

# Keyed by ids of objects it holds. Its pools and thread hold it until a drain or a closed loop.
_watchdogs: WeakValueDictionary[tuple[int, int], Watchdog] = WeakValueDictionary()


class Watchdog:
    """One per loop (and runtime), shared by its pools: the loop sets a pulse, a thread checks it.

    A block is reported once, while it lasts, without waiting for its end. If another job continues
    the block where one ended, that is reported too. Code that never releases the interpreter lock
    stops the thread as well, and is reported once it does. A block of a second or more is also
    logged, unless a subscriber logs it.
    """

    def __init__(self, loop: AbstractEventLoop, runtime: Runtime) -> None:
        self._loop = loop
        self._now = runtime.monotonic
        self._runtime = runtime
        self._thread = current_thread()
        self._pools: list[AttemptWatch] = []
        self._pulse_at = self._looked_at = self._stood_at = self._now()
        self._worked = self._processor_time()
        self._reported: list[Attempt[Runnable] | None] = []
        self._logged: list[Attempt[Runnable] | None] = []
        self._pace = PULSE
        self._suspect: Attempt[Runnable] | None = None
        self._suspected_at = 0.0
        self._ticker: Ticker | None = None
        self._over = Flag()

    @classmethod
    def of(cls, loop: AbstractEventLoop, runtime: Runtime) -> Watchdog:
        """Return the watchdog of a loop."""
        return _watchdogs.setdefault((id(loop), id(runtime)), cls(loop, runtime))

    def join(self, pool: AttemptWatch) -> Watchdog:
        """Watch for a pool until it leaves."""
        self._pools.append(pool)
        if self._ticker is None and self._listen():
            self._ticker = Ticker(self._loop, PULSE, self._pulse)
        return self

    def leave(self, pool: AttemptWatch) -> None:
        """Stop watching for a pool; stop the watchdog when the last pool leaves."""
        if pool not in self._pools:
            return
        self._pools.remove(pool)
        if not self._pools:
            # The next pool may run this loop on another thread: it gets a new watchdog.
            _watchdogs.pop((id(self._loop), id(self._runtime)), None)
            self._over.set()
            if self._ticker is not None:
                self._ticker.stop()
                self._ticker = None

    def silence(self, now: float) -> float:
        """Return the seconds since the loop last turned."""
        return 0.0 if self._ticker is None else max(0.0, now - self._pulse_at)

    def look(self, now: float) -> None:
        """Report a blocked loop, once for each job or other code that blocks it."""
        worked, self._worked = self._worked, self._processor_time()
        late, self._looked_at = now - self._looked_at >= 2 * self._pace, now
        if not self._loop.is_running():
            self._stood_at = now
        seconds = now - max(self._pulse_at, self._stood_at)
        if seconds < BLOCKED:
            self._reported, self._logged, self._suspect = [], [], None
        elif late and self._worked - worked < BLOCKED:
            # This thread was delayed, and not by the loop: the look proves nothing.
            return
        elif self._is_heard() or (seconds >= LOGGED_AFTER and self._is_logged()):
            frame = sys._current_frames().get(self._thread.ident or 0)
            if frame is not None and not _waits(frame):
                self._blame(frame, seconds, now)

    def _listen(self) -> bool:
        """Start the watching thread; return False if that is impossible or unnecessary."""
        try:
            return self._runtime.watch(self._watch)
        except RuntimeError:
            # No thread is available: the pool works without a watchdog.
            return False

    def _processor_time(self) -> float:
        return self._runtime.cpu_of_thread(self._thread) or 0.0

    def _pulse(self) -> None:
        self._pulse_at = self._now()

    def _watch(self) -> None:
        while not self._over.wait(self._pause()) and not self._loop.is_closed():
            self.look(self._now())

    def _pause(self) -> float:
        self._pace = PULSE if self._is_heard() else UNHEARD
        return self._pace

    def _is_heard(self) -> bool:
        return any(pool.events.live for pool in self._pools)

    def _is_logged(self) -> bool:
        return any(logs_blocks(pool.events) for pool in self._pools)

    def _blame(self, frame: FrameType, seconds: float, now: float) -> None:
        """Report the code that blocks the loop, unless already reported or it has just begun."""
        attempt, frames = _culprit(frame)
        if attempt is not self._suspect:
            self._suspect, self._suspected_at = attempt, now
        if (self._reported or self._logged) and now - self._suspected_at < BLOCKED:
            return
        logs = seconds >= LOGGED_AFTER and attempt not in self._logged
        emits = attempt not in self._reported and self._is_heard()
        if not (logs or emits):
            return
        shown = reversed(frames[:MOST_FRAMES])
        lines = traceback.StackSummary.extract((one, one.f_lineno) for one in shown)
        job = None if attempt is None else attempt.work.snapshot()
        pools = self._concerned(attempt)
        found = []
        for pool in pools:
            own = attempt is not None and attempt.work.host is pool
            name = job.pool if own and job is not None else pool.label
            found.append(LoopBlocked(name, job, seconds, "".join(lines.format())))
        if logs:
            self._logged.append(attempt)
            timeout = None if attempt is None else attempt.work.terms.hard
            warn_blocked(found, [pool.events for pool in pools], timeout)
        if emits:
            self._reported.append(attempt)
            for pool, event in zip(pools, found, strict=True):
                pool.events.emit(event)

    def _concerned(self, attempt: Attempt[Runnable] | None) -> list[AttemptWatch]:
        """Return the pools to report to: the job's own pool, else one per event bus."""
        host = None if attempt is None else attempt.work.host
        if host is not None and not host.stopped:
            # Under another runtime the host has its own watchdog, which reports to it.
            return [pool for pool in self._pools if pool is host]
        return list({pool.events: pool for pool in self._pools}.values())


class LoopWatch:
    """Has the loop watched from the start, or, if it `rests`, only while there are jobs.

    A watch costs some forty wake-ups a second. A loop that only jobs could block is not watched
    while there are none.
    """

    def __init__(
        self, worker: AttemptWatch, loop: AbstractEventLoop, runtime: Runtime, rests: bool
    ) -> None:
        self.thread = get_ident()
        self._worker = worker
        self._loop = loop
        self._runtime = runtime
        self._rests = rests
        self._watch: Watchdog | None = None
        self._timer: TimerHandle | None = None
        if not rests:
            self.begin()

    def begin(self) -> None:
        """Watch from now on: a job begins."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is None:
            self._watch = Watchdog.of(self._loop, self._runtime).join(self._worker)

    def rest(self) -> None:
        """Stop watching, unless a job begins soon."""
        if self._rests and self._timer is None:
            self._timer = self._loop.call_later(REST_AFTER, self.end)

    def silence(self, now: float) -> float:
        """Return how long ago the loop last turned; 0 while it is not watched."""
        watch = self._watch
        return 0.0 if watch is None else watch.silence(now)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is not None:
            self._watch.leave(self._worker)
            self._watch = None


class LoopGuard:
    """A task of a loop that is cancelled when all tasks of the loop are; finds out by which code.

    Code that ends a loop cancels its tasks: `ending` is then called. If a job does so, `swept` is
    called with its attempt, in the context of that job, and the guard goes on.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        swept: Callable[[Attempt[Any]], None],
        ending: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._swept = swept
        self._ending = ending
        self._by_job = self._left = False
        self._task = self._stand()

    @property
    def ending(self) -> bool:
        """Whether the loop is being ended."""
        return self._task.cancelling() > 0 and not self._by_job

    def leave(self) -> None:
        """Stop guarding."""
        self._left = True
        self._task.cancel()

    def _stand(self) -> Task[None]:
        return own_task(self._loop, self._watch(), "worker-guard")

    async def _watch(self) -> None:
        try:
            await _Rest(self._disturbed, self._loop)
        except CancelledError:
            if self._by_job and not self._left:
                self._by_job, self._task = False, self._stand()
            elif not self._left:
                await self._ending()
            raise

    def _disturbed(self) -> None:
        culprit: Any = running.get()
        if culprit is not None and not self._left:
            self._by_job = True
            self._swept(culprit)


class _Rest(Future[None]):
    """The future that the guard awaits: it calls `disturbed` in the context of the canceller."""

    def __init__(self, disturbed: Callable[[], None], loop: AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._disturbed = disturbed

    def cancel(self, msg: Any = None) -> bool:
        if not self.done():
            self._disturbed()
        return super().cancel(msg)


def _culprit(frame: FrameType | None) -> tuple[Attempt[Runnable] | None, list[FrameType]]:
    """Return the attempt whose code runs in this frame, or None, and the frames of that code."""
    frames: list[FrameType] = []
    while frame is not None:
        if frame.f_code in FRAMES_OF_JOBS:
            found = frame.f_locals.get("attempt")
            # A finished attempt has left its slot: the running code is then a subscriber.
            inside = isinstance(found, Attempt) and found.slot.attempt is found
            return (found if inside else None), frames
        frames.append(frame)
        frame = frame.f_back
    return None, frames


def _waits(frame: FrameType) -> bool:
    """Return whether a loop only waits for I/O or timers."""
    return frame.f_globals.get("__name__") in WAITING
