"""Tickets for code without an event loop: scripts, Django, Flask, jobs in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from poolhand.durable.client.ticket import StoredTicket, stored_job_here
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.pool.ticket import checked_timeout
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Job, Status
from poolhand.rules.validation import Seconds

T = TypeVar("T")
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
