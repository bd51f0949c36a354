"""A worker process of a farm: `python -m poolhand.worker_process FD`, started by a supervisor.

It boots in order: the control thread, which sends heartbeats and receives commands; the app and its
warm-up; then it runs jobs until it is asked to stop.
"""

from __future__ import annotations

import asyncio
import gc
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
from poolhand.durable.calls.capture import attribute_output, show_log
from poolhand.durable.worker.running_claim import Unfinished, cut_short_text
from poolhand.durable.worker.worker import Worker, WorkerReport, WorkerSettings
from poolhand.errors import PoolhandError
from poolhand.farm.control_thread import ControlThread
from poolhand.farm.protocol import CutShort, Goodbye, Start, StartFailed, Stop, TroubleReport
from poolhand.farm.records import finished
from poolhand.observe.events import DeadlockFound, Event, JobSetAside, LeaseLost, SlotStuck
from poolhand.observe.failures import lease_lost_line, report, set_aside_line
from poolhand.observe.logs import LOUD, as_text, is_loud, log_events
from poolhand.pool.slots.fault import fault_of
from poolhand.rules.job import Job
from poolhand.runtime import Runtime

if TYPE_CHECKING:
    from poolhand.app import App

FOREVER = 10.0**9
STOP_GRACE = 0.2  # jobs cut short at the end of the grace have this long, twice, to stop
CLEAN_EXIT_SECONDS = 0.5
CLOSED_GRACE = 2.0  # for jobs to stop when the store was closed under them
UNFIT = 3  # the exit code of a worker that cannot run jobs


def main(descriptor: int) -> int:
    """Run a worker until the supervisor, a signal or the settings end it; return the exit code."""
    # First of all: Ctrl-C is handled by the supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=descriptor)
    # Processes that jobs start must not inherit it: its EOF signals that this process has ended.
    link.set_inheritable(False)
    control = ControlThread(link, Runtime())
    control.start()
    if isinstance(sys.stdout, TextIOWrapper):
        # Output of jobs appears at once, and lines of several workers do not mix.
        sys.stdout.reconfigure(line_buffering=True)
    # Before a log handler captures one of the streams.
    attribute_output()
    start_message = control.start_message
    show_log(start_message.loglevel.upper())
    try:
        app = load_app(start_message.app)
        # What was imported stays until the end: no collection needs to look through it.
        gc.freeze()
        asyncio.run(work(app, control))
    except (Exception, SystemExit) as error:
        fault = fault_of(error)
        if not isinstance(error, PoolhandError):
            logging.getLogger("poolhand").exception("this worker cannot start")
        control.send(StartFailed(f"{fault.type}: {fault.message}"))
        return UNFIT
    finally:
        control.end_soon()
    return 0


async def work(app: App, control: ControlThread) -> None:
    """Warm up, run jobs until asked to stop, and drain."""
    loop = asyncio.get_running_loop()
    _report_events(app, control)
    # However long it takes, and even if it blocks the event loop.
    await app.core.get_ready()
    try:
        connection = await app.core.connection()
        control.watch(loop, connection.thread.loop)
        worker = await app.core.make_worker(
            _worker_settings(control.start_message), partial(_remember, control)
        ).start()
        worker.on_overrun = partial(_cut_short, control)
        worker.on_store_closed = partial(_leave_closed, control)
        stop = Stopping(loop, worker)
        loop.add_signal_handler(signal.SIGTERM, _leave, control)
        control.ready(worker, stop.request, connection.mark_clean_exit)
        await stop.requested.wait()
        report = await stop.drain()
        if report.stuck:
            connection.mark_clean_exit(CLEAN_EXIT_SECONDS)
    finally:
        # An exit of `async with app` would leave the store open if the worker is not drained.
        await app.close()
    control.say_goodbye(Goodbye(report.completed, report.failed, report.handed_back))
    # Before the loop is closed, which waits for tasks that do not stop.
    control.end_soon()


class Stopping:
    """Receives stop requests from the control thread, and limits how long the drain takes."""

    def __init__(self, loop: AbstractEventLoop, worker: Worker) -> None:
        self.requested = asyncio.Event()
        self._loop = loop
        self._worker = worker
        self._ends_at = FOREVER

    def request(self, stop: Stop) -> None:
        self._loop.call_soon_threadsafe(self._request, stop)

    def _request(self, stop: Stop) -> None:
        grace = FOREVER if stop.grace is None else self._worker.needs(stop.grace)
        self._ends_at = min(self._ends_at, self._loop.time() + grace)
        if self.requested.is_set():
            self._worker.hurry(self._left)
        self.requested.set()

    @property
    def _left(self) -> float:
        return max(0.0, self._ends_at - self._loop.time())

    async def drain(self) -> WorkerReport:
        return await self._worker.drain(self._left)


def _worker_settings(start_message: Start) -> WorkerSettings:
    settings = start_message.settings
    return WorkerSettings(
        slots=settings.prefetch_per_worker,
        pools=start_message.pools,
        captures=True,
        quota=settings.max_jobs_per_worker or None,
        soft_timeout=settings.soft_timeout_s,
        hard_timeout=settings.hard_timeout_s,
        stop_grace=STOP_GRACE,
        rests=True,
    )


def _remember(control: ControlThread, job: Job) -> None:
    record = finished(job, control.start_message.worker)
    if record is not None:
        control.history.add(record)


def _cut_short(control: ControlThread, jobs: Sequence[Unfinished]) -> None:
    """Report to the supervisor which jobs are cut short, before the process exits."""
    if jobs:
        back = tuple(one.id for one in jobs if not one.fails)
        control.send(CutShort(back, cut_short_text(jobs)))


def _leave(control: ControlThread) -> None:
    settings = control.start_message.settings
    control.leave(settings.worker_shutdown_grace_s, "it received SIGTERM")


def _leave_closed(control: ControlThread) -> None:
    """End this process, whose worker has no store any more; another one replaces it."""
    if not control.is_leaving:
        logging.getLogger("poolhand").error(
            "code of this worker process called app.close(), which stops its worker: the process "
            "ends and is replaced; remove the call, or use `async with app:`"
        )
        control.leave(CLOSED_GRACE, "its app was closed")


def _report_events(app: App, control: ControlThread) -> None:
    """Report problems to the supervisor at once; log all events if verbose."""

    def report_trouble(event: Event) -> None:
        if is_loud(event) and not (isinstance(event, SlotStuck) and control.is_leaving):
            # A slot stuck at the end of a worker is reported with all jobs that are cut short.
            job = getattr(event, "job", None)
            control.send(TroubleReport(_text(event), job.id if isinstance(job, Job) else None))

    app.events.subscribe(report_trouble)
    # The supervisor logs them, with the name of the worker.
    report(app.events, LOUD)
    if control.start_message.verbose:
        log_events(events=app.events)


def _text(event: Event) -> str:
    """Return the text of an event for the supervisor's log, with advice where there is some."""
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
