"""The heartbeat: renews this process's leases; passes on lost claims and cancel requests.

It also publishes stuck slots: code that runs on though its job is over. A worker stores one
document while it has such slots, valid while the lease of its process lives.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from poolhand.contract import Lease, Owner, Put, Store
from poolhand.durable.catalogue import PUBLISH_EVERY, PublishedTasks
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.errors import StoreError
from poolhand.pool.slots.runner import own_task
from poolhand.rules.job import HARD_TIMEOUT, Job
from poolhand.rules.plain import safe

if TYPE_CHECKING:
    from poolhand.durable.worker.dispatcher import Dispatcher

# Seconds without a renewal, as measured by another process, after which a lease expires.
LEASE = 30.0
RENEW_EVERY = 5.0
# Seconds without a renewal after which jobs are stopped: others may soon run them.
GIVE_UP_AFTER = 20.0
RETRY_EVERY = 1.0
CLEAN_EXIT = "farewell/"  # marks the clean exit of an owner whose code may still run
KEEP_CLEAN_EXIT = 3600.0
STUCK = "stuck/"  # then the id of the owner, then the number of the worker
KEEP_STUCK = 24 * 3600.0
MOST_STUCK = 1000
STUCK_NAMED = 3
LONGEST_NAME = 200

_NUMBERS = count(1)  # of the workers of this process


# The owners of this process, one for each store it has open. Another owner with the identity of
# this process belongs to a store connection that was dropped without deregistering.
OWNERS: set[str] = set()


class Heartbeat:
    """Holds the one owner that stands for this process; lives on the store thread's loop."""

    def __init__(self, thread: StoreThread) -> None:
        self.thread = thread
        self._now = thread.runtime.monotonic
        self._hinted = asyncio.Event()
        self._renewed_at = self._now()
        self.workers: list[Dispatcher] = []
        self.owner = self._new_owner()
        self._enrolled: Owner | None = None
        self._publish_at = 0.0

    @property
    def steady(self) -> bool:
        """Whether leases are renewed in time, so that new claims may be made."""
        return self._now() - self._renewed_at < GIVE_UP_AFTER

    def hint(self) -> None:
        self._hinted.set()

    def join(self, worker: Dispatcher) -> None:
        """Renew the leases of a worker, and publish that this process works."""
        self.workers.append(worker)
        self.hint()

    def part(self, worker: Dispatcher) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
            self.hint()

    async def enroll(self) -> None:
        """Register this process as an owner."""
        owner = self._described()
        await self.thread.store.enroll(owner)
        self._enrolled = owner
        self._renewed_at = self._now()
        await self._publish()

    async def leave(self) -> None:
        """Deregister this owner unless it still holds claims.

        Code that still runs was stopped cleanly: its jobs go back uncharged when this process ends.
        """
        store, me = self.thread.store, self.owner.id
        for lease in await store.leases():
            if lease.owner.id == me and lease.held:
                await self.mark_clean_exit()
            elif lease.owner.id == me:
                await store.expire_owner(me, lease.renewal)
                OWNERS.discard(me)

    async def mark_clean_exit(self) -> None:
        """Mark a clean exit: jobs that still run at process end are requeued as if not started.

        They are requeued only after the process has ended: no other worker may run a job while its
        code still runs.
        """
        await self.thread.store.put(
            [Put(f"{CLEAN_EXIT}{self.owner.id}", b"", None, KEEP_CLEAN_EXIT)]
        )

    async def run(self) -> None:
        pause = RENEW_EVERY
        while True:
            await self._pause(pause)
            try:
                await self.renew()
                pause = RENEW_EVERY
                self.thread.well("heartbeat")
            except StoreError as error:
                pause = RETRY_EVERY
                self.thread.trouble("heartbeat", error)

    async def guard(self) -> None:
        """Have everything stopped when renewing fails for long, or does not return."""
        while True:
            left = self._renewed_at + GIVE_UP_AFTER - self._now()
            if left <= 0:
                self._each(lambda worker: worker.give_up())
                left = RETRY_EVERY
            await asyncio.sleep(left)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hinted.wait()
        self._hinted.clear()

    async def renew(self) -> None:
        """Renew all leases of this process; pass on lost claims and cancel requests."""
        began, me = self._now(), self.owner.id
        tokens = [token for worker in self.workers for token in worker.tokens()]
        extended = await self.thread.store.extend(me, tokens)
        # Several renewals may run at once: only the first to see the expiry makes a new owner.
        if not extended.alive and self.owner.id == me:
            # The owner expired in the meantime: another worker owns whatever ran here.
            OWNERS.discard(self.owner.id)
            self.owner = self._new_owner()
            await self.enroll()
        else:
            self._renewed_at = began
            if self._enrolled != self._described() or began >= self._publish_at:
                await self.enroll()
        if extended.lost:
            self._each(lambda worker: worker.lose(extended.lost))
        if extended.cancel_requested:
            self._each(lambda worker: worker.cancel(extended.cancel_requested))

    def _described(self) -> Owner:
        served = [worker.pools() for worker in self.workers]
        named = {name for names in served if names is not None for name in names}
        pools = None if None in served else tuple(sorted(named))
        catalogue = next((one.digest for one in self._catalogues()), None)
        return replace(self.owner, works=bool(self.workers), pools=pools, catalogue=catalogue)

    async def _publish(self) -> None:
        """Publish the tasks of this process; repeated now and then, as documents expire."""
        at = self.thread.runtime.wall()
        for catalogue in self._catalogues():
            await self.thread.store.put([catalogue.document(at)])
        self._publish_at = self._now() + PUBLISH_EVERY

    def _catalogues(self) -> list[PublishedTasks]:
        return [one.catalogue for one in self.workers if one.catalogue is not None]

    def _each(self, call: Callable[[Dispatcher], None]) -> None:
        for worker in list(self.workers):
            call(worker)

    def _new_owner(self) -> Owner:
        runtime = self.thread.runtime
        owner = Owner(f"owner-{runtime.salt()}", *runtime.identity())
        OWNERS.add(owner.id)
        return owner


class StuckJob(Struct, frozen=True):
    """A job that is over while its code runs on, since a moment."""

    id: str
    name: str
    pool: str
    since: datetime
    late: bool
    in_thread: bool

    def __str__(self) -> str:
        why = "ran past its timeout" if self.late else "was cancelled"
        where = " in a thread" if self.in_thread else ""
        return f"job {self.id} of task {safe(self.name[:LONGEST_NAME])!r}, which {why}{where}"


class WorkerStuck(Struct, frozen=True):
    """The document of a worker: how many slots it has, and the jobs whose code holds some."""

    slots: int
    jobs: tuple[StuckJob, ...]


class StuckSlots:
    """The stuck slots of one worker by their tokens; changes are stored.

    `slots` returns how many slots the worker has.
    """

    def __init__(self, heartbeat: Heartbeat, slots: Callable[[], int]) -> None:
        self._thread = heartbeat.thread
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._slots = slots
        self._jobs: dict[int, StuckJob] = {}
        self._number = next(_NUMBERS)
        self._tasks: set[Task[None]] = set()

    def __contains__(self, token: object) -> bool:
        return token in self._jobs

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._jobs))

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, token: int, job: Job, in_thread: bool) -> None:
        """Note that the code of a job holds its slot though the job is over."""
        since, late = self._thread.runtime.wall(), HARD_TIMEOUT in job.marks
        self._jobs[token] = StuckJob(job.id, job.name, job.pool, since, late, in_thread)
        self._write_soon()

    def discard(self, token: int) -> None:
        """Note that the code has ended."""
        if self._jobs.pop(token, None) is not None:
            self._write_soon()

    def _write_soon(self) -> None:
        task = own_task(self._loop, self._write(), "stuck-slots")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self) -> None:
        # The document only serves explanations: if the store is away, the log has the same facts.
        with suppress(StoreError):
            await self._thread.ask(self._put)

    async def _put(self) -> None:
        store = self._thread.store
        key = f"{STUCK}{self._heartbeat.owner.id}/{self._number}"
        jobs = tuple(self._jobs.values())
        data = msgspec.json.encode(WorkerStuck(self._slots(), jobs)) if jobs else None
        await store.put([Put(key, data, None, KEEP_STUCK)])


class StuckProcess(Struct, frozen=True):
    """A living process with stuck slots; `slots` counts those of its workers with stuck slots."""

    lease: Lease
    slots: int
    jobs: tuple[StuckJob, ...]

    @property
    def is_full(self) -> bool:
        """Whether it has no free slot: stuck slots count as held."""
        return self.lease.held >= self.slots

    def __str__(self) -> str:
        owner = self.lease.owner
        more = len(self.jobs) - STUCK_NAMED
        named = ", ".join(map(str, self.jobs[:STUCK_NAMED])) + (
            f" and {more} more" if more > 0 else ""
        )
        slots = "slot is" if self.slots == 1 else "slots are"
        host = safe(owner.host.partition("/")[0])
        return (
            f"{len(self.jobs)} of {self.slots} {slots} stuck in the worker process {owner.pid} on "
            f"{host}, held by code that runs on after its attempt is over: {named}"
        )


async def stuck_processes(store: Store, leases: Sequence[Lease]) -> list[StuckProcess]:
    """Return the processes of these leases that have stuck slots."""
    living = {one.owner.id: one for one in leases if one.owner.works and not one.expired}
    found: dict[str, list[WorkerStuck]] = {}
    for key in await store.scan(STUCK, limit=MOST_STUCK):
        owner = key.removeprefix(STUCK).partition("/")[0]
        document = await store.get_document(key) if owner in living else None
        stuck = None if document is None else document.read(WorkerStuck)
        if stuck is not None:
            found.setdefault(owner, []).append(stuck)
    return [
        StuckProcess(
            living[owner],
            sum(one.slots for one in workers),
            tuple(job for one in workers for job in one.jobs),
        )
        for owner, workers in found.items()
    ]
