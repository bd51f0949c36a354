"""Telling the user's own callback that a job is dead."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import Awaitable
from inspect import isawaitable

from poolhand.observe.events import CallbackFailed, Events
from poolhand.pool.config import OnDead
from poolhand.rules.job import Job

_tasks: set[Task[None]] = set()


def tell_dead(callback: OnDead, job: Job, loop: AbstractEventLoop, events: Events) -> None:
    """Call back soon, not in the middle of what is being settled."""
    task = loop.create_task(_call(callback, job, events), name=f"{job.pool}-on-dead")
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _call(callback: OnDead, job: Job, events: Events) -> None:
    try:
        told = callback(job)
        if isawaitable(told):
            await _await(told)
    except (Exception, CancelledError) as error:
        if events.live:
            text = f"{type(error).__name__}: {error}"
            events.emit(CallbackFailed(job.pool, "on_dead", text))


async def _await(awaitable: Awaitable[object]) -> None:
    await awaitable
