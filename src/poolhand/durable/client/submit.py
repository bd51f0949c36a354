"""Submits calls to a store: from a call to an accepted job, or a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from poolhand.context import running
from poolhand.contract import Added, Admission, JobBatch, JobRequest, Refusal
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.declared_pools import DeclaredPools
from poolhand.durable.client.job_request import JobRequests, refused, waited
from poolhand.durable.client.outcomes import KnownJob
from poolhand.durable.client.ticket import StoredTicket, SyncTicket
from poolhand.durable.client.transaction import AROUND, refuse_within
from poolhand.durable.connection.connection import ConnectionSlot, OpenStore, StoreConnection
from poolhand.durable.connection.store_thread import Answer, give_up
from poolhand.errors import Unavailable
from poolhand.observe import events
from poolhand.observe.events import Event, Events
from poolhand.pool.mapping import Items, window
from poolhand.pool.options import SubmitTerms
from poolhand.pool.pool import Pool
from poolhand.pool.ticket import Ticket
from poolhand.rules.job import Job
from poolhand.rules.queue.backpressure import Bounded, OnFull, Policy, capacity
from poolhand.rules.queue.stored_desk import pool_id
from poolhand.runtime import Runtime
from poolhand.wire.payload import Wire

T = TypeVar("T")

ACCEPT_WITHIN = 10.5  # seconds; a store that takes longer to answer counts as unavailable
TOO_SLOW = (
    "the store did not answer in time, so the job may or may not be stored; submit it again with "
    "the same idempotency key, which is safe in both cases"
)


class StoreSubmitter:
    """Sends job requests to the store, waits where a pool blocks submitters, returns tickets.

    While events have subscribers, events are passed to `emit`, by default `events.emit`.
    """

    def __init__(
        self,
        opened: OpenStore,
        events: events.Events,
        emit: Callable[[events.Event], None] | None = None,
    ) -> None:
        self._opened = opened
        self._events = events
        self._emit = events.emit if emit is None else emit

    async def submit(
        self, requests: Sequence[JobRequest], how: SubmitContext
    ) -> list[StoredTicket[Any]]:
        """Submit all requests or none; if the pool blocks submitters, wait for acceptance."""
        try:
            async with asyncio.timeout(ACCEPT_WITHIN):
                connection = await self._opened.connection()
                if AROUND.get() is not None:
                    refuse_within(connection, "submit_in(tx, …)")
                # Register before adding: jobs may be over before their tickets are made.
                at = connection.thread.runtime.monotonic()
                known = [connection.outcomes.seen(request.job, at) for request in requests]
                answer = await self._add(connection, requests, how.waits)
        except TimeoutError:
            raise Unavailable(TOO_SLOW) from None
        added = self.accepted(answer, requests[0].job.name)
        jobs = [one.job for one in added]
        if Admission.BLOCKED_SUBMITTER in {one.entry for one in added}:
            jobs = await self._wait_in(connection, requests, added, how)
        seen = [_found(connection, own, job, at) for own, job in zip(known, jobs, strict=True)]
        if len(seen) == 1:
            seen[0].since = connection.thread.runtime.monotonic()
        return self._tickets(connection, seen, how)

    def accepted(self, answer: Answer, name: str) -> tuple[Added, ...]:
        """Return the accepted jobs of calls of `name`, or raise the error of a refusal."""
        if isinstance(answer, Refusal):
            error = refused(answer, name)
            if self._events.live:
                self._emit(events.SubmitRefused(answer.pool, error.code, answer.policy))
            raise error
        if self._events.live:
            for one in answer:
                self._announce(one)
        return answer

    def ticket(
        self, connection: StoreConnection, job: Job, at: float, how: SubmitContext
    ) -> StoredTicket[Any]:
        """Return a ticket for a stored job, whose record was read `at` a moment."""
        return self._tickets(connection, [connection.outcomes.seen(job, at)], how)[0]

    def _tickets(
        self, connection: StoreConnection, seen: Sequence[KnownJob], how: SubmitContext
    ) -> list[StoredTicket[Any]]:
        of_all = (how.code, self._opened, connection.thread, how.cancels, how.wire)
        return [StoredTicket(one, *of_all) for one in seen]

    def _announce(self, added: Added) -> None:
        job = added.job
        match added.entry:
            case Admission.JOINED:
                self._emit(events.JobJoined(job.pool, job))
            case Admission.BLOCKED_SUBMITTER:
                self._emit(events.SubmitterParked(job.pool, job, 1))
            case Admission.ACCEPTED | Admission.REJECTED:
                self._emit(events.JobSubmitted(job.pool, job))
                if added.entry is Admission.REJECTED:
                    self._emit(events.JobEnded(job.pool, job))

    async def _add(
        self, connection: StoreConnection, requests: Sequence[JobRequest], waits: bool
    ) -> Answer:
        if not waits:
            return await connection.thread.add(JobBatch(tuple(requests)))
        answer = await connection.thread.add(
            JobBatch(tuple(requests), connection.heartbeat.owner.id)
        )
        if _is_full(answer):
            # With this policy only unknown owners find it full: our lease expired while we were
            # away.
            await connection.thread.ask(connection.heartbeat.renew)
            answer = await connection.thread.add(
                JobBatch(tuple(requests), connection.heartbeat.owner.id)
            )
        return answer

    async def _wait_in(
        self,
        connection: StoreConnection,
        requests: Sequence[JobRequest],
        added: Sequence[Added],
        how: SubmitContext,
    ) -> list[Job]:
        """Return the jobs once all are accepted; withdraw all of them on a timeout or an error."""
        limit = how.policy.wait_timeout if isinstance(how.policy, Bounded) else None
        both = list(zip(requests, added, strict=True))
        # Only our own ids: a joined job belongs to another submitter.
        ids = [request.job.id for request in requests]
        parked = [
            request.job.id for request, one in both if one.entry is Admission.BLOCKED_SUBMITTER
        ]
        try:
            async with asyncio.timeout(limit):
                return [await self._has_place(connection, request, one) for request, one in both]
        except TimeoutError:
            found = await connection.thread.ask(lambda: _came_in(connection, parked, requests))
            if found is None:
                raise waited(requests[0].job.pool, limit, str(how.policy)) from None
            return [found.get(request.job.id, one.job) for request, one in both]
        except BaseException:
            connection.thread.do("withdraw", lambda: give_up(connection.store, ids))
            raise

    async def _has_place(
        self, connection: StoreConnection, request: JobRequest, added: Added
    ) -> Job:
        """Return the job once its request is accepted; submitters of the same key wait as well."""
        while added.entry is Admission.BLOCKED_SUBMITTER:
            found = await connection.parking.until(added.job.id)
            if found is None:
                # The submitter that it joined has given up, or our lease was lost.
                answer = await self._add(connection, [request], True)
                (added,) = self.accepted(answer, request.job.name)
                continue
            own = found.job.id == request.job.id
            added = Added(found.job, Admission.ACCEPTED if own else Admission.JOINED)
            if self._events.live:
                self._announce(added)
        return added.job


def _is_full(answer: Answer) -> bool:
    """Return whether a pool that blocks submitters was too full for a submitter."""
    return (
        isinstance(answer, Refusal)
        and answer.reason == "full"
        and OnFull.BLOCK_SUBMITTER in answer.policy
    )


def _found(connection: StoreConnection, own: KnownJob, job: Job, at: float) -> KnownJob:
    """Return the KnownJob that a request got: its own, or that of the same idempotency key."""
    if job.id == own.job.id:
        own.learn(job, at)
        return own
    seen = connection.outcomes.seen(job, at)
    seen.shared = True
    return seen


async def _came_in(
    connection: StoreConnection, ids: list[str], requests: Sequence[JobRequest]
) -> dict[str, Job] | None:
    """Withdraw blocked jobs; return them if all were accepted at the last moment."""
    store = connection.store
    found = await store.cancel(ids, "submitter", blocked_only=True)
    came_in = {one.job.id: one.job for one in found if one is not None}
    if len(came_in) == len(ids):
        return came_in
    await give_up(store, [request.job.id for request in requests])
    return None


class SubmitContext(Struct, frozen=True):
    """The context of a submit beyond its requests: the code that reads results, and the policy.

    It `waits` where the policy blocks submitters; otherwise it is refused. Without the code of a
    task, `wire` reads its result, as JSON values.
    """

    code: TaskCode | None
    policy: Policy
    cancels: bool = False
    waits: bool = True
    wire: Wire | None = None

    @classmethod
    def under(cls, terms: SubmitTerms, code: TaskCode | None, policy: Policy) -> SubmitContext:
        return cls(code, policy, terms.options.cancel_with_caller, terms.waits)


class StoreClient:
    """A store as tasks and tickets use it: opened on first use, with the pools declared here.

    The methods with `sync` block the calling thread; any number of threads may use them.
    """

    def __init__(
        self, make: Callable[[], StoreConnection], runtime: Runtime, events: Events
    ) -> None:
        self.runtime = runtime
        self.events = events
        self.declared = DeclaredPools()
        self.slot = ConnectionSlot(make)
        self.requests = JobRequests(runtime)
        self.submitter = StoreSubmitter(self, events)

    async def connection(self) -> StoreConnection:
        if not self.slot.is_open:
            self.declared.check()
        return await self.slot.connection()

    async def close(self) -> None:
        await self.slot.close()

    def pool_id(self, pool: str) -> str:
        return pool_id("app", "", pool)

    def ask_sync(self, call: Callable[[], Awaitable[T]]) -> T:
        return self.slot.connection_sync().thread.ask_sync(call)

    def submit_sync(self, request: JobRequest, how: SubmitContext) -> SyncTicket[Any]:
        self.declared.check()
        emitted: list[Event] = []
        submitter = StoreSubmitter(self, self.events, emitted.append)
        try:
            (ticket,) = self.ask_sync(lambda: submitter.submit([request], how))
        finally:
            # Emit on this thread: subscribers are user code, which the store thread never runs.
            for event in emitted:
                self.events.emit(event)
        return SyncTicket(ticket, self.ask_sync)


UNCAPPED_WINDOW = 1_000  # the most jobs of one map at a time in a pool without a cap


class _JobEnded(Exception):
    """The error of a stored job, wrapped.

    The map runs in a private pool, which would act on a RetryLater or a Snooze that the job ended
    with, and so submit the item again.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


async def map_stored(
    submit: Callable[[Any], Awaitable[Ticket[Any]]],
    items: Items[Any],
    *,
    limit: int,
    return_exceptions: bool,
) -> list[Any]:
    """Submit a job per item, at most `limit` at a time; return their values in input order.

    The first failure ends the map: no further item is taken, jobs that wait or run are cancelled,
    then the error is raised.
    """
    inside = running.get()

    async def one(item: Any) -> Any:
        # The submitter of the stored job is the caller of the map, not the job of the private pool.
        running.set(inside)
        ticket = await submit(item)
        try:
            return await ticket
        except asyncio.CancelledError:
            await ticket.cancel()
            raise
        except BaseException as error:
            raise _JobEnded(error) from None

    # With its own events: otherwise subscribers would see each job twice.
    async with Pool(max_concurrent=limit, events=Events()) as pool:
        try:
            values = await pool.map(one, items, return_exceptions=return_exceptions)
        except _JobEnded as ended:
            failure = ended.error
        else:
            return [one.error if isinstance(one, _JobEnded) else one for one in values]
    raise failure


def map_window(slots: int | None, policy: Policy) -> int:
    """Return how many jobs of a map may be in a pool at a time; `slots` None: it has no cap."""
    depth = capacity(policy)
    most = UNCAPPED_WINDOW if slots is None else window(slots, depth)
    if not depth or (isinstance(policy, Bounded) and policy.on_full is OnFull.BLOCK_SUBMITTER):
        return most
    # Until a worker claims it, a job waits, even if a slot is free.
    return min(most, depth)
