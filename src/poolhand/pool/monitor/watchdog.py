"""The watchdog of an event loop: detects a blocked loop and the job that blocks it."""

from __future__ import annotations

import sys
import traceback
from asyncio import AbstractEventLoop
from threading import Event as Flag
from threading import current_thread
from types import FrameType
from weakref import WeakValueDictionary

from poolhand.observe.events import LoopBlocked
from poolhand.observe.stalls import LOGGED_AFTER, logs_blocks, warn_blocked
from poolhand.pool.slots.attempt import Attempt, AttemptWatch, Runnable
from poolhand.pool.slots.runner import FRAMES_OF_JOBS
from poolhand.pool.slots.ticker import Ticker
from poolhand.runtime import Runtime

PULSE = 0.05
BLOCKED = 0.1
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
        self._told: list[Attempt[Runnable] | None] = []
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
            self._told, self._logged, self._suspect = [], [], None
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
        if (self._told or self._logged) and now - self._suspected_at < BLOCKED:
            return
        logs = seconds >= LOGGED_AFTER and attempt not in self._logged
        emits = attempt not in self._told and self._is_heard()
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
            warn_blocked(found, [pool.events for pool in pools])
        if emits:
            self._told.append(attempt)
            for pool, event in zip(pools, found, strict=True):
                pool.events.emit(event)

    def _concerned(self, attempt: Attempt[Runnable] | None) -> list[AttemptWatch]:
        """Return the pools to report to: the job's own pool, else one per event bus."""
        host = None if attempt is None else attempt.work.host
        if host is not None and not host.stopped:
            # Under another runtime the host has its own watchdog, which reports to it.
            return [pool for pool in self._pools if pool is host]
        return list({pool.events: pool for pool in self._pools}.values())


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
