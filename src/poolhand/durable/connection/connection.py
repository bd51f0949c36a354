"""This process's connection to one store: lease, reaper, leader election, watchers, workers.

It is opened once per process for all callers, on any loop or thread. `store_proxy` is the store as
those callers see it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future as PlainFuture
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Protocol, cast

from poolhand.contract import Change, Store
from poolhand.durable.client.explain import UnservedNotice
from poolhand.durable.client.outcomes import JobWatcher, Outcomes, is_in
from poolhand.durable.connection.open_blocks import LocalWorkers
from poolhand.durable.connection.store_thread import CallResult, StoreThread
from poolhand.durable.leases import nested_waits as nested
from poolhand.durable.leases.heartbeat import OWNERS, Heartbeat
from poolhand.durable.leases.nested_waits import NestedWaits
from poolhand.durable.leases.reaper import ClosureHomes, Leader, Reaper
from poolhand.durable.streams.events import KEEP_EVENTS, EventReader, EventWriter
from poolhand.durable.streams.job_api import JobStoreApi
from poolhand.errors import StoreError, Unavailable
from poolhand.observe.events import Events, JobEnded, JobRetried
from poolhand.observe.failures import FailureLog, warn
from poolhand.rules import streams
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.stored_desk import PoolSpec, differences, undeclared
from poolhand.runtime import Runtime, check_script

LEAVE_WITHIN = 2.0
OPEN_WITHIN = 10.5  # how many seconds a thread waits for a store to open


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
        self.thread = StoreThread(store, runtime, events)
        self.heartbeat = Heartbeat(self.thread)
        self.outcomes = Outcomes(self.thread)
        self.event_writer = EventWriter(self.thread, keep_events)
        self.job_api = JobStoreApi(self.thread)
        self.event_reader = EventReader(self.thread)
        self.parking = JobWatcher("parking", self.thread, is_in)
        self.workers = self.heartbeat.workers
        self.local_workers = LocalWorkers()
        self.declared: Mapping[str, PoolSpec] = {}
        self.homes = ClosureHomes(runtime.identity())
        self.heard: dict[str, Callable[[], None]] = {}
        self._failures = FailureLog(None, runtime.monotonic, events, throttled=False)
        unserved = UnservedNotice(self.thread)
        self.outcomes.watch_unserved(unserved.met, unserved.look)
        self.parking.met, self.parking.looked = unserved.met, unserved.look
        self._nested = NestedWaits(self.heartbeat, self.outcomes.watch)
        self._reaper = Reaper(self.heartbeat, self.homes, self._report_reaped)
        self._leader = Leader(self.heartbeat, self.homes, keep)

    @property
    def store(self) -> Store:
        return self.thread.store

    @property
    def events(self) -> Events:
        return self.thread.events

    async def open(self, specs: Mapping[str, PoolSpec]) -> None:
        """Open the store and start the loops; on the store thread's loop."""
        await self.store.open()
        await self.declare(specs)
        await self.heartbeat.enroll()
        self.store.subscribe(self._hear)
        # Reap at once, so that jobs which an earlier run of this program left behind go on.
        await self._reaper.look()
        for name, work in (
            ("heartbeat", self.heartbeat.run),
            ("guard", self.heartbeat.guard),
            (self.outcomes.watch.name, self.outcomes.watch.run),
            (self.parking.name, self.parking.run),
            ("events", self.event_writer.run),
            ("nested waits", self._nested.run),
            ("reaper", self._reaper.run),
            ("leader", self._leader.run),
        ):
            self.thread.start(name, work)

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
            self.thread.relay.do(partial(warn, text))

    async def close(self) -> None:
        """Close everything in order; from another loop than the store thread's."""
        for worker in self.local_workers.active:
            worker.on_store_closed()
        await self.thread.close(self._leave)

    async def _leave(self) -> None:
        """Hand back what still runs, stop the loops, resign as leader and deregister this owner."""
        for worker in list(self.workers):
            worker.stop_worker()
        tasks = [worker.task for worker in self.workers if worker.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_WITHIN)
        await self.thread.stop()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE_WITHIN):
                await self._leader.resign()
                await self.heartbeat.leave()
        await self.store.close()

    async def abandon(self) -> None:
        """Close a store that could not be opened; on the store thread's loop."""
        with suppress(Exception):
            await self.store.close()
        self.thread.runtime.end_loop(self.thread.loop)

    def forsake(self) -> None:
        """End as if the process had died: leases and jobs stay as they are; from any thread."""
        OWNERS.discard(self.heartbeat.owner.id)
        self.thread.do("forsake", self._forsake)

    async def _forsake(self) -> None:
        await self.thread.stop()
        await self.abandon()

    def look_for_dead(self) -> None:
        """Reap dead owners at once; from any thread."""
        self.thread.do("reaper", self._reaper.look)

    async def reap(self) -> None:
        """Reap dead owners and wait for it; from another loop than the store thread's."""
        await self.thread.ask(self._reaper.look)

    def mark_clean_exit(self, within: float) -> None:
        """Mark a clean exit; from another thread.

        Jobs that still run when this process ends are requeued without a failed attempt.
        """
        with suppress(StoreError, TimeoutError):
            self.thread.ask_sync(self.heartbeat.mark_clean_exit, within)

    def _report_reaped(self, changes: Sequence[Change], crashed: bool) -> None:
        """Report jobs of reaped owners through a worker, as if their attempts had ended here."""
        if self.workers and changes:
            self.workers[0].report_reaped(changes, crashed)
            return
        for change in changes:
            event = JobEnded if change.job.status.terminal else JobRetried
            self.thread.relay.emit(event(change.job.pool, change.job))
            if crashed or change.job.status is Status.FAILED:
                self.thread.relay.do(partial(self._failures.ended, change.job))

    def _hear(self, topic: str) -> None:
        match topic:
            case "ready":
                for worker in self.workers:
                    worker.hint()
            case "over":
                self.outcomes.watch.hint()
                self.event_reader.hint()
            case streams.EVENTS_TOPIC:
                self.event_reader.hint()
            case "entered":
                self.parking.hint()
            case "wish":
                self.heartbeat.hint()
            case "due":
                self._leader.hint()
            case nested.TOPIC:
                self._nested.hint()
            case _ if topic in self.heard:
                self.heard[topic]()
            case _:
                pass  # A topic that has no subscriber here.


class ConnectionSlot:
    """Creates the store connection of this process on first use; retries after a failed attempt.

    A fork gets a store connection of its own: threads and connections do not survive a fork. For
    the same reason there is no lock here: a fork may happen while another thread holds it.
    """

    def __init__(self, make: Callable[[], StoreConnection]) -> None:
        self._make = make
        self._tries: dict[int, PlainFuture[StoreConnection]] = {}
        self._ready: tuple[PlainFuture[StoreConnection], StoreConnection] | None = None
        self._specs: dict[str, PoolSpec] = {}

    def declare(self, spec: PoolSpec) -> None:
        """Declare a pool before the next call to the store."""
        # Replace the dictionary: another thread may be iterating over the old one, and `connection`
        # detects new declarations by identity.
        self._specs = {**self._specs, spec.name: spec}

    async def redeclare(self, spec: PoolSpec) -> None:
        """Put other settings of a pool in force at once, or keep the current ones on failure."""
        before = self._specs
        self.declare(spec)
        tried = self._specs
        try:
            await self.connection()
        except BaseException:
            if self._specs is tried:
                self._specs = before
            raise

    @property
    def is_open(self) -> bool:
        return self.current is not None

    @property
    def current(self) -> StoreConnection | None:
        """The store connection, if it is open."""
        ready = self._ready
        if ready is None or self._tries.get(os.getpid()) is not ready[0]:
            return None
        return ready[1]

    async def connection(self) -> StoreConnection:
        connection = self.current
        if connection is None:
            connection = await _result(self._begin())
        specs = self._specs
        if connection.declared is not specs:
            await connection.thread.ask(lambda: connection.declare(specs))
        return connection

    def connection_sync(self) -> StoreConnection:
        try:
            connection = self._begin().result(OPEN_WITHIN)
        except TimeoutError:
            raise Unavailable("the store could not be opened in time; try again later") from None
        specs = self._specs
        if connection.declared is not specs:
            connection.thread.ask_sync(lambda: connection.declare(specs))
        return connection

    async def close(self) -> None:
        """Close the store connection, if open; the next use opens it again."""
        await self.close_detached(self.detach())

    def detach(self) -> PlainFuture[StoreConnection] | None:
        """Return the store connection, to be closed, and forget it: the next use opens another."""
        return self._tries.pop(os.getpid(), None)

    async def close_detached(self, opened: PlainFuture[StoreConnection] | None) -> None:
        if opened is not None:
            try:
                connection = await _result(opened)
            except Exception:
                return  # It did not open; the callers that wanted it got the error.
            await connection.close()

    def abandon(self) -> None:
        """Drop the open connection as the death of the process would: nothing more is written."""
        opened = self.detach()
        if opened is not None:
            opened.add_done_callback(_forsake)

    def _begin(self) -> PlainFuture[StoreConnection]:
        check_script("a store is opened")
        mine: PlainFuture[StoreConnection] = PlainFuture()
        found = self._tries.setdefault(os.getpid(), mine)
        if found is mine:
            try:
                self._start(mine)
            except (OSError, RuntimeError) as error:
                text = f"no thread or event loop can be started for the store: {error}"
                self._fail(mine, Unavailable(text))
            except BaseException as error:
                self._fail(mine, error)
                raise
        return found

    def _start(self, opened: PlainFuture[StoreConnection]) -> None:
        connection = self._make()
        specs = self._specs

        async def open_it() -> None:
            try:
                await connection.open(specs)
            except BaseException as error:
                await connection.abandon()
                self._fail(opened, error)
            else:
                self._ready = opened, connection
                opened.set_result(connection)

        connection.thread.do("open", open_it)

    def _fail(self, opened: PlainFuture[StoreConnection], error: BaseException) -> None:
        # Delete first: a caller that gets the error may try again at once.
        if self._tries.get(os.getpid()) is opened:
            del self._tries[os.getpid()]
        opened.set_exception(error)


async def _result(opened: PlainFuture[StoreConnection]) -> StoreConnection:
    """Wait for a shared future; cancelling this wait does not cancel the future."""
    reply = CallResult(asyncio.get_running_loop())
    opened.add_done_callback(partial(_pass_on, reply))
    assert isinstance(reply.future, asyncio.Future)
    connection: StoreConnection = await reply.future
    return connection


def _pass_on(reply: CallResult, opened: PlainFuture[StoreConnection]) -> None:
    error = opened.exception()
    connection = None if error is not None else opened.result()
    assert reply.loop is not None
    with suppress(RuntimeError):
        # RuntimeError: that loop is closed, so nothing waits there.
        reply.loop.call_soon_threadsafe(reply.give, connection, error)


def _forsake(opened: PlainFuture[StoreConnection]) -> None:
    if opened.exception() is None:
        opened.result().forsake()


class OpenStore(Protocol):
    """An object that opens the store connection of this process on first use."""

    async def connection(self) -> StoreConnection: ...


# The verbs of the contract that a proxy passes on.
_VERBS = {name for name, verb in vars(Store).items() if iscoroutinefunction(verb)}
_VERBS -= {"open", "close", "check"}


def store_proxy(opened: OpenStore) -> Store:
    """Return the store as any event loop can use it: its verbs run on the store thread.

    It is opened by the first verb. A signal published before that is lost.
    """
    return cast(Store, _StoreProxy(opened))


class _StoreProxy:
    def __init__(self, opened: OpenStore) -> None:
        self._opened = opened
        self._last: StoreConnection | None = None  # the connection last used

    @property
    def place(self) -> str:
        return "not open yet" if self._last is None else self._last.store.place

    def publish(self, topic: str) -> None:
        if self._last is not None:
            self._last.thread.post(self._last.store.publish, topic)

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        if verb not in _VERBS:
            raise AttributeError(verb)

        async def run(*args: Any, **options: Any) -> Any:
            connection = self._last = await self._opened.connection()
            call = partial(getattr(connection.store, verb), *args, **options)
            return await connection.thread.ask(call)

        return run
