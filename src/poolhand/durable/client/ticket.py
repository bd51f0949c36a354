"""The ticket of a stored job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from poolhand.context import running
from poolhand.contract import Store
from poolhand.durable.calls.call_record import bound_result
from poolhand.durable.calls.returned import Returned, unpack_returned
from poolhand.durable.calls.serializer import Serializer
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.explain import explain_stored
from poolhand.durable.client.outcomes import KnownJob
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.errors import (
    JobError,
    JobFailed,
    JobLost,
    JobTimedOut,
    PoolhandError,
    Undecodable,
    UsageError,
)
from poolhand.pool.slots.fault import error_of
from poolhand.pool.ticket import Ticket
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Job, Status
from poolhand.rules.streams import JobEvent
from poolhand.rules.validation import is_whole, shown

T = TypeVar("T")

# Wait a moment before the first poll: the worker needs the store more, and a hint cuts the wait
# short.
JUST_IN = 0.02


class OpenStore(Protocol):
    """Opens the store if needed and returns the store connection."""

    async def station(self) -> StoreConnection: ...


class StoredTicket(Ticket[T]):
    """The handle on a stored job, which may run in any process and outlive this one."""

    __slots__ = ("_cancels", "_code", "_keeper", "_opened", "_parcels", "_seen")

    def __init__(
        self,
        seen: KnownJob,
        code: TaskCode | None,
        opened: OpenStore,
        keeper: StoreThread,
        cancels: bool = False,
        parcels: Serializer | None = None,
    ) -> None:
        self._parcels = parcels
        self._seen = seen
        self._code = code
        self._opened = opened
        self._keeper = keeper
        self._cancels = cancels

    @property
    def id(self) -> str:
        return self._seen.job.id

    @property
    def as_of(self) -> datetime | None:
        seen, runtime = self._seen, self._keeper.runtime
        if seen.job.status.terminal:
            # A job that is over does not change any more.
            return None
        return runtime.wall() - timedelta(seconds=runtime.monotonic() - seen.at)

    def snapshot(self) -> Job:
        job = self._seen.job
        if job.status is not Status.COMPLETED:
            return job
        try:
            return replace(job, result=self._result(job))
        except PoolhandError:
            # Asking for the value raises why it cannot be read.
            return job

    async def refresh(self) -> Job:
        if not self._seen.job.status.terminal:
            station = await self._opened.station()
            at = station.keeper.runtime.monotonic()
            found = (await station.keeper.ask(lambda: station.store.get([self.id])))[0]
            if found is not None:
                self._seen.learn(found.job, at)
        return self.snapshot()

    async def explain(self) -> Explanation:
        station = await self._opened.station()
        runtime = station.keeper.runtime
        return await station.keeper.ask(
            lambda: explain_stored(station.store, self.id, runtime.wall(), runtime.identity())
        )

    async def cancel(self) -> bool:
        if not self._seen.job.status.terminal:
            station = await self._opened.station()
            at = station.keeper.runtime.monotonic()
            (found,) = await station.keeper.ask(lambda: station.store.cancel([self.id], "user"))
            if found is not None:
                self._seen.learn(found.job, at)
            await self._settled(limited=True)
        return self._seen.job.status is Status.CANCELLED

    async def events(self, after: int = 0) -> AsyncIterator[JobEvent]:
        if not is_whole(after):
            raise UsageError(
                f"events(after={shown(after)}) is not allowed; give the number of an event, or 0"
            )
        station = await self._opened.station()
        async for event in station.listening.follow(self.id, after):
            yield event

    async def _value(self) -> T:
        try:
            await self._settled(limited=False)
        except asyncio.CancelledError:
            self.caller_left()
            raise
        return self.outcome()

    def outcome(self) -> T:
        """Return the value of a job that is over, or raise its error."""
        seen = self._seen
        if seen.job.status is Status.COMPLETED:
            value: T = self._result(seen.job)
            return value
        if seen.error is not None:
            # With its own traceback: raised to several callers, it would collect the frames of all.
            raise BaseException.with_traceback(seen.error, seen.trace)
        raise _error(seen.job)

    def caller_left(self) -> None:
        seen = self._seen
        if self._cancels and not seen.job.status.terminal and not (seen.shared and seen.waiting):
            store = self._keeper.store
            self._keeper.do("cancel", lambda: _wish(store, self.id))

    async def settled_for(self, waiter: str | None, seconds: float | None) -> None:
        """Wait as `settled_within` does; without a limit it is the wait of the job `waiter`.

        For the store thread, where the context is not that of the caller.
        """
        if seconds is None:
            await self._settled_for(waiter)
        else:
            await self.settled_within(seconds)

    async def _settled(self, limited: bool) -> None:
        await self._settled_for(None if limited else stored_job_here())

    async def _settled_for(self, waiter: str | None) -> None:
        seen = self._seen
        if seen.job.status.terminal:
            return
        station = await self._opened.station()
        seen.waiting += 1
        try:
            found = await station.outcomes.watch.until(self.id, self._look_in(station), waiter)
        finally:
            seen.waiting -= 1
        if found is None:
            raise JobLost(
                f"job {self.id} is not kept any more: it was over long ago, and forgotten",
                job_id=self.id,
            )
        seen.learn(found.job, seen.at)

    def _look_in(self, station: StoreConnection) -> float:
        """Return the delay of the first poll: a job just submitted is hardly over."""
        age = station.keeper.runtime.monotonic() - self._seen.since
        return JUST_IN if age < JUST_IN else 0.0

    def _result(self, job: Job) -> Any:
        code, own = self._code, self._seen.value
        if code is None:
            return own.value if isinstance(own, Returned) else self._result_elsewhere(job)
        if not isinstance(job.result, bytes):
            return job.result
        return code.unpack_result(job.result, bound_result(job) if code.signs else b"")

    def _result_elsewhere(self, job: Job) -> Any:
        """Return the JSON value of a closure, or of a task that this app does not have."""
        try:
            return unpack_returned(job)
        except Undecodable:
            if self._parcels is None or not isinstance(job.result, bytes):
                raise
        to = bound_result(job) if self._parcels.ring is not None else b""
        return self._parcels.read(job.result, Any, f"the result of {job.name}", to)


def stored_job_here() -> str | None:
    """Return the id of the stored job that this code is part of."""
    inside = running.get()
    job = None if inside is None or inside.token is None else inside.snapshot()
    return job.id if isinstance(job, Job) else None


async def _wish(store: Store, id: str) -> None:
    await store.cancel([id], "caller")


_KINDS: dict[str, Callable[..., JobError]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind for kind in (JobTimedOut, JobLost)
}


def _error(job: Job) -> BaseException:
    """Return the error for callers of a job that ended without a value in another process."""
    if job.status is not Status.FAILED:
        error = error_of(job, None)
        assert error is not None
        return error
    fault = job.error
    if fault is None:
        return JobFailed(f"job {job.id} failed", job_id=job.id)
    kind = _KINDS.get(fault.type, JobFailed)
    text = fault.message if kind is not JobFailed else f"{fault.type}: {fault.message}"
    return kind(f"job {job.id} failed: {text}", job_id=job.id)
