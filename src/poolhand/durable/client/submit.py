"""Submits calls to a store: from a call to an accepted job, or a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from poolhand.contract import Added, Admission, JobBatch, JobRequest, Refusal
from poolhand.durable.calls.serializer import Serializer
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.outcomes import KnownJob
from poolhand.durable.client.refusal import refused, waited
from poolhand.durable.client.ticket import OpenStore, StoredTicket
from poolhand.durable.client.transaction import refuse_within
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.connection.store_thread import Answer, give_up
from poolhand.errors import Unavailable
from poolhand.observe import events
from poolhand.pool.options import SubmitTerms
from poolhand.rules.job import Job
from poolhand.rules.queue.backpressure import Bounded, OnFull, Policy

ACCEPT_WITHIN = 10.5  # seconds; a store that takes longer to answer counts as unavailable
TOO_SLOW = (
    "the store did not say in time whether it took the job; submit it again with the same "
    "idempotency key, which is safe whether it did or not"
)


class StoreSubmitter:
    """Sends job requests to the store, waits where a pool blocks submitters, returns tickets.

    While events have subscribers, events are passed to `tell`, by default `events.emit`.
    """

    def __init__(
        self,
        opened: OpenStore,
        events: events.Events,
        tell: Callable[[events.Event], None] | None = None,
    ) -> None:
        self._opened = opened
        self._events = events
        self._tell = events.emit if tell is None else tell

    async def submit(
        self, orders: Sequence[JobRequest], how: SubmitContext
    ) -> list[StoredTicket[Any]]:
        """Submit all requests or none; if the pool blocks submitters, wait for acceptance."""
        try:
            async with asyncio.timeout(ACCEPT_WITHIN):
                station = await self._opened.station()
                refuse_within(station, "submit_in(tx, …)")
                # Register before adding: jobs may be over before their tickets are made.
                at = station.keeper.runtime.monotonic()
                known = [station.outcomes.seen(order.job, at) for order in orders]
                answer = await self._add(station, orders, how.waits)
        except TimeoutError:
            raise Unavailable(TOO_SLOW) from None
        added = self.accepted(answer)
        jobs = [one.job for one in added]
        if Admission.PARKED in {one.entry for one in added}:
            jobs = await self._wait_in(station, orders, added, how)
        seen = [_found(station, own, job, at) for own, job in zip(known, jobs, strict=True)]
        if len(seen) == 1:
            seen[0].since = station.keeper.runtime.monotonic()
        return self._tickets(station, seen, how)

    def accepted(self, answer: Answer) -> tuple[Added, ...]:
        """Return the accepted jobs, or raise the error of a refusal."""
        if isinstance(answer, Refusal):
            if self._events.live:
                code = getattr(refused(answer), "code", "")
                self._tell(events.SubmitRefused(answer.pool, code, answer.policy))
            raise refused(answer)
        if self._events.live:
            for one in answer:
                self._announce(one)
        return answer

    def ticket(
        self, station: StoreConnection, job: Job, at: float, how: SubmitContext
    ) -> StoredTicket[Any]:
        """Return a ticket for a stored job, whose record was read `at` a moment."""
        return self._tickets(station, [station.outcomes.seen(job, at)], how)[0]

    def _tickets(
        self, station: StoreConnection, seen: Sequence[KnownJob], how: SubmitContext
    ) -> list[StoredTicket[Any]]:
        of_all = (how.code, self._opened, station.keeper, how.cancels, how.parcels)
        return [StoredTicket(one, *of_all) for one in seen]

    def _announce(self, added: Added) -> None:
        job = added.job
        match added.entry:
            case Admission.JOINED:
                self._tell(events.JobJoined(job.pool, job))
            case Admission.PARKED:
                self._tell(events.SubmitterParked(job.pool, job, 1))
            case Admission.TAKEN | Admission.REJECTED:
                self._tell(events.JobSubmitted(job.pool, job))
                if added.entry is Admission.REJECTED:
                    self._tell(events.JobEnded(job.pool, job))

    async def _add(
        self, station: StoreConnection, orders: Sequence[JobRequest], waits: bool
    ) -> Answer:
        if not waits:
            return await station.keeper.add(JobBatch(tuple(orders)))
        answer = await station.keeper.add(JobBatch(tuple(orders), station.heart.owner.id))
        if isinstance(answer, Refusal) and OnFull.BLOCK_SUBMITTER in answer.policy:
            # With this policy only unknown owners are refused: our lease expired while we were
            # away.
            await station.keeper.ask(station.heart.renew)
            answer = await station.keeper.add(JobBatch(tuple(orders), station.heart.owner.id))
        return answer

    async def _wait_in(
        self,
        station: StoreConnection,
        orders: Sequence[JobRequest],
        added: Sequence[Added],
        how: SubmitContext,
    ) -> list[Job]:
        """Return the jobs once all are accepted; withdraw all of them on a timeout or an error."""
        limit = how.policy.wait_timeout if isinstance(how.policy, Bounded) else None
        both = list(zip(orders, added, strict=True))
        # Only our own ids: a joined job belongs to another submitter.
        ids = [order.job.id for order in orders]
        parked = [order.job.id for order, one in both if one.entry is Admission.PARKED]
        try:
            async with asyncio.timeout(limit):
                return [await self._has_place(station, order, one) for order, one in both]
        except TimeoutError:
            found = await station.keeper.ask(lambda: _came_in(station, parked, orders))
            if found is None:
                raise waited(orders[0].job.pool, limit, str(how.policy)) from None
            return [found.get(order.job.id, one.job) for order, one in both]
        except BaseException:
            batch = JobBatch(tuple(orders))
            station.keeper.do("unpark", lambda: give_up(station.store, ids, batch))
            raise

    async def _has_place(self, station: StoreConnection, order: JobRequest, added: Added) -> Job:
        """Return the job once its request is accepted; submitters of the same key wait as well."""
        while added.entry is Admission.PARKED:
            found = await station.parking.until(added.job.id)
            if found is None:
                # The submitter that it joined has given up, or our lease was lost.
                answer = await self._add(station, [order], True)
                (added,) = self.accepted(answer)
                continue
            own = found.job.id == order.job.id
            added = Added(found.job, Admission.TAKEN if own else Admission.JOINED)
            if self._events.live:
                self._announce(added)
        return added.job


def _found(station: StoreConnection, own: KnownJob, job: Job, at: float) -> KnownJob:
    """Return the KnownJob that a request got: its own, or that of the same idempotency key."""
    if job.id == own.job.id:
        own.learn(job, at)
        return own
    seen = station.outcomes.seen(job, at)
    seen.shared = True
    return seen


async def _came_in(
    station: StoreConnection, ids: list[str], orders: Sequence[JobRequest]
) -> dict[str, Job] | None:
    """Withdraw blocked jobs; return them if all were accepted at the last moment."""
    store = station.store
    came_in = await store.unpark(ids)
    if len(came_in) == len(ids):
        return {one.job.id: one.job for one in await store.get(ids) if one is not None}
    batch = JobBatch(tuple(orders))
    await give_up(store, [order.job.id for order in orders], batch)
    return None


class SubmitContext(Struct, frozen=True):
    """The context of a submit beyond its requests: the code that reads results, and the policy.

    It `waits` where the policy blocks submitters; otherwise it is refused. Without the code of a
    task, `parcels` reads its result, as JSON values.
    """

    code: TaskCode | None
    policy: Policy
    cancels: bool = False
    waits: bool = True
    parcels: Serializer | None = None

    @classmethod
    def under(cls, terms: SubmitTerms, code: TaskCode | None, policy: Policy) -> SubmitContext:
        return cls(code, policy, terms.options.cancel_with_caller, terms.waits)
