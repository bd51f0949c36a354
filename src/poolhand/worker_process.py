"""A worker process of a farm: `python -m poolhand.worker_process FD`, as a supervisor starts it.

It boots the app freshly: the post first, which shows life and hears orders; then the app and its
warm-up; then jobs, until it is told to stop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING

from poolhand.app_name import load_app
from poolhand.durable.calls.attribution import attribute_output, show_log
from poolhand.durable.worker.settings import WorkerSettings
from poolhand.durable.worker.unfinished import Unfinished, cut_short_text
from poolhand.durable.worker.worker import Worker, WorkerReport
from poolhand.errors import PoolhandError
from poolhand.farm.control_thread import ControlThread
from poolhand.farm.history import finished
from poolhand.farm.protocol import CutShort, Goodbye, Start, StartFailed, Stop, TroubleReport
from poolhand.observe.events import DeadlockFound, Event, JobSetAside, LeaseLost, SlotStuck
from poolhand.observe.failures import lease_lost_line, report, set_aside_line
from poolhand.observe.logs import LOUD, as_text, is_loud, log_events
from poolhand.pool.slots.fault import fault_of
from poolhand.rules.job import Job
from poolhand.runtime import Runtime

if TYPE_CHECKING:
    from poolhand.app import App

FOREVER = 10.0**9
STOP_GRACE = 0.2  # what is cut short at the end of a grace has this long, twice, to come to an end
LAST_WORDS = 0.5
UNFIT = 3  # the exit code of a worker that cannot work


def main(descriptor: int) -> int:
    """Be a worker until the supervisor, a signal or the settings end it; return the exit code."""
    # Before anything else: Ctrl-C is for the supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=descriptor)
    # What jobs start must not hold on to it: its end tells that this process has ended.
    link.set_inheritable(False)
    post = ControlThread(link, Runtime())
    post.start()
    if isinstance(sys.stdout, TextIOWrapper):
        # What jobs print is seen when they do, and lines of several workers do not mix.
        sys.stdout.reconfigure(line_buffering=True)
    # Before any handler of a log takes a stream for itself.
    attribute_output()
    employ = post.employ
    show_log(employ.loglevel.upper())
    try:
        asyncio.run(work(load_app(employ.app), post))
    except (Exception, SystemExit) as error:
        fault = fault_of(error)
        if not isinstance(error, PoolhandError):
            logging.getLogger("poolhand").exception("this worker cannot work")
        post.say(StartFailed(f"{fault.type}: {fault.message}"))
        return UNFIT
    finally:
        post.end_soon()
    return 0


async def work(app: App, post: ControlThread) -> None:
    """Warm up, run jobs until told to stop, and drain."""
    loop = asyncio.get_running_loop()
    _tell_events(app, post)
    # However long that takes, and even if nothing else can be done meanwhile.
    await app.get_ready()
    async with app:
        station = await app.station()
        post.watch(loop, station.keeper.loop)
        shift = await app.shift(_terms(post.employ), partial(_remember, post)).start()
        shift.on_overrun = partial(_cut_short, post)
        stop = Stopping(loop, shift)
        loop.add_signal_handler(signal.SIGTERM, _leave, post)
        post.ready(shift, stop.hear, station.say_farewell)
        await stop.told.wait()
        report = await stop.drain()
        if report.stuck:
            station.say_farewell(LAST_WORDS)
    post.bye(Goodbye(report.completed, report.failed, report.handed_back))
    # Now: the end of a loop waits for tasks that do not let go.
    post.end_soon()


class Stopping:
    """Hears when to stop, from the thread of the post, and sees to it that it is done in time."""

    def __init__(self, loop: AbstractEventLoop, shift: Worker) -> None:
        self.told = asyncio.Event()
        self._loop = loop
        self._shift = shift
        self._ends_at = FOREVER

    def hear(self, stop: Stop) -> None:
        self._loop.call_soon_threadsafe(self._hear, stop)

    def _hear(self, stop: Stop) -> None:
        grace = FOREVER if stop.grace is None else self._shift.needs(stop.grace)
        self._ends_at = min(self._ends_at, self._loop.time() + grace)
        if self.told.is_set():
            self._shift.hurry(self._left)
        self.told.set()

    @property
    def _left(self) -> float:
        return max(0.0, self._ends_at - self._loop.time())

    async def drain(self) -> WorkerReport:
        return await self._shift.drain(self._left)


def _terms(employ: Start) -> WorkerSettings:
    settings = employ.settings
    return WorkerSettings(
        slots=settings.prefetch_per_worker,
        pools=employ.pools,
        captures=True,
        quota=settings.max_jobs_per_worker or None,
        soft_timeout=settings.soft_timeout_s,
        hard_timeout=settings.hard_timeout_s,
        stop_grace=STOP_GRACE,
        rests=True,
    )


def _remember(post: ControlThread, job: Job) -> None:
    told = finished(job, post.employ.worker)
    if told is not None:
        post.history.add(told)


def _cut_short(post: ControlThread, jobs: Sequence[Unfinished]) -> None:
    """Tell the supervisor which jobs are cut short, before the process ends under them."""
    if jobs:
        back = tuple(one.id for one in jobs if not one.fails)
        post.say(CutShort(back, cut_short_text(jobs)))


def _leave(post: ControlThread) -> None:
    settings = post.employ.settings
    post.leave(settings.worker_shutdown_grace_s, "it was sent SIGTERM")


def _tell_events(app: App, post: ControlThread) -> None:
    """Let the supervisor know at once what should not be; and log, if that is wanted."""

    def tell(event: Event) -> None:
        if is_loud(event) and not (isinstance(event, SlotStuck) and post.is_leaving):
            # What does not stop at the end of a worker is told with all that it cuts short.
            job = getattr(event, "job", None)
            post.say(TroubleReport(_text(event), job.id if isinstance(job, Job) else None))

    app.events.subscribe(tell)
    # The supervisor logs them: it names the worker.
    report(app.events, LOUD)
    if post.employ.verbose:
        log_events(events=app.events)


def _text(event: Event) -> str:
    """Return an event as the supervisor logs it: with what to do, where that is known."""
    match event:
        case JobSetAside(job=job, cause=cause, hint=hint):
            return set_aside_line(job, cause, hint)
        case DeadlockFound(text=text) if text:
            return text
        case LeaseLost(job=job):
            return lease_lost_line(job)
        case _:
            return as_text(event)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
