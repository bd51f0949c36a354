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
from poolhand.durable.worker.executor import Executor, StoredAttempt
from poolhand.observe.failures import warn
from poolhand.pool.engine.work import where_to_run
from poolhand.pool.options import Options, SubmitTerms, deadlines
from poolhand.pool.slots.attempt import NOTHING, Attempt, AttemptWatch
from poolhand.pool.slots.process_parent import ending, pack, unguarded
from poolhand.rules.job import Job
from poolhand.rules.streams import StreamKind
from poolhand.rules.values.escape import safe

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

    def stay_here(self, attempt: Attempt[RunningClaim], executor: Executor) -> bool:
        """Switch to this process if no child can start; return whether the job switched.

        Only a job that is isolated because of crashes: its code never ran in that child, so the
        failed start does not count as an attempt.
        """
        loss = None if attempt.outside is None else attempt.outside.loss
        if loss is None or not loss.is_by_script or attempt.asked is not NOTHING:
            return False
        errand = replace(self.errand, alone=False)
        run_in, call = _where(errand)
        if run_in == "process":
            return False
        self.errand, self.run_in, self.call = errand, run_in, call
        if executor.isolates:
            executor.isolates = False
            warn(_not_isolated(self.job, ending(loss.code)))
        return True

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


def _not_isolated(job: Job, how: str) -> str:
    """Return what is logged when a job runs in its worker because no child can start."""
    died = "a process that ran it died"
    if job.crashes > 1:
        died = f"{job.crashes} processes that ran it died"
    return (
        f"job {job.id} of task {safe(job.name)!r} runs in this worker: {died}, so a process of its "
        f"own was started for it, which {how} before it was up: {unguarded()}"
    )
