"""The ticket of a stored job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from poolhand.context import running
from poolhand.contract import Store
from poolhand.durable.calls.call_record import Returned, bound_result, unpack_returned
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.explain import explain_stored
from poolhand.durable.client.outcomes import KnownJob
from poolhand.durable.connection.connection import OpenStore, StoreConnection
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
from poolhand.misuse import explain_misuse
from poolhand.pool.slots.fault import error_of
from poolhand.pool.ticket import Ticket, checked_timeout
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Job, Status
from poolhand.rules.streams import JobEvent
from poolhand.rules.validation import OptionRule, Seconds, is_whole
from poolhand.wire.payload import Wire

T = TypeVar("T")

# Wait a moment before the first poll: the worker needs the store more, and a hint cuts the wait
# short.
JUST_IN = 0.02


class StoredTicket(Ticket[T]):
    """The handle on a stored job, which may run in any process and outlive this one."""

    __slots__ = ("_cancels", "_code", "_opened", "_seen", "_thread", "_wire")

    def __init__(
        self,
        seen: KnownJob,
        code: TaskCode | None,
        opened: OpenStore,
        thread: StoreThread,
        cancels: bool = False,
        wire: Wire | None = None,
    ) -> None:
        self._wire = wire
        self._seen = seen
        self._code = code
        self._opened = opened
        self._thread = thread
        self._cancels = cancels

    @property
    def id(self) -> str:
        return self._seen.job.id

    @property
    def as_of(self) -> datetime | None:
        seen, runtime = self._seen, self._thread.runtime
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
            connection = await self._opened.connection()
            at = connection.thread.runtime.monotonic()
            found = (await connection.thread.ask(lambda: connection.store.get([self.id])))[0]
            if found is not None:
                self._seen.learn(found.job, at)
        return self.snapshot()

    async def explain(self) -> Explanation:
        connection = await self._opened.connection()
        runtime = connection.thread.runtime
        return await connection.thread.ask(
            lambda: explain_stored(connection.store, self.id, runtime.wall(), runtime.identity())
        )

    async def cancel(self) -> bool:
        if not self._seen.job.status.terminal:
            connection = await self._opened.connection()
            at = connection.thread.runtime.monotonic()
            (found,) = await connection.thread.ask(
                lambda: connection.store.cancel([self.id], "user")
            )
            if found is not None:
                self._seen.learn(found.job, at)
            await self._settled(limited=True)
        return self._seen.job.status is Status.CANCELLED

    async def events(self, after: int = 0) -> AsyncIterator[JobEvent]:
        OptionRule(is_whole, "the number of an event, or 0").require("events: after", after)
        connection = await self._opened.connection()
        async for event in connection.event_reader.follow(self.id, after):
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
            store = self._thread.store
            self._thread.do("cancel", lambda: _cancel_for_caller(store, self.id))

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
        connection = await self._opened.connection()
        seen.waiting += 1
        try:
            found = await connection.outcomes.watch.until(
                self.id, self._look_in(connection), waiter
            )
        finally:
            seen.waiting -= 1
        if found is None:
            raise JobLost(
                f"job {self.id} is no longer kept: it ended long ago and was pruned",
                job_id=self.id,
            )
        seen.learn(found.job, seen.at)

    def _look_in(self, connection: StoreConnection) -> float:
        """Return the delay of the first poll: a job just submitted is hardly over."""
        age = connection.thread.runtime.monotonic() - self._seen.since
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
            if self._wire is None or not isinstance(job.result, bytes):
                raise
        to = bound_result(job) if self._wire.ring is not None else b""
        return self._wire.read(job.result, Any, f"the result of {job.name}", to)


def stored_job_here() -> str | None:
    """Return the id of the stored job that this code is part of."""
    inside = running.get()
    job = None if inside is None or inside.token is None else inside.snapshot()
    return job.id if isinstance(job, Job) else None


async def _cancel_for_caller(store: Store, id: str) -> None:
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


R = TypeVar("R")

Ask = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Runs a coroutine where the store is, while the calling thread waits for its result."""


@explain_misuse
class SyncTicket(Generic[T]):
    """The handle on one job for code without an event loop; any thread may use it.

    `result`, `cancel`, `refresh` and `explain` block their thread. Where an event loop runs they
    raise UsageError, since they would block the loop.
    """

    __slots__ = ("_ask", "_ticket")

    def __init__(self, ticket: StoredTicket[T], ask: Ask) -> None:
        self._ticket = ticket
        self._ask = ask

    def __repr__(self) -> str:
        return f"<SyncTicket {self.id} {self.snapshot().status.value}>"

    @property
    def id(self) -> str:
        """The id of the job, unique for ever."""
        return self._ticket.id

    @property
    def status(self) -> Status:
        """The status of the job now. Asks the store, unless the job is over or a loop runs here."""
        return self.snapshot().status if has_loop() else self.refresh().status

    def snapshot(self) -> Job:
        """Return what this process knows of the job, without asking the store."""
        return self._ticket.snapshot()

    def refresh(self) -> Job:
        """Read the job from the store and return it."""
        self._check_no_loop("refresh")
        if not self._ticket.snapshot().status.terminal:
            self._ask(self._ticket.refresh)
        return self._ticket.snapshot()

    def explain(self) -> Explanation:
        """Explain why the job waits, and for about how long."""
        self._check_no_loop("explain")
        found: Explanation = self._ask(self._ticket.explain)
        return found

    def result(self, timeout: Seconds | None = None) -> T:
        """Wait for the value, or raise the error of the job.

        After `timeout` seconds raise TimeoutError, which says why the job is not over; the job goes
        on.
        """
        seconds = checked_timeout("result", timeout)
        self._check_no_loop("result")
        # On this thread: the store thread does not have the context of the caller.
        waiter = stored_job_here()
        try:
            self._ask(lambda: self._ticket.settled_for(waiter, seconds))
        except KeyboardInterrupt:
            self._ticket.caller_left()
            raise
        # On this thread: reading a value may run user code, such as pydantic validators.
        return self._ticket.outcome()

    def cancel(self) -> bool:
        """Cancel the job and wait until it is over; return whether it ended cancelled."""
        self._check_no_loop("cancel")
        cancelled: bool = self._ask(self._ticket.cancel)
        return cancelled

    def _check_no_loop(self, verb: str) -> None:
        if has_loop():
            raise UsageError(
                f"{verb}() of a SyncTicket would block the event loop that runs here; use an async "
                f"ticket: ticket = await app.get({self.id!r}), then await ticket"
            )


def has_loop() -> bool:
    """Return whether an event loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
