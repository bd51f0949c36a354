"""Tickets: the handle on a submitted job."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Generator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from poolhand.errors import StoreError, UsageError
from poolhand.misuse import explain_misuse, no_attribute
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Job, Status
from poolhand.rules.streams import JobEvent
from poolhand.rules.validation import SECONDS, Seconds, to_seconds

T = TypeVar("T")

EXPLAIN_WITHIN = 1.0  # extra time a timed-out wait may take to find out why the job is not over
LEARN_WITHIN = 3.0  # extra time to fetch the outcome if the store says that the job is over


# Names that users of futures try.
OTHER_NAMES = {
    "done": "write ticket.snapshot().status, or wait with await ticket.result(timeout=…)",
    "exception": "await the ticket, which raises it, or read ticket.snapshot().error",
}


@explain_misuse
class Ticket(Generic[T]):
    """The handle on one job: await it for its value, or for the exception the job raised.

    Submitting the same idempotency key again returns the same job. Dropping a ticket changes
    nothing: the job continues.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_NAMES.get(name))

    @property
    @abstractmethod
    def id(self) -> str:
        """The id of the job, unique across all processes and times."""

    def __repr__(self) -> str:
        return f"<Ticket {self.id} {self.status.value}>"

    @property
    def status(self) -> Status:
        return self.snapshot().status

    @property
    def as_of(self) -> datetime | None:
        """When `status` and `snapshot` were last confirmed; None if they are always current."""
        return None

    @abstractmethod
    def snapshot(self) -> Job:
        """Return what this process knows of the job now, without asking the store."""

    @abstractmethod
    async def refresh(self) -> Job:
        """Fetch and return the latest snapshot of the job."""

    @abstractmethod
    async def explain(self) -> Explanation:
        """Explain why the job waits, and estimate for how long."""

    @abstractmethod
    async def cancel(self) -> bool:
        """Cancel the job and wait until it is over; return whether it ended cancelled.

        A waiting job never runs. A running job is asked to stop and, if it does not, settled after
        the pool's `cancel_grace`. A finished job stays as it is.
        """

    def events(self, after: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the events that the job emits, numbered above `after`, until the job is over.

        Every reader gets every event once, in order. To resume, pass the last number as `after`.
        """
        raise UsageError(
            f"job {self.id} is in memory and its events are not stored; submit it to an App, "
            "or to a pool with a durable scope"
        )

    def __await__(self) -> Generator[Any, None, T]:
        return self._value().__await__()

    async def result(self, timeout: Seconds | None = None) -> T:
        """Wait for the value; after `timeout` seconds raise TimeoutError and leave the job running.

        The error says why the job still waits, or that it runs.
        """
        seconds = checked_timeout("result", timeout)
        if seconds is not None:
            try:
                await self.settled_within(seconds)
            except asyncio.CancelledError:
                self.caller_left()
                raise
        return await self._value()

    async def settled_within(self, seconds: float | None) -> None:
        """Wait until the job is over; after `seconds`, raise TimeoutError with the reason."""
        if seconds is None:
            await self._settled(limited=False)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._settled(limited=True)
        except TimeoutError:
            text = f"job {self.id} is not over after {seconds:g} s"
            try:
                async with asyncio.timeout(EXPLAIN_WITHIN):
                    why = await self.explain()
                if why.reason in ("over", "gone"):
                    async with asyncio.timeout(LEARN_WITHIN):
                        await self._settled(limited=True)
                    return
            except (TimeoutError, StoreError) as error:
                raise TimeoutError(f"{text}; its store did not explain why in time") from error
            raise TimeoutError(f"{text}: {why}") from None

    @abstractmethod
    async def _value(self) -> T:
        """Wait for the job and return its value or raise its error."""

    @abstractmethod
    def caller_left(self) -> None:
        """Record that the caller awaiting the value was cancelled."""

    @abstractmethod
    async def _settled(self, limited: bool) -> None:
        """Wait until the job is over, however it ended; `limited`: the wait is bounded anyway."""


def checked_timeout(verb: str, timeout: Any) -> float | None:
    """Return a timeout in seconds, or raise if it is invalid."""
    seconds: float | None = to_seconds(timeout)
    if seconds is not None:
        SECONDS.require(f"{verb}: timeout", seconds)
    return seconds


@overload
async def wait(tickets: Ticket[Any], timeout: Seconds | None = None) -> Job: ...


@overload
async def wait(tickets: Iterable[Ticket[Any]], timeout: Seconds | None = None) -> list[Job]: ...


@explain_misuse
async def wait(
    tickets: Ticket[Any] | Iterable[Ticket[Any]], timeout: Seconds | None = None
) -> Job | list[Job]:
    """Wait until the jobs are over, or `timeout` seconds; return their snapshots in input order.

    A failed job raises nothing here: read `status`, `result` and `error` of the snapshots.
    """
    seconds = checked_timeout("wait", timeout)
    if not isinstance(tickets, Ticket | Iterable):
        raise UsageError(f"wait takes a ticket or tickets; {tickets!r} is none")
    many = [tickets] if isinstance(tickets, Ticket) else list(tickets)
    for one in many:
        if not isinstance(one, Ticket):
            raise UsageError(f"wait takes a ticket or tickets; {one!r} is none")
    try:
        async with asyncio.timeout(seconds):
            for ticket in many:
                await ticket._settled(limited=seconds is not None)
    except TimeoutError:
        pass  # The snapshots show which jobs are not over yet.
    return many[0].snapshot() if isinstance(tickets, Ticket) else [one.snapshot() for one in many]
