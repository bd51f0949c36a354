"""A running claim: a claimed job in a slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from poolhand.context import restore
from poolhand.contract import Claim
from poolhand.durable.calls.attribution import attributed_level
from poolhand.durable.calls.capture import is_capturing
from poolhand.durable.calls.task_registry import PARCELS, run_apart
from poolhand.durable.streams.event_writer import EventWriter
from poolhand.durable.streams.job_api import JobStoreApi
from poolhand.durable.worker.executor import StoredAttempt
from poolhand.pool.engine.work import where_to_run
from poolhand.pool.options import Options, SubmitTerms, deadlines
from poolhand.pool.slots.attempt import AttemptWatch
from poolhand.pool.slots.process_parent import pack
from poolhand.rules.job import Job
from poolhand.rules.streams import StreamKind

_OPTIONS = Options()


class AttemptListener(Protocol):
    """Receives the events and store requests of running jobs."""

    @property
    def chronicle(self) -> EventWriter: ...

    @property
    def ledger(self) -> JobStoreApi: ...


class RunningClaim:
    """The work of a slot for a claim.

    `lost`: the claim is no longer valid, whatever the code does. `wished`: cancellation was
    requested, not by this worker. `returned`: this worker stops the job, and hands it back once it
    has stopped. `given_back`: that was done. `swept`: another job has cancelled it along with all
    tasks of the loop.
    """

    __slots__ = (
        "_hearing",
        "call",
        "context",
        "errand",
        "given_back",
        "host",
        "job",
        "lost",
        "place",
        "returned",
        "run_in",
        "shelf",
        "swept",
        "terms",
        "wished",
    )

    def __init__(
        self, errand: StoredAttempt, host: AttemptWatch, context: Context, hearing: AttemptListener
    ) -> None:
        brief = errand.brief
        self._hearing = hearing
        self.shelf: dict[str, Any] = {} if errand.code is None else {PARCELS: errand.code.parcels}
        self.errand = errand
        self.host = host
        self.job: Job = errand.job
        self.terms = SubmitTerms(
            _OPTIONS, errand.job, False, *deadlines(brief.soft_timeout, brief.timeout)
        )
        self.call: Callable[[], Any] | bytes | None
        self.run_in, self.call = _where(errand)
        self.place: Any = None
        self.context = (errand.context or context).copy()
        if errand.brought:
            self.context.run(restore, errand.brought)
        self.lost = self.wished = self.returned = self.given_back = self.swept = False

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def token(self) -> int:
        return self.errand.claim.token

    @property
    def claim(self) -> Claim:
        """The claim, with the current job record."""
        claim = self.errand.claim
        return claim if claim.job is self.job else replace(claim, job=self.job)

    def snapshot(self) -> Job:
        return self.job

    def fresh_context(self) -> Context:
        return self.context

    def tell(self, kind: str, data: bytes) -> Awaitable[None]:
        return self._hearing.chronicle.tell(self.job, self.token, StreamKind(kind), data)

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]:
        return self._hearing.ledger.ask(self.job, self.token, verb, details)

    def ask_sync(self, verb: str, *details: Any) -> Any:
        return self._hearing.ledger.ask_sync(self.job, self.token, verb, details)


def _where(errand: StoredAttempt) -> tuple[str, Callable[[], Any] | bytes]:
    """Return where a call runs, and the call in the form needed there."""
    code, call = errand.code, errand.call
    if code is None:
        assert isinstance(call, partial)
        wanted = where_to_run(call.func, errand.brief.run_in, errand.brief.run_in)
        return wanted, pack(call.func, call.args, call.keywords) if wanted == "process" else call
    run_in = errand.brief.run_in
    # An explicit `run_in` was checked against the task on submit; otherwise it is the pool's
    # default.
    wanted = where_to_run(code.fn, run_in, run_in)
    if errand.alone and code.is_findable:
        wanted = "process"
    if wanted != "process":
        return wanted, call
    if not code.is_findable:
        raise code.unfindable()
    assert isinstance(call, partial)
    # By name: its task replaces the function under its own name, so it cannot be pickled.
    path = (code.fn.__module__, code.fn.__qualname__)
    told = (call.args, call.keywords, is_capturing(), errand.brought, attributed_level())
    return wanted, pack(run_apart, (*path, *told), {})
