"""One run of the demo: the pool, its traffic, somebody who watches, and the end."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio import Task
from types import FrameType
from typing import Protocol

from rich.console import Console

from poolhand import DrainReport, Event, Pool, bounded, fair_round_robin, subscribe
from poolhand.observe.events import PoolResized
from stage import summary
from stage.agents import Pace
from stage.flags import Flags
from stage.ledger import Ledger
from stage.lines import Lines, say
from stage.plan import tenants
from stage.screen import Screen
from stage.state import State
from stage.traffic import Traffic

DRAIN_SECONDS = 10.0
QUEUE_PER_SLOT = 5
STOPPED_NOW = 130
LULL = 30.0  # seconds at most; an idle pool is back at its first size after a few


class View(Protocol):
    """A way to watch the run."""

    interval: float

    def paint(self) -> None: ...


class Run:
    """Everything between the first submit and the drained pool."""

    def __init__(self, flags: Flags, pool: Pool) -> None:
        self.ledger = Ledger(tenants(flags.tenants))
        self.state = State(pool, self.ledger, flags)
        self.traffic = Traffic(pool, self.ledger, flags)
        self._pool = pool
        self._interrupted = asyncio.Event()
        self._small = asyncio.Event()
        self._small.set()
        self._hurry: Task[DrainReport] | None = None

    def hear(self, event: Event) -> None:
        """Take in one event of the pool."""
        self.ledger.hear(event)
        if isinstance(event, PoolResized):
            is_small = event.after == self.state.flags.slots
            (self._small.set if is_small else self._small.clear)()

    def interrupt(self) -> None:
        """Drain; when told again, stop now."""
        if not self._interrupted.is_set():
            self._interrupted.set()
        elif self._hurry is None:
            self.state.stopping_now = True
            self._hurry = asyncio.create_task(self._pool.drain(0))

    async def watched_by(self, view: View) -> DrainReport:
        """Work until the load is done or somebody interrupts, then drain."""
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self.traffic.run())
            painter = tasks.create_task(_paint(view))
            interrupted = tasks.create_task(self._interrupted.wait())
            await asyncio.wait({work, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            await self._until_small(interrupted)
            interrupted.cancel()
            self.traffic.stop()
            if self._interrupted.is_set():
                self.state.begin_drain(DRAIN_SECONDS)
                view.paint()
            report = await self._pool.drain(DRAIN_SECONDS)
            await work
            painter.cancel()
        return report

    async def _until_small(self, interrupted: Task[bool]) -> None:
        """Wait until a pool that has grown has shrunk again, unless somebody interrupts."""
        small = asyncio.create_task(self._small.wait())
        most = max(LULL, Pace(self.state.flags.speed).seconds(LULL))
        either = {small, interrupted}
        await asyncio.wait(either, timeout=most, return_when=asyncio.FIRST_COMPLETED)
        small.cancel()


async def _paint(view: View) -> None:
    while True:
        view.paint()
        await asyncio.sleep(view.interval)


def run(flags: Flags) -> int:
    """Run the demo; returns the exit code."""
    return asyncio.run(_run(flags))


async def _run(flags: Flags) -> int:
    say(
        f"{flags.sessions} sessions of {flags.tenants} tenants in one fair pool of {flags.slots} "
        f"slots.\nUnder load it grows to {flags.most_slots} by itself. Offline; Ctrl-C drains."
    )
    pace = Pace(flags.speed)
    pool = Pool(
        "demo",
        max_concurrent=flags.slots,
        queue=fair_round_robin("tenant_id"),
        backpressure=bounded(QUEUE_PER_SLOT * flags.slots),
        soft_timeout=pace.soft_timeout,
        timeout=pace.timeout,
        retry=pace.retry,
        autoscale=pace.autoscale(flags.slots, flags.most_slots),
    )
    run = Run(flags, pool)
    unsubscribe = subscribe(run.hear)
    _on_signals(run)
    try:
        async with pool:
            report = await _watch(run)
    finally:
        unsubscribe()
    summary.show(report, run.traffic, run.ledger)
    say("What to read next: README.md")
    if not summary.conserved(report, run.traffic, run.ledger):
        return 1
    return STOPPED_NOW if run.state.stopping_now else 0


async def _watch(run: Run) -> DrainReport:
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        with Screen(run.state, console) as screen:
            return await run.watched_by(screen)
    with Lines(run.state) as lines:
        return await run.watched_by(lines)


def _on_signals(run: Run) -> None:
    """Hear Ctrl-C on the event loop, where nothing can be interrupted half-way."""
    loop = asyncio.get_running_loop()

    def hear(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(run.interrupt)

    signal.signal(signal.SIGINT, hear)
    signal.signal(signal.SIGTERM, hear)
