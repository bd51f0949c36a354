"""Stuck slots: code that runs on though its job is over, published for other processes.

A worker stores one document while it has such slots. The document is valid while the process that
wrote it lives, which its lease shows.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Protocol

import msgspec
from msgspec import Struct

from poolhand.contract import Lease, Put
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.durable.leases.heartbeat import Heartbeat
from poolhand.errors import StoreError
from poolhand.pool.slots.runner import own_task
from poolhand.rules.job import HARD_TIMEOUT, Job
from poolhand.rules.values.escape import safe

PREFIX = "stuck/"  # then the id of the owner, then the number of the worker
KEEP = 24 * 3600.0
MOST = 1000
MOST_NAMED = 3
LONGEST_NAME = 200

_NUMBERS = count(1)  # of the workers of this process


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

    def __init__(self, keeper: StoreThread, heart: Heartbeat, slots: Callable[[], int]) -> None:
        self._keeper = keeper
        self._heart = heart
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
        since, late = self._keeper.runtime.wall(), HARD_TIMEOUT in job.marks
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
            await self._keeper.ask(self._put)

    async def _put(self) -> None:
        store = self._keeper.store
        key = f"{PREFIX}{self._heart.owner.id}/{self._number}"
        jobs = tuple(self._jobs.values())
        if jobs:
            data = msgspec.json.encode(WorkerStuck(self._slots(), jobs))
            await store.put([Put(key, data, None, KEEP)])
        else:
            await store.delete(key)


class Readable(Protocol):
    """The methods of a store needed to read stuck slots."""

    async def get_document(self, key: str) -> tuple[bytes, int] | None: ...

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]: ...


class StuckProcess(Struct, frozen=True):
    """A living process with stuck slots; `slots` counts those of its workers with stuck slots."""

    lease: Lease
    slots: int
    jobs: tuple[StuckJob, ...]

    @property
    def is_full(self) -> bool:
        """Whether it has no free slot: stuck slots count as held."""
        return self.lease.holds >= self.slots

    def __str__(self) -> str:
        owner = self.lease.owner
        more = len(self.jobs) - MOST_NAMED
        named = ", ".join(map(str, self.jobs[:MOST_NAMED])) + (
            f" and {more} more" if more > 0 else ""
        )
        slots = "slot is" if self.slots == 1 else "slots are"
        host = safe(owner.host.partition("/")[0])
        return (
            f"{len(self.jobs)} of {self.slots} {slots} stuck in the worker process {owner.pid} on "
            f"{host}, held by code that runs on after its attempt is over: {named}"
        )


async def stuck_processes(store: Readable, leases: Sequence[Lease]) -> list[StuckProcess]:
    """Return the processes of these leases that have stuck slots."""
    living = {one.owner.id: one for one in leases if one.owner.works and not one.buried}
    found: dict[str, list[WorkerStuck]] = {}
    for key in await store.scan(PREFIX, limit=MOST):
        owner = key.removeprefix(PREFIX).partition("/")[0]
        document = await store.get_document(key) if owner in living else None
        # A newer version may write documents that this one cannot read.
        with suppress(msgspec.DecodeError):
            if document is not None:
                found.setdefault(owner, []).append(
                    msgspec.json.decode(document[0], type=WorkerStuck)
                )
    return [
        StuckProcess(
            living[owner],
            sum(one.slots for one in workers),
            tuple(job for one in workers for job in one.jobs),
        )
        for owner, workers in found.items()
    ]
