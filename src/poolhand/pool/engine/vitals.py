"""Activity checks: whether the code of a running job still uses the processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident

from msgspec import Struct

from poolhand.pool.engine.engine import Engine
from poolhand.pool.slots.attempt import STUCK, Attempt, OffLoop, Runnable, Slot
from poolhand.runtime import Runtime


class Examined(Struct, frozen=True):
    """Slots to examine, their loop's thread, how long that loop has not turned, and the limit."""

    slots: Sequence[Slot[Runnable]]
    runtime: Runtime
    thread: int
    silence: Callable[[float], float]
    stale_after: float


def slots_of(engine: Engine) -> Examined:
    """Return the current slots of a pool for examination."""
    slots = tuple(engine.slots.all)
    stale_after = engine.config.stale_after
    return Examined(slots, engine.runtime, engine.thread, engine.watch.silence, stale_after)


def look_for_life(examined: Examined, now: float) -> None:
    """Record which threads and processes have used the processor since the last look."""
    for slot in examined.slots:
        # Read once: the loop may change it while another thread looks.
        attempt = slot.attempt
        outside = None if attempt is None else attempt.outside
        if outside is not None:
            _feel_pulse(outside, examined.runtime, now)


def silent_for(examined: Examined, slot: Slot[Runnable], now: float) -> float:
    """Return how long a slot has shown no activity; for an idle slot, how long its loop has."""
    attempt = slot.attempt
    outside = None if attempt is None or _is_on_loop(attempt) else attempt.outside
    sign = None if outside is None else outside.sign
    if sign is None:
        return 0.0 if get_ident() == examined.thread else examined.silence(now)
    # Another thread may have recorded activity after `now` was read.
    return max(0.0, now - sign[1])


def is_stale(examined: Examined, slot: Slot[Runnable], now: float) -> bool:
    """Return whether a busy slot exceeds its job's deadline or, without one, shows no activity."""
    attempt = slot.attempt
    if attempt is None:
        return False
    if slot.state is STUCK:
        return True
    hard = attempt.work.terms.hard
    if hard is not None:
        return now > attempt.began + hard + SLACK
    return silent_for(examined, slot, now) >= examined.stale_after


SLACK = 1.0  # a deadline that has just passed is still being handled


def _is_on_loop(attempt: Attempt[Runnable]) -> bool:
    outside = attempt.outside
    # A task may wait for a thread, as the task of an agent with a plain `run` does.
    return outside is None or (outside.thread is None and attempt.task is not None)


def _feel_pulse(outside: OffLoop, runtime: Runtime, now: float) -> None:
    used, sign = _processor_time(outside, runtime), outside.sign
    if used is None or sign is None or sign[0] != used:
        # An unknown processor time counts as activity.
        outside.sign = (used, now)


def _processor_time(outside: OffLoop, runtime: Runtime) -> float | None:
    thread, order = outside.thread, outside.order
    if order is not None:
        return runtime.cpu_of_process(order[0].pid)
    return None if thread is None else runtime.cpu_of_thread(thread)
