"""Calls the user's `on_dead` callback for jobs that end as dead letters."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import Awaitable
from functools import partial
from inspect import isawaitable

from poolhand.observe.events import CallbackFailed, Events
from poolhand.observe.failures import warn
from poolhand.pool.config import OnDead
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.pool.slots.fault import fault_of
from poolhand.pool.slots.runner import start_task
from poolhand.rules.job import Job


class OnDeadCallbacks:
    """Calls `on_dead`, each time in a task of its own, not in the middle of settling."""

    def __init__(self, loop: AbstractEventLoop, events: Events) -> None:
        self._loop = loop
        self._events = events
        self._tasks: set[Task[None]] = set()

    def tell(self, callback: OnDead, job: Job) -> None:
        make = partial(self._call, callback, job)
        task = start_task(self._loop, make, f"{job.pool}-on-dead")
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def over(self, within: float) -> None:
        """Wait for the calls that still run, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_GRACE)

    async def _call(self, callback: OnDead, job: Job) -> None:
        try:
            told = callback(job)
            if isawaitable(told):
                await _await(told)
        except (Exception, CancelledError) as error:
            fault = fault_of(error)
            text = f"{fault.type.rpartition('.')[2]}: {fault.message}"
            warn(f"on_dead of pool {job.pool!r} raised {text}", CallbackFailed, self._events)
            if self._events.live:
                self._events.emit(CallbackFailed(job.pool, "on_dead", text))
            if isinstance(error, CancelledError):
                raise


async def _await(awaitable: Awaitable[object]) -> None:
    await awaitable
