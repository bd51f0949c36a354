"""Submitting to a store: from a call to a job that is kept, or a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.context import running
from poolhand.contract import Added, Batch, Entry, Order, Refusal, Stored
from poolhand.errors import Conflict, NoFreeSlot, PoolFull, PoolhandError, Unavailable
from poolhand.execute.brief import Brief, record_of, write_brief
from poolhand.execute.code import Code
from poolhand.farm.keeper import Answer, Reply
from poolhand.farm.station import Station
from poolhand.farm.ticket import Opened, StoredTicket
from poolhand.observe import events
from poolhand.pool.options import Options, Terms
from poolhand.rules.backpressure import Bounded, Policy
from poolhand.rules.ids import Ids, full_id
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime

ACCEPT_WITHIN = 10.5  # a store that takes longer to say yes or no is as good as away


class Call(Struct, frozen=True):
    """A call to be kept: of a task with its arguments, or of a closure under a name."""

    name: str
    payload: bytes = b""
    code: Code | None = None
    closure: bool = False


class Orders:
    """Makes orders out of calls and the terms they are submitted under; from any thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        offset = runtime.wall().timestamp() - runtime.monotonic()
        self._ids = Ids(runtime.salt(), offset)
        self._lock = Lock()

    def make(self, call: Call, terms: Terms) -> Order:
        options = terms.options
        inside = running.get()
        job = replace(
            terms.draft,
            id=self._next_id(),
            name=call.name,
            submitted_at=self._runtime.wall(),
            submitted_by="user" if inside is None else inside.submitter,
            run_at=options.run_at,
        )
        return Order(
            job,
            write_brief(_brief(call, options)),
            options.delay,
            options.expires,
            options.rerun_failed,
        )

    def again(self, job: Job, brief: bytes, by: str) -> Order:
        """Return the order that runs a dead job again, as a new one."""
        anew = Job(
            id=self._next_id(),
            pool=job.pool,
            pool_id=job.pool_id,
            status=Status.QUEUED,
            submitted_at=self._runtime.wall(),
            name=job.name,
            submitted_by=by,
            key=job.key,
            priority=job.priority,
            session=job.session,
            tenant=job.tenant,
            user=job.user,
            idempotency_key=job.idempotency_key,
        )
        return Order(anew, brief, rerun_failed=True, revives=job.id)

    def _next_id(self) -> str:
        with self._lock:
            number = self._ids.next(self._runtime.monotonic())
            return full_id(self._ids.head, number)


def _brief(call: Call, options: Options) -> Brief:
    return Brief(
        call.name,
        call.payload,
        record_of(options.retry),
        options.timeout,
        options.soft_timeout,
        options.run_in,
        options.on_crash == "rerun",
        call.closure,
    )


class Submissions:
    """Brings orders to the store, waits where a pool blocks its submitters, gives out tickets."""

    def __init__(self, opened: Opened, events: events.Events) -> None:
        self._opened = opened
        self._events = events

    async def submit(self, orders: Sequence[Order], how: How) -> list[StoredTicket[Any]]:
        """Hand orders in, all or none; where submitters are blocked, wait until all are in."""
        station = await self._opened.station()
        answer = await self._add(station, orders)
        added = self.accepted(answer)
        jobs = [one.job for one in added]
        parked = [number for number, one in enumerate(added) if one.entry is Entry.PARKED]
        if parked:
            await self._wait_in(station, orders, jobs, parked, how)
        return [self.ticket(station, job, how) for job in jobs]

    def accepted(self, answer: Answer) -> tuple[Added, ...]:
        """Return what was added, or raise what an answer refuses."""
        if isinstance(answer, Refusal):
            if self._events.live:
                code = getattr(refused(answer), "code", "")
                self._events.emit(events.SubmitRefused(answer.pool, code, answer.policy))
            raise refused(answer)
        if self._events.live:
            for one in answer:
                self._announce(one)
        return answer

    def ticket(self, station: Station, job: Job, how: How) -> StoredTicket[Any]:
        seen = station.outcomes.seen(job)
        return StoredTicket(seen, how.code, self._opened, how.cancels)

    def _announce(self, added: Added) -> None:
        job = added.job
        match added.entry:
            case Entry.JOINED:
                self._events.emit(events.JobJoined(job.pool, job))
            case Entry.PARKED:
                self._events.emit(events.SubmitterParked(job.pool, job, 1))
            case Entry.TAKEN | Entry.REJECTED:
                self._events.emit(events.JobSubmitted(job.pool, job))
                if added.entry is Entry.REJECTED:
                    self._events.emit(events.JobEnded(job.pool, job))

    async def _add(self, station: Station, orders: Sequence[Order]) -> Answer:
        batch = Batch(tuple(orders), station.heart.owner.id)
        try:
            async with asyncio.timeout(ACCEPT_WITHIN):
                return await station.keeper.add(batch)
        except TimeoutError:
            raise Unavailable(
                "the store did not say in time whether it took the job; submit it again with the "
                "same idempotency key, which is safe whether it did or not"
            ) from None

    async def _wait_in(
        self,
        station: Station,
        orders: Sequence[Order],
        jobs: list[Job],
        parked: list[int],
        how: How,
    ) -> None:
        limit = how.policy.wait_timeout if isinstance(how.policy, Bounded) else None
        waiting = [jobs[number].id for number in parked]
        try:
            async with asyncio.timeout(limit):
                for number in parked:
                    jobs[number] = await self._has_place(station, orders[number], jobs[number])
                    waiting.remove(jobs[number].id) if jobs[number].id in waiting else None
        except TimeoutError:
            if await self._withdraw(station, waiting):
                policy = str(how.policy)
                raise _full(Refusal("full", jobs[0].pool, policy)) from None
        except BaseException:
            keeper = station.keeper
            keeper.do("unpark", lambda: _give_up(station, waiting, orders))
            raise

    async def _has_place(self, station: Station, order: Order, job: Job) -> Job:
        """Return the job once its order has a place; whoever shares its key waits with it."""
        while True:
            reply = Reply(asyncio.get_running_loop())
            station.keeper.post(station.parking.wait, job.id, reply)
            assert isinstance(reply.future, asyncio.Future)
            found: Stored | None = await reply.future
            if found is not None:
                return found.job
            # It belonged to another submitter of the same key, who has given up.
            (added,) = self.accepted(await self._add(station, [order]))
            job = added.job
            if added.entry is not Entry.PARKED:
                return job

    async def _withdraw(self, station: Station, ids: list[str]) -> bool:
        """Take parked orders back; tell whether any was still out."""
        came_in = await station.keeper.ask(lambda: station.store.unpark(ids))
        return len(came_in) < len(ids)


class How(Struct, frozen=True):
    """What a submit must know beyond its orders: whose results they are, and the policy."""

    code: Code | None
    policy: Policy
    cancels: bool = False


async def _give_up(station: Station, ids: list[str], orders: Sequence[Order]) -> None:
    """Take back what nobody waits for; what came in meanwhile is cancelled unless it has a key."""
    came_in = set(await station.store.unpark(ids))
    keyless = [one.job.id for one in orders if one.job.idempotency_key is None]
    unwanted = [id for id in keyless if id in came_in]
    if unwanted:
        await station.store.cancel(unwanted, "submitter")


def refused(refusal: Refusal) -> PoolhandError:
    """Return what the submitter of a refused batch gets."""
    if refusal.reason == "not_dead":
        return Conflict(
            f"the job to run again in pool {refusal.pool!r} is no dead job: it was run again "
            "before, or did not fail"
        )
    return _full(refusal)


def _full(refusal: Refusal) -> PoolhandError:
    kind: Callable[..., PoolhandError] = NoFreeSlot if refusal.reason == "no_slot" else PoolFull
    return kind(
        f"pool {refusal.pool!r} is full ({refusal.running} running, {refusal.waiting} waiting, "
        f"{refusal.policy}); try again later or give it more room",
        policy=refusal.policy,
    )
