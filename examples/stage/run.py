"""One run of the demo: the app, its workers, the traffic, the view, and the end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
from asyncio import AbstractEventLoop, Task
from contextlib import suppress
from dataclasses import replace
from threading import current_thread
from types import FrameType
from typing import Protocol

from rich.console import Console

from poolhand import PoolhandError, StoreError, Worker, subscribe
from poolhand.contract import Filter
from poolhand.observe.events import OwnerReaped
from poolhand.views import Event, Status, WorkerReport
from stage import commands, summary
from stage.agents import OPERATOR, keep_log_quiet
from stage.crew import Crew
from stage.flags import SCHEME, Flags
from stage.kept import POOL, Kept
from stage.ledger import Ledger, Origin
from stage.lines import Lines, say
from stage.news import BAD, GOOD, Newsroom, jobs
from stage.plan import tenants
from stage.process import Process
from stage.screen import Screen
from stage.state import State
from stage.summary import Books
from stage.traffic import Traffic

DRAIN_SECONDS = 10.0
LOOK_EVERY = 0.2
MOST_RERUNS = 3  # dead letters at the end: under a heavy load a job may time out for good again
STOPPED_NOW = 130
OURS = Filter(pool=POOL)
DEAD = Filter(pool=POOL, dead=True)
UNFINISHED = Filter(
    pool=POOL, statuses=(Status.SCHEDULED, Status.BLOCKED, Status.QUEUED, Status.RUNNING)
)


class View(Protocol):
    """A way to watch the run."""

    interval: float

    def paint(self) -> None: ...


class Run:
    """Everything between the first submit and the end of the last process."""

    def __init__(self, flags: Flags, kept: Kept, loop: AbstractEventLoop) -> None:
        mark = secrets.token_hex(4)
        self.operator = kept.app.operator()
        self.newsroom = Newsroom()
        self.ledger = Ledger(tenants(flags.tenants), self.newsroom, mark)
        self.traffic = Traffic(kept, self.ledger, flags, mark)
        self.crew = Crew(flags, self.newsroom, self._hear_from)
        self.here = Process("worker 1", os.getpid(), flags.own_slots)
        self.state = State(flags, self.newsroom, self.ledger, self.here, self.crew)
        self.worker: Worker = kept.app.worker(flags.own_slots, [POOL], DRAIN_SECONDS)
        self._loop = loop
        self._thread = current_thread()
        self._interrupted = asyncio.Event()
        self._hurry: Task[WorkerReport] | None = None

    def hear(self, event: Event) -> None:
        """Handle one event of this process, from any of its threads."""
        if current_thread() is self._thread:
            self._hear_from(event, self.here)
            return
        with suppress(RuntimeError):
            # The loop is closed: there is no view left to show it.
            self._loop.call_soon_threadsafe(self._hear_from, event, self.here)

    def interrupt(self) -> None:
        """Drain; when called again, stop now."""
        if not self._interrupted.is_set():
            self._interrupted.set()
        elif self._hurry is None and self.state.draining:
            self.state.stopping_now = True
            self.crew.hurry()
            self._hurry = asyncio.create_task(self.worker.drain(0))

    async def prepare(self) -> None:
        """Find the jobs that an earlier run has left in the file."""
        await self.ledger.begin(self.operator)
        after: int | None = None
        while True:
            page = await self.operator.jobs(UNFINISHED, after)
            for job in page:
                self.ledger.find(job)
            after = page.after
            if after is None:
                break
        if self.ledger.found:
            text = f"{jobs(self.ledger.found)} of an earlier run waited in the file: they go on"
            self.newsroom.headline("", text, GOOD)

    async def watched_by(self, view: View) -> WorkerReport:
        """Work until the load is done or an interrupt comes, then drain."""
        async with asyncio.TaskGroup() as tasks:
            watchers = [tasks.create_task(_paint(view)), tasks.create_task(self._look())]
            await self.worker.start()
            self.crew.begin(tasks)
            show = tasks.create_task(self._perform())
            interrupted = tasks.create_task(self._interrupted.wait())
            await asyncio.wait({show, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            interrupted.cancel()
            if self._interrupted.is_set():
                self.state.begin_drain(DRAIN_SECONDS)
                view.paint()
                show.cancel()
                await asyncio.wait({show})
            _, report = await asyncio.gather(self.crew.stop(), self.worker.drain(DRAIN_SECONDS))
            for watcher in watchers:
                watcher.cancel()
        return report

    async def close_books(self, report: WorkerReport) -> Books:
        """Collect all accounts, now that nothing runs any more."""
        await self.state.look(self.operator)
        await self.traffic.settle(self.operator)
        left = sum((await self.operator.count(UNFINISHED)).values())
        dead = await self.dead()
        return Books(self.traffic, self.ledger, self.crew.falls, report, left, dead)

    async def dead(self) -> int:
        """Count the dead letters."""
        return sum((await self.operator.count(DEAD)).values())

    async def _perform(self) -> None:
        """Run everything; in one round, to its end."""
        await self.crew.up.wait()
        await self.traffic.run(self._rerun_dead)
        await self._until_over(Origin.FOUND)
        await self.crew.stop()
        for _ in range(MOST_RERUNS):
            await self._rerun_dead()
            await self._until_over(Origin.RERUN)
            if not await self.dead():
                break

    async def _until_over(self, origin: Origin) -> None:
        while self.ledger.alive(origin):
            self.state.looked.clear()
            await self.state.looked.wait()

    async def _rerun_dead(self) -> None:
        """Retry the dead letters, as an operator does who has fixed the cause."""
        done = (await self.operator.retry_all(OURS, by=OPERATOR)).done
        await self.state.look(self.operator)
        if done:
            letters = "1 dead letter" if done == 1 else f"{done} dead letters"
            self.newsroom.headline("", f"the cause is mended: {letters} run again", GOOD)

    async def _look(self) -> None:
        while True:
            try:
                await self.state.look(self.operator)
            except StoreError as error:
                self.newsroom.headline("", f"the store does not answer: {error}", BAD)
            await asyncio.sleep(LOOK_EVERY)

    def _hear_from(self, event: Event, process: Process) -> None:
        if isinstance(event, OwnerReaped):
            self.crew.taken_back(event.pid, len(event.job_ids))
        process.hear(event)
        self.newsroom.hear(event)


async def _paint(view: View) -> None:
    while True:
        view.paint()
        await asyncio.sleep(view.interval)


def run(flags: Flags) -> int:
    """Run the demo; returns the exit code."""
    keep_log_quiet()
    try:
        return asyncio.run(_run(flags))
    except PoolhandError as error:
        print(f"demo.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Before anything had begun.
        return STOPPED_NOW


async def _run(flags: Flags) -> int:
    flags = _with_store(flags)
    kept = Kept(flags)
    async with kept.app:
        run = Run(flags, kept, asyncio.get_running_loop())
        _on_signals(run)
        say(_intro(flags, run.state))
        await run.prepare()
        unsubscribe = subscribe(run.hear)
        try:
            report = await _watch(run)
        finally:
            unsubscribe()
        books = await run.close_books(report)
    summary.show(books)
    _say_what_is_next(flags, run.state, books)
    if not summary.conserved(books):
        return 1
    return STOPPED_NOW if run.state.stopping_now else 0


def _with_store(flags: Flags) -> Flags:
    """Return the flags with a store: a new file, in a folder of its own, unless one is given."""
    if flags.store:
        return flags
    folder = tempfile.mkdtemp(prefix="poolhand-demo-")
    return replace(flags, store=f"{SCHEME}{folder}/agents.db")


def _intro(flags: Flags, state: State) -> str:
    return (
        f"{flags.sessions} sessions of {flags.tenants} tenants: one fair pool of {flags.slots} "
        "slots, in two processes,\nof which one will be killed. Offline; Ctrl-C drains.\n"
        f"Jobs are kept in {state.file}"
    )


def _say_what_is_next(flags: Flags, state: State, books: Books) -> None:
    say("")
    if books.left:
        say(f"{jobs(books.left)} waiting in {state.file}. To go on with them:")
        say(f"  {commands.again(flags)}")
    say("Everything is still in the file; try:")
    for command in commands.afterwards(flags, books.dead):
        say(f"  {command}")
    say("What to read next: README.md, docs/start/tutorial.md")


async def _watch(run: Run) -> WorkerReport:
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        with Screen(run.state, console) as screen:
            return await run.watched_by(screen)
    with Lines(run.state) as lines:
        return await run.watched_by(lines)


def _on_signals(run: Run) -> None:
    """Handle Ctrl-C on the event loop, where it interrupts no code half-way."""
    loop = asyncio.get_running_loop()

    def hear(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(run.interrupt)

    signal.signal(signal.SIGINT, hear)
    signal.signal(signal.SIGTERM, hear)
