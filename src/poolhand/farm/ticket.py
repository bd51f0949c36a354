"""The ticket of a stored job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from poolhand.contract import Stored
from poolhand.errors import JobError, JobFailed, JobLost, JobTimedOut, PoolhandError
from poolhand.execute.code import Code
from poolhand.farm.keeper import Reply
from poolhand.farm.station import Station
from poolhand.farm.watch import Seen
from poolhand.farm.why import explain_stored
from poolhand.pool.fault import error_of
from poolhand.pool.ticket import Ticket
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Job, Status

T = TypeVar("T")


class Opened(Protocol):
    """Who can say where the store is kept, once it is open."""

    async def station(self) -> Station: ...


class StoredTicket(Ticket[T]):
    """The handle on a job that a store keeps; it may run in any process, and outlive this one."""

    __slots__ = ("_cancels", "_code", "_opened", "_seen")

    def __init__(
        self, seen: Seen, code: Code | None, opened: Opened, cancels: bool = False
    ) -> None:
        self._seen = seen
        self._code = code
        self._opened = opened
        self._cancels = cancels

    @property
    def id(self) -> str:
        return self._seen.job.id

    def snapshot(self) -> Job:
        job = self._seen.job
        if job.status is not Status.COMPLETED:
            return job
        try:
            return replace(job, result=self._result(job))
        except PoolhandError:
            # Whoever asks for the value is told why it cannot be read.
            return job

    async def refresh(self) -> Job:
        station = await self._opened.station()
        found = (await station.keeper.ask(lambda: station.store.get([self.id])))[0]
        if found is not None:
            self._seen.job = found.job
        return self.snapshot()

    async def explain(self) -> Explanation:
        station = await self._opened.station()
        return await station.keeper.ask(lambda: explain_stored(station.store, self.id))

    async def cancel(self) -> bool:
        if not self._seen.job.status.terminal:
            station = await self._opened.station()
            await station.keeper.ask(lambda: station.store.cancel([self.id], "user"))
            await self._settled(limited=True)
        return self._seen.job.status is Status.CANCELLED

    async def _value(self) -> T:
        try:
            await self._settled(limited=False)
        except asyncio.CancelledError:
            self.caller_left()
            raise
        seen = self._seen
        if seen.job.status is Status.COMPLETED:
            value: T = self._result(seen.job)
            return value
        if seen.error is not None:
            raise seen.error.with_traceback(seen.error.__traceback__)
        raise _error(seen.job)

    def caller_left(self) -> None:
        if self._cancels and not self._seen.job.status.terminal:
            asyncio.get_running_loop().create_task(self._wish())

    async def _wish(self) -> None:
        station = await self._opened.station()
        await station.keeper.ask(lambda: station.store.cancel([self.id], "caller"))

    async def _settled(self, limited: bool) -> None:
        if self._seen.job.status.terminal:
            return
        station = await self._opened.station()
        reply = Reply(asyncio.get_running_loop())
        station.keeper.post(station.outcomes.watch.wait, self.id, reply)
        assert isinstance(reply.future, asyncio.Future)
        found: Stored | None = await reply.future
        if found is None:
            raise JobLost(
                f"job {self.id} is not kept any more: it was over long ago, and forgotten",
                job_id=self.id,
            )
        if not self._seen.job.status.terminal:
            self._seen.job = found.job

    def _result(self, job: Job) -> Any:
        if self._code is None or not isinstance(job.result, bytes):
            return self._seen.value if self._code is None else job.result
        return self._code.unpack_result(job.result)


_KINDS: dict[str, Callable[..., JobError]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind for kind in (JobTimedOut, JobLost)
}


def _error(job: Job) -> BaseException:
    """Return what the callers of a job get that ended without a value somewhere else."""
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
