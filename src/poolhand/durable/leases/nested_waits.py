"""Nested waits: stored jobs that await stored jobs, over all processes of a store.

While a job of this process awaits another one, the process writes a document with what runs in its
workers and which job awaits which. Every process with such waits reads the documents of all. A wait
that can never end gets Deadlock from the process it is in: the youngest first, and only when two
checks some seconds apart found it so and every process wrote anew in between.

A child process that runs a job writes its waits as well and publishes a signal: the process whose
worker has the job then writes its slots, which are held by jobs that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from poolhand.contract import Filter, Owner, PoolRow, Put, Store
from poolhand.durable.client.outcomes import JobWatcher
from poolhand.durable.leases.heartbeat import Heartbeat
from poolhand.errors import Deadlock
from poolhand.farm.records import FARMS, FarmRecord, FarmState, WorkerState
from poolhand.observe.events import DeadlockFound
from poolhand.observe.failures import warn
from poolhand.rules.deadlock import ProcessWaits, WaitGraph, never_finishing
from poolhand.rules.job import WAITING, Job, Status
from poolhand.rules.plain import safe

TOPIC = "nested"  # the signal that a child has written waits
NESTED = "nested/"  # the document of each process, by the id of its owner
KEEP = 20.0  # seconds until a document expires unless written again
LOOK_EVERY = 2.0
LOOKS_APART = 3.5  # seconds between the two checks that decide
MOST = 1000
SHOWN = 5  # the most waits that an error names

Waits = list[tuple[str, str]]
Written = dict[str, tuple[ProcessWaits, int]]


class NestedWaits:
    """Writes the waits of this process and ends those that never would; on the store thread."""

    def __init__(self, heartbeat: Heartbeat, watch: JobWatcher) -> None:
        self._thread = heartbeat.thread
        self._heartbeat = heartbeat
        self._watch = watch
        self._workers = heartbeat.workers
        self._now = self._thread.runtime.monotonic
        self._begun = asyncio.Event()
        self._suspects: dict[tuple[str, str], tuple[float, dict[str, int]]] = {}
        watch.waited = self._begun.set

    def hint(self) -> None:
        """Check whether a job of this process waits in a child."""
        if self._workers:
            self._begun.set()

    async def run(self) -> None:
        while True:
            await self._begun.wait()
            await asyncio.sleep(LOOK_EVERY)
            awaited = self._awaited()
            if awaited:
                await self._write(awaited)
                await self._look()
            elif await self._has_waits_apart():
                await self._write({})
            else:
                # Clear before the document is deleted: a wait that begins meanwhile sets it again.
                self._begun.clear()
                self._suspects.clear()
                await self._thread.store.put([Put(self._key, None)])
            self._thread.well("nested waits")

    @property
    def _key(self) -> str:
        return f"{NESTED}{self._heartbeat.owner.id}"

    def _awaited(self) -> dict[str, list[str]]:
        awaited: dict[str, list[str]] = {}
        for reply, id in self._watch.nested():
            assert reply.waiter is not None
            awaited.setdefault(reply.waiter, []).append(id)
        return awaited

    def _waits(self, awaited: dict[str, list[str]]) -> ProcessWaits:
        if not self._workers:
            return ProcessWaits((), tuple((one, id) for one, ids in awaited.items() for id in ids))
        return ProcessWaits(tuple(worker.slots_held(awaited) for worker in list(self._workers)))

    async def _write(self, awaited: dict[str, list[str]]) -> None:
        waits, store = self._waits(awaited), self._thread.store
        await store.put([Put(self._key, msgspec.json.encode(waits), None, KEEP)])
        if waits.waits:
            store.publish(TOPIC)

    async def _has_waits_apart(self) -> bool:
        """Return whether a job of the workers here waits in a child, which has written its wait."""
        running = self._waits({}).running()
        if not running:
            return False
        store = self._thread.store
        written = await _written(store, await _owners(store))
        return any(waiter in running for waits, _ in written.values() for waiter, _ in waits.waits)

    async def _look(self) -> None:
        """Check the waits of all processes; end the youngest that can never end, if it is ours."""
        store = self._thread.store
        owners = await _owners(store)
        written = await _written(store, owners)
        graph = await _scene(store, owners, written, ())
        lost = never_finishing(graph, [awaited for _, awaited in graph.waits()])
        hopeless = [wait for wait in graph.waits() if wait[1] in lost]
        versions = {owner: version for owner, (_, version) in written.items()}
        now = self._now()
        self._suspects = {
            wait: self._suspects.get(wait, (now, versions)) for wait in sorted(hopeless)
        }
        if not hopeless:
            return
        # Ids sort by arrival.
        youngest = max(hopeless)
        since, then = self._suspects[youngest]
        renewed = all(version != then.get(owner) for owner, version in versions.items())
        if now - since >= LOOKS_APART and renewed:
            self._end(youngest, chain(hopeless, graph.jobs), graph.jobs.get(youngest[1]))

    def _end(self, wait: tuple[str, str], waits: str, awaited: Job | None) -> None:
        replies = [reply for reply, id in self._watch.nested() if (reply.waiter, id) == wait]
        if not replies:
            return  # Another process has this wait, and ends it.
        self._suspects.clear()
        waiter, id = wait
        pool = "" if awaited is None else awaited.pool
        text = (
            f"job {waiter} waits for job {id} of pool {pool!r}, which can never start: all that "
            f"it needs is held by jobs that wait ({waits}); run inner jobs in a pool of their own, "
            "with a worker for that pool alone: app.worker(pools=[…])"
        )
        for reply in replies:
            self._thread.answer(reply, None, Deadlock(text, job_id=waiter))
        relay = self._thread.relay
        relay.do(partial(warn, f"Deadlock: {text}", DeadlockFound, self._thread.events))
        relay.emit(DeadlockFound(pool, waiter, id, f"Deadlock: {text}"))


def chain(waits: Waits, jobs: Mapping[str, Job]) -> str:
    """Return a text that names which job waits for which."""

    def named(id: str) -> str:
        return f"{safe(jobs[id].name)} {id}" if id in jobs else id

    shown = [f"{named(waiter)} waits for {named(id)}" for waiter, id in sorted(waits)[:SHOWN]]
    more = len(waits) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


async def held_by_waits(store: Store, job: Job) -> str | None:
    """Return which waits hold all that a waiting job needs to start; None if it can start."""
    owners = await _owners(store)
    written = await _written(store, owners)
    if not written:
        return None
    graph = await _scene(store, owners, written, (job,))
    if job.id not in never_finishing(graph, [job.id]):
        return None
    return chain(graph.waits(), graph.jobs)


def holds_session(job: Job) -> bool:
    """Return whether a turn holds its session: it is through the gate and not over."""
    return job.status in (Status.RUNNING, Status.QUEUED) or (
        job.blocked_on == "key"
        or (job.status is Status.SCHEDULED and (job.attempts > 0 or job.waits_for is not None))
    )


async def _owners(store: Store) -> list[Owner]:
    return [lease.owner for lease in await store.leases() if not lease.expired]


async def _written(store: Store, owners: Sequence[Owner]) -> Written:
    """Return the documents of live processes with their versions, by owner."""
    living = {owner.id for owner in owners}
    found: Written = {}
    for key in await store.scan(NESTED, limit=MOST):
        owner = key.removeprefix(NESTED)
        document = await store.get_document(key) if owner in living else None
        waits = None if document is None else document.read(ProcessWaits)
        if document is not None and waits is not None:
            found[owner] = waits, document[1]
    return found


async def _scene(
    store: Store, owners: Sequence[Owner], written: Written, asked: Sequence[Job]
) -> WaitGraph:
    workers = tuple(worker for waits, _ in written.values() for worker in waits.workers)
    jobs = {job.id: job for job in asked}
    holders: dict[str, tuple[str, ...]] = {}
    apart = tuple(pair for waits, _ in written.values() for pair in waits.waits)
    waits = [*(pair for worker in workers for pair in worker.waits()), *apart]
    await _learn(store, [*jobs, *(id for pair in waits for id in pair)], jobs, holders)
    rows = await store.pools(sorted({job.pool for job in jobs.values()}))
    free = [owner for owner in owners if owner.works and owner.id not in written]
    open_pools, capped = await _open_pools(store, rows, free), await _capped(store, rows)
    return WaitGraph(jobs, workers, open_pools, capped, holders, apart)


async def _learn(
    store: Store, ids: Sequence[str], jobs: dict[str, Job], holders: dict[str, tuple[str, ...]]
) -> None:
    """Look jobs up, then the jobs that hold what they wait for, and so on."""
    to_see = list(dict.fromkeys(ids))[:MOST]
    while to_see and len(jobs) < MOST:
        found = await store.get(to_see)
        seen = [one.job for one in found if one is not None and not one.submitter_blocked]
        jobs.update((job.id, job) for job in seen)
        for job in seen:
            if job.status is Status.BLOCKED:
                holders[job.id] = await _holders(store, job)
        named = [id for job in seen for id in holders.get(job.id, ())]
        to_see = [id for id in dict.fromkeys(named) if id not in jobs]


async def _holders(store: Store, job: Job) -> tuple[str, ...]:
    """Return the jobs that hold the session or key that a job waits for; empty if unknown."""
    session = job.session if job.blocked_on == "session" else None
    key = None if session is not None else job.key
    statuses = (Status.RUNNING, Status.QUEUED, *((*WAITING,) if session is not None else ()))
    which = Filter(pool=job.pool, session=session, key=key, statuses=tuple(dict.fromkeys(statuses)))
    page = await store.find(which, limit=MOST)
    if page.after is not None:
        return ()
    found = [one.job for one in page.jobs]
    if session is not None:
        found = [one for one in found if one.tenant == job.tenant and holds_session(one)]
    return tuple(one.id for one in found if one.id != job.id)


async def _open_pools(
    store: Store, rows: Sequence[PoolRow], free: Sequence[Owner]
) -> frozenset[str]:
    """Return the pools served by a worker without waits, or by a farm that can start another one.

    A paused pool counts as well: its jobs do not wait for slots.
    """
    growing = [farm for farm in await _farms(store) if _can_grow(farm)]
    names = {row.spec.name: row.paused for row in rows}
    return frozenset(
        pool
        for pool, paused in names.items()
        if paused
        or any(owner.serves(pool) for owner in free)
        or any(farm.pools is None or pool in farm.pools for farm in growing)
    )


async def _farms(store: Store) -> list[FarmRecord]:
    documents = [await store.get_document(key) for key in await store.scan(FARMS, limit=MOST)]
    records = [one.read(FarmRecord) for one in documents if one is not None]
    return [one for one in records if one is not None]


def _can_grow(farm: FarmRecord) -> bool:
    if farm.state is FarmState.STOPPING:
        return False
    most = farm.wanted if farm.external else farm.maximum
    starting = any(one.state is WorkerState.STARTING for one in farm.workers)
    return starting or len(farm.workers) < most


async def _capped(store: Store, rows: Sequence[PoolRow]) -> dict[str, tuple[str, ...]]:
    """Return the running jobs of each pool whose cap is used up."""
    capped: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if row.paused or row.slots is None or row.running < row.slots:
            continue
        page = await store.find(Filter(pool=row.spec.name, statuses=(Status.RUNNING,)), limit=MOST)
        # With fewer jobs than used places, code that does not stop holds one, and may stop yet.
        if page.after is None and len(page.jobs) >= row.running:
            capped[row.spec.name] = tuple(one.job.id for one in page.jobs)
    return capped
