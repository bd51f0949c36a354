"""Work: a job of this process, with the call it makes and the futures that wait for it."""

from __future__ import annotations

from asyncio import CancelledError, Future
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context, copy_context
from copy import copy
from enum import IntEnum
from threading import get_ident
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from poolhand.context import EMITTED, running
from poolhand.errors import UsageError
from poolhand.pool.engine.reports import Failure
from poolhand.pool.options import Options, SubmitTerms
from poolhand.pool.ticket import Ticket
from poolhand.rules import lifecycle
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Job, Status, full_id
from poolhand.rules.queue.entry import Entry, Window
from poolhand.rules.queue.idempotency import may_be_same

if TYPE_CHECKING:
    from poolhand.pool.engine.engine import Engine


class WorkStage(IntEnum):
    """The progress of some work since its record was last written."""

    WRITTEN = 0
    STARTED = 1
    COMPLETED = 2


# Module-level names: looking a member up in its enum costs as much as a call, for every job.
WRITTEN, STARTED, COMPLETED = WorkStage


class Work(Entry, Ticket[Any]):
    """A queue entry that can run, and the ticket for it.

    Hundreds of thousands may wait and each costs microseconds. Therefore it is one object, futures
    are created only for actual waiters, and its record is written late: it stays the draft shared
    by its terms until it is read (`snapshot`) or anything but success happens. `since` is when it
    was submitted or last gave its slot back. `began` and `ended` are valid once the job has started
    or ended. `shared`: several submitters got this work by its key. `called` is set with a key: the
    module and the name of the function, and the digest of its arguments.
    """

    __slots__ = (
        "accepted",
        "began",
        "call",
        "called",
        "context",
        "ended",
        "failure",
        "head",
        "host",
        "name",
        "number",
        "run_in",
        "shared",
        "since",
        "stage",
        "terms",
        "value",
        "waiters",
    )

    called: tuple[str, str, bytes | None]
    token = None  # only jobs claimed from a store have a token
    head: str
    number: int
    began: float
    ended: float
    value: Any

    def __init__(
        self,
        call: Callable[[], Any] | bytes,
        run_in: str,
        terms: SubmitTerms,
        host: Engine,
        name: str,
        now: float,
    ) -> None:
        # super().__init__ is not called: that saves a call for every job.
        self.job = terms.draft
        self.window: Window | None = None
        self.seq = 0
        self.ready_at = self.since = now
        self.before = self.after = self.place = None
        self.call: Callable[[], Any] | bytes | None = call
        self.run_in = run_in
        self.terms = terms
        self.host = host
        self.accepted = False
        self.shared = False
        self.name = name
        self.stage: WorkStage = WRITTEN
        self.context: Context | None = copy_context()
        self.failure: Failure | None = None
        self.waiters: list[Future[None]] | None = None

    @property
    def id(self) -> str:
        return full_id(self.head, self.number)

    @property
    def options(self) -> Options:
        return self.terms.options

    def is_same_call(self, kept: Work) -> bool:
        (module, name, digest), (kept_module, kept_name, kept_digest) = self.called, kept.called
        # A script is known under two names, if other modules import it.
        modules = {module, kept_module, "__main__"}
        return name == kept_name and len(modules) < 3 and may_be_same(digest, kept_digest)

    @property
    def full_name(self) -> str:
        """The name of the function with its module; for work with a key."""
        module, name, _ = self.called
        return f"{module}.{name}"

    @property
    def over(self) -> bool:
        return self.stage is COMPLETED or self.job.finished_at is not None

    def snapshot(self) -> Job:
        job, stage = self.job, self.stage
        if stage is WRITTEN and job.id:
            if self.failure is not None:
                self.failure.asked()
            return job
        job = self._written(job, stage)
        if get_ident() == self.host.thread:
            # Only on this thread: written by two threads at once, a record could go back in time.
            self.job, self.stage = job, WRITTEN
        return job

    def _written(self, job: Job, stage: WorkStage) -> Job:
        """Return the record brought up to date."""
        if not job.id:
            at = self.host.wall_at(self.since)
            job = replace(job, id=self.id, submitted_at=at, name=self.name)
        if stage is not WRITTEN and job.status is not Status.RUNNING:
            at = self.host.wall_at(self.began)
            job = lifecycle.start(job, at, self.began - self.since)
        if stage is COMPLETED:
            at = self.host.wall_at(self.ended)
            job = lifecycle.complete(job, self.value, at, self.ended - self.began)
        return job

    async def refresh(self) -> Job:
        return self.snapshot()

    async def explain(self) -> Explanation:
        return self.host.explain(self)

    async def cancel(self) -> bool:
        self.host.check_here()
        if not self.over:
            self.host.cancel(self)
            await self._settled(limited=True)
        return self.snapshot().status is Status.CANCELLED

    def fresh_context(self) -> Context:
        """Return a copy of the submitter's context for one attempt; attempts do not share it."""
        assert self.context is not None
        return self.context.copy()

    # These are meaningful for stored jobs only.

    @property
    def attempt_values(self) -> dict[str, Any]:
        return {}

    def emit(self, kind: str, data: bytes) -> Awaitable[None]:
        return EMITTED

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]:
        raise UsageError(f"job {self.id} is in memory and has no store, which this needs: {verb}")

    def ask_sync(self, verb: str, *details: Any) -> Any:
        return self.ask(verb, *details)

    def add_waiter(self) -> Future[None]:
        """Return a future that is done at the next change."""
        self.host.check_here()
        future = self.host.loop.create_future()
        if self.waiters is None:
            self.waiters = [future]
        else:
            self.waiters.append(future)
        return future

    def caller_left(self) -> None:
        if self.options.cancel_with_caller and not (self.shared and self.waiters):
            self.host.cancel(self, "caller")

    def drop_waiter(self, future: Future[None]) -> None:
        if self.waiters is not None and future in self.waiters:
            self.waiters.remove(future)

    def wake(self) -> None:
        """Wake all waiters after a change."""
        waiters, self.waiters = self.waiters, None
        for future in waiters or ():
            if not future.done():
                future.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        if self.stage is COMPLETED:
            # The most common case: a value that is already here needs no coroutine.
            return self.value
        return (yield from self._value().__await__())

    async def _value(self) -> Any:
        if not self.over:
            try:
                await self._settled(limited=False)
            except CancelledError:
                self.caller_left()
                raise
        if self.stage is COMPLETED:
            return self.value
        if self.failure is None:
            return self.job.result
        self.failure.asked()
        # Raised to several callers, an error would otherwise collect the frames of all of them.
        # Called on BaseException because the error's class may override the method.
        raise BaseException.with_traceback(self.failure.error, self.failure.trace)

    def record_apart(self) -> Work:
        """Return the copy of a failed job for the pool; this object belongs to its callers."""
        apart = copy(self)
        if self.failure is not None:
            apart.failure = Failure(self.failure.error, self.failure.trace)
        self.call = self.context = None
        return apart

    def record_for_attempt(self) -> Work:
        """Return the copy that a finished attempt holds instead of this ticket.

        The attempt's context is copied into every task the job creates, and the frames of a stored
        error may reference those: they would keep the ticket alive, and its failure unlogged.
        """
        apart = copy(self)
        apart.call = apart.context = apart.failure = apart.waiters = apart.place = None
        return apart

    async def _settled(self, limited: bool) -> None:
        if self.over:
            return
        future = self.add_waiter()
        try:
            if limited or running.get() is None:
                await future
            else:
                with self.host.awaiting(self, future):
                    await future
        finally:
            if self.waiters is not None:
                self.drop_waiter(future)
