"""Work: a job of this process, with the call it makes and those who wait for it."""

from __future__ import annotations

import inspect
from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from copy import copy
from datetime import datetime
from enum import IntEnum
from functools import partial
from threading import get_ident
from typing import Any, Protocol

from msgspec.structs import replace

from poolhand.context import TOLD, running
from poolhand.errors import UsageError
from poolhand.observe.events import Events
from poolhand.pool.engine.unheard import Failure
from poolhand.pool.options import Options, SubmitTerms
from poolhand.pool.ticket import Ticket
from poolhand.rules import lifecycle
from poolhand.rules.explain import Explanation
from poolhand.rules.ids import full_id
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.entry import Entry, Window


class WorkHost(Protocol):
    """What work needs of the pool it is in."""

    @property
    def label(self) -> str: ...

    @property
    def events(self) -> Events: ...

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def thread(self) -> int: ...

    @property
    def stopped(self) -> bool: ...

    def check_here(self) -> None: ...

    def wall_at(self, moment: float) -> datetime: ...

    def cancel(self, work: Work, by: str = ...) -> None: ...

    def explain(self, work: Work) -> Explanation: ...

    def awaiting(self, work: Work, future: Future[None]) -> AbstractContextManager[None]: ...


class WorkStage(IntEnum):
    """What has happened to some work since its record was written."""

    WRITTEN = 0
    STARTED = 1
    COMPLETED = 2


# Names of the module: looking a member up in its enum costs as much as a call, for every job.
WRITTEN, STARTED, COMPLETED = WorkStage


class Work(Entry, Ticket[Any]):
    """An entry that can run, and the ticket for it.

    Hundreds of thousands may wait and each costs microseconds, so it is one object, futures are
    made only for those who wait, and its record is written late: it stays the shared draft of its
    terms until somebody looks (`snapshot`) or something else than success happens. `since` is when
    it was submitted or last gave its slot back, `began` and `ended` are true once it has; `shared`
    says that several submitters got it by its key.
    """

    __slots__ = (
        "accepted",
        "began",
        "call",
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

    token = None  # only what a store handed out has one
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
        host: WorkHost,
        name: str,
        now: float,
    ) -> None:
        # Not super().__init__: one call less for every job.
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
            # Only there: written from two threads at once, a record could fall back in time.
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
        """Return the submitter's context for one attempt; attempts must not see each other's."""
        assert self.context is not None
        return self.context.copy()

    # What only a stored job has.

    @property
    def shelf(self) -> dict[str, Any]:
        return {}

    def tell(self, kind: str, data: bytes) -> Awaitable[None]:
        return TOLD

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]:
        raise UsageError(f"job {self.id} is kept by no store that could be asked: {verb}")

    def ask_sync(self, verb: str, *details: Any) -> Any:
        return self.ask(verb, *details)

    def add_waiter(self) -> Future[None]:
        """Return a future that is done when something has changed."""
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
        """Tell everybody who waits that something has changed."""
        waiters, self.waiters = self.waiters, None
        for future in waiters or ():
            if not future.done():
                future.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        if self.stage is COMPLETED:
            # By far the most: no coroutine has to be made for a value that is here.
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
        # As BaseException does it: an error may have a method of its own.
        raise BaseException.with_traceback(self.failure.error, self.failure.trace)

    def record_apart(self) -> Work:
        """Return what the pool keeps of a failed job; this one belongs to those with its ticket."""
        apart = copy(self)
        if self.failure is not None:
            apart.failure = Failure(self.failure.error, self.failure.trace)
        self.call = self.context = None
        return apart

    def record_for_attempt(self) -> Work:
        """Return what an attempt that is over holds instead of this ticket.

        Its context is copied into every task the job makes, and the frames of a kept error may
        hold those: through them the ticket would live on, and with it a failure unlogged.
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


_COROUTINE = inspect.CO_COROUTINE
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_KINDS = _COROUTINE | _GENERATORS
_NO_JOBS = (
    (inspect.isasyncgenfunction, "an async generator"),
    (inspect.isgeneratorfunction, "a generator"),
)


# Where plain functions run that ask for this.
_PLAIN = {None: "thread", "loop": "sync", "thread": "thread", "process": "process"}


def where_to_run(fn: Callable[..., Any], wanted: str | None, usual: str | None) -> str:
    """Return where a callable runs: "async" or "sync" on the loop, in a "thread" or a "process".

    `wanted` is what this submit asks for, `usual` what the pool does; async functions always run
    on the loop, and only a submit that asks for something else by itself is told so.
    """
    code = getattr(fn, "__code__", None)
    kind = code.co_flags & _KINDS if code is not None else None
    is_async = kind == _COROUTINE
    if kind is None or kind & _GENERATORS:
        is_async = _is_async(fn)
    if not is_async:
        return _PLAIN[wanted]
    if wanted != usual and wanted in ("thread", "process"):
        raise UsageError(
            f"{name_of(fn)} is async and runs on the loop; run_in={wanted!r} is for plain functions"
        )
    return "async"


def _is_async(fn: object) -> bool:
    """Look closer at callables that are no plain functions."""
    if inspect.iscoroutine(fn):
        fn.close()
        raise UsageError(
            f"submit takes a function and its arguments, not a coroutine: write "
            f"submit({name_of(fn)}, …), not submit({name_of(fn)}(…))"
        )
    if not callable(fn):
        raise UsageError(f"submit takes a function and its arguments; {fn!r} cannot be called")
    inner: Any = fn
    while isinstance(inner, partial):
        inner = inner.func
    for is_one, kind in _NO_JOBS:
        if is_one(inner):
            raise UsageError(f"{name_of(fn)} is {kind}; submit what returns one value")
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def name_of(fn: object) -> str:
    """Return what people call a callable."""
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__qualname__", None) or type(fn).__name__
