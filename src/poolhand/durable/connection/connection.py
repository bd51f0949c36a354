"""This process's connection to one store: lease, reaper, leader election, watchers, workers."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from poolhand.contract import Change, Lease, Store
from poolhand.durable.client.outcomes import JobWatcher, Outcomes, is_in
from poolhand.durable.client.unserved_notice import UnservedNotice
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.durable.leases import nested_waits as nested
from poolhand.durable.leases.closure_homes import ClosureHomes
from poolhand.durable.leases.heartbeat import OWNERS, Heartbeat
from poolhand.durable.leases.nested_waits import NestedWaits
from poolhand.durable.leases.reaper import Leader, Reaper
from poolhand.durable.streams.event_reader import EventReader
from poolhand.durable.streams.event_writer import KEEP_EVENTS, EventWriter
from poolhand.durable.streams.job_api import JobStoreApi
from poolhand.durable.worker.hand import Delivery, SettledClaim
from poolhand.errors import StoreError
from poolhand.observe.events import Events, JobEnded, JobRetried
from poolhand.observe.failures import FailureLog, warn
from poolhand.rules import streams
from poolhand.rules.job import Status
from poolhand.rules.queue.pool_spec import PoolSpec, differences, undeclared
from poolhand.rules.retention import Keep
from poolhand.rules.waits.nested_waits import WorkerSlots
from poolhand.runtime import Runtime

LEAVE_WITHIN = 2.0


class AttachedWorker(Protocol):
    """A worker that is attached to this store connection."""

    @property
    def task(self) -> Task[None] | None:
        """The dispatcher task that claims and writes for the worker; done when all is written."""

    def hint(self) -> None:
        """Signal that there may be something to claim."""

    def deliver(self, delivery: Delivery) -> None:
        """Report new claims and written outcomes."""

    def dismiss(self) -> None:
        """Stop, and hand back what runs; from any thread."""

    def slots_held(self, awaited: dict[str, list[str]]) -> WorkerSlots:
        """Return its slots and what runs there, given which ids each job awaits."""


class StoreConnection:
    """Opens a store on its store thread and runs its loops: leases, outcomes, maintenance."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        events: Events,
        keep: Keep,
        keep_events: int = KEEP_EVENTS,
    ) -> None:
        self.keeper = StoreThread(store, runtime, events)
        self.heart = Heartbeat(self.keeper)
        self.outcomes = Outcomes(self.keeper)
        self.chronicle = EventWriter(self.keeper, keep_events)
        self.ledger = JobStoreApi(self.keeper)
        self.listening = EventReader(self.keeper)
        self.parking = JobWatcher("parking", self.keeper, is_in)
        self.workers: list[AttachedWorker] = []
        self.declared: Mapping[str, PoolSpec] = {}
        self.homes = ClosureHomes(runtime.identity())
        self.heard: dict[str, Callable[[], None]] = {}
        self._failures = FailureLog(None, runtime.monotonic, events, throttled=False)
        self.outcomes.watch_unserved(UnservedNotice(self.keeper))
        self._nested = NestedWaits(self.keeper, self.heart, self.outcomes.watch, self.workers)
        self._reaper = Reaper(self.keeper, self.heart, self)
        self._leader = Leader(self.keeper, self.heart, self.homes, keep)

    @property
    def store(self) -> Store:
        return self.keeper.store

    @property
    def events(self) -> Events:
        return self.keeper.events

    async def open(self, specs: Mapping[str, PoolSpec]) -> None:
        """Open the store and start the loops; on the store thread's loop."""
        await self.store.open()
        await self.declare(specs)
        await self.heart.enroll()
        self.store.subscribe(self._hear)
        # Reap at once, so that jobs which an earlier run of this program left behind go on.
        await self._reaper.look()
        for name, work in (
            ("heartbeat", self.heart.run),
            ("guard", self.heart.guard),
            (self.outcomes.watch.name, self.outcomes.watch.run),
            (self.parking.name, self.parking.run),
            ("events", self.chronicle.run),
            ("nested waits", self._nested.run),
            ("reaper", self._reaper.run),
            ("leader", self._leader.run),
        ):
            self.keeper.start(name, work)

    async def declare(self, specs: Mapping[str, PoolSpec]) -> None:
        """Declare these pools, except those already declared so; on the store thread's loop."""
        changed = [spec for name, spec in specs.items() if self.declared.get(name) != spec]
        rows = await self.store.pools([spec.name for spec in changed]) if changed else []
        before = {row.spec.name: row.spec for row in rows}
        for spec in changed:
            await self.store.declare(spec)
            if (old := before.get(spec.name)) not in (None, self.declared.get(spec.name)):
                self._warn_of_change(old, spec)
        self.declared = specs

    def _warn_of_change(self, old: PoolSpec, new: PoolSpec) -> None:
        """Log that settings which another process declared are no longer in force."""
        changes = differences(old, new)
        # A pool that was used without a declaration has the default settings, which are not a
        # change.
        if changes and old != undeclared(old.name):
            some = ", ".join(f"{name} {before} -> {to}" for name, (before, to) in changes.items())
            text = (
                f"pool {new.name!r} was declared with other settings before, in the store "
                f"{self.store.place}: {some}; the last declaration holds in all processes: declare "
                "the pool alike in all apps and versions that use this store"
            )
            self.keeper.news.do(partial(warn, text))

    async def close(self) -> None:
        """Close everything in order; from another loop than the store thread's."""
        await self.keeper.close(self._leave)

    async def _leave(self) -> None:
        """Hand back what still runs, stop the loops, resign as leader and deregister this owner."""
        for worker in list(self.workers):
            worker.dismiss()
        tasks = [worker.task for worker in self.workers if worker.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_WITHIN)
        await self.keeper.stop()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE_WITHIN):
                await self._leader.resign()
                await self.heart.leave()
        await self.store.close()

    async def abandon(self) -> None:
        """Close a store that could not be opened; on the store thread's loop."""
        with suppress(Exception):
            await self.store.close()
        self.keeper.runtime.end_loop(self.keeper.loop)

    def forsake(self) -> None:
        """End as if the process had died: leases and jobs stay as they are; from any thread."""
        OWNERS.discard(self.heart.owner.id)
        self.keeper.do("forsake", self._forsake)

    async def _forsake(self) -> None:
        await self.keeper.stop()
        await self.abandon()

    def look_for_dead(self) -> None:
        """Reap dead owners at once; from any thread."""
        self.keeper.do("reaper", self._reaper.look)

    async def reap(self) -> None:
        """Reap dead owners and wait for it; from another loop than the store thread's."""
        await self.keeper.ask(self._reaper.look)

    def say_farewell(self, within: float) -> None:
        """Mark a clean exit; from another thread.

        Jobs that still run when this process ends are requeued without a failed attempt.
        """
        with suppress(StoreError, TimeoutError):
            self.keeper.ask_sync(self.heart.say_farewell, within)

    def see(self, leases: Sequence[Lease]) -> None:
        self.homes.look(leases)

    def inherit(self, changes: Sequence[Change], crashed: bool) -> None:
        """Report jobs of reaped owners through a worker, as if their attempts had ended here."""
        if self.workers and changes:
            done = tuple(SettledClaim(change, failed=crashed) for change in changes)
            self.workers[0].deliver(Delivery((), done))
            return
        for change in changes:
            told = JobEnded if change.job.status.terminal else JobRetried
            self.keeper.news.tell(told(change.job.pool, change.job))
            if crashed or change.job.status is Status.FAILED:
                self.keeper.news.do(partial(self._failures.ended, change.job))

    def _hear(self, topic: str) -> None:
        match topic:
            case "ready":
                for worker in self.workers:
                    worker.hint()
            case "over":
                self.outcomes.watch.hint()
                self.listening.hint()
            case streams.TOLD_TOPIC:
                self.listening.hint()
            case "entered":
                self.parking.hint()
            case "wish":
                self.heart.hint()
            case "due":
                self._leader.hint()
            case nested.TOPIC:
                self._nested.hint()
            case _ if topic in self.heard:
                self.heard[topic]()
            case _:
                pass  # A topic that has no subscriber here.
