"""The executor: turns a claim into a call to run, and the end of an attempt into a store change.

In between, the slot runs the call, enforces its timeouts and determines the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.contract import Change, Claim
from poolhand.durable.calls.call_record import (
    CALL,
    CONTEXT,
    CallRecord,
    Returned,
    bound,
    bound_result,
    bound_to,
    expect_own_run,
    pack_returned,
    read_call_record,
)
from poolhand.durable.calls.declaration import is_other_file, is_other_release
from poolhand.durable.calls.task_registry import TaskCode, TaskRegistry
from poolhand.errors import BadSignature, JobLost, PoolhandError, UsageError, WireError
from poolhand.observe.failures import warn
from poolhand.rules import lifecycle
from poolhand.rules.explain import call_cause, home_cause, key_cause, task_cause
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.outcome import NO_RETRY, Completed, Failed, Outcome, Retry, unreadable
from poolhand.runtime import Identity

# Returns whether a closure may still run at its home, which is another process.
Held = Callable[[Identity, str], bool]

MOST_REFUSED = 1000  # every claim request lists them all
NOT_AGAIN = "; it is not run again, as on_crash='fail' says"


class PreparedClaim(Struct, frozen=True):
    """A claim that can run: its code, its call, and its call record.

    A closure runs in the whole `context` of its submitter, a task with the context values in
    `brought`.
    """

    claim: Claim
    record: CallRecord
    code: TaskCode | None
    call: Callable[[], Any]
    alone: bool = False
    context: Context | None = None
    brought: dict[str, Any] = {}

    @property
    def job(self) -> Job:
        return self.claim.job

    def timed(self, soft: float | None, hard: float | None) -> PreparedClaim:
        """Return it with these timeouts, unless the job has timeouts of its own."""
        record = self.record
        has_own = record.timeout is not None or record.soft_timeout is not None
        if has_own or soft is hard is None:
            return self
        return replace(self, record=replace(record, timeout=hard, soft_timeout=soft))

    def own(self, value: Any) -> Returned | None:
        """Return the value of a closure for waiters in this process: it may not be stored."""
        return Returned(value) if self.code is None else None


class Unrunnable(Struct, frozen=True):
    """A claim that cannot run, and the outcome that its job gets."""

    claim: Claim
    outcome: Failed


class ClosureCall(Struct, frozen=True):
    """A call that exists in this process only, in the context of its submitter."""

    call: Callable[[], Any]
    context: Context

    @classmethod
    def of(cls, call: Callable[[], Any]) -> ClosureCall:
        return cls(call, copy_context())


def call_of(
    code: TaskCode, record: CallRecord, job: Job
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Return the call of a job and its context values; check that both belong to it."""
    of_call = of_context = b""
    if code.signs:
        expect_own_run(record, job)
        to = bound_to(job, record, job.run)
        of_call, of_context = bound(CALL, to), bound(CONTEXT, to)
    call = code.unpack(record.payload, of_call)
    return call, {} if record.context is None else code.unpack_context(record.context, of_context)


class Executor:
    """Holds the tasks of an app, and the closures that this process has submitted.

    `pools` returns the pools that its jobs are in, None if they may be in any. `is_home`: closures
    are submitted in this process.
    """

    def __init__(
        self,
        codes: TaskRegistry,
        pools: Callable[[], tuple[str, ...] | None] = lambda: None,
        *,
        is_home: bool = False,
    ) -> None:
        self.codes = codes
        self.pools = pools
        self.is_home = is_home
        self.isolates = True  # until a child could not start because of the script
        self._other_files: set[tuple[str, str]] = set()
        self.closures: dict[str, ClosureCall] = {}
        # Replaced, never mutated: the store thread reads it.
        self._refused: tuple[object, frozenset[str]] = None, frozenset()

    def prepare(self, claim: Claim, held: Held) -> PreparedClaim | Unrunnable | Change:
        """Find the code and arguments of a claim; park a job that only another process can run."""
        job_id = claim.job.id
        try:
            record = read_call_record(claim.call_record, job_id)
            if record.closure:
                return self._closure(claim, record, held)
            code = self.codes.find(record.task)
            if code is None:
                return set_aside(claim, task_cause(record.task))
            if not code.is_meant(record.task, record.source):
                return self._refuse(claim, task_cause(record.task))
        except Exception as error:
            return Unrunnable(claim, Failed(error, permanent=True))
        try:
            call, brought = call_of(code, record, claim.job)
        except BadSignature as error:
            return _unverified(claim, error)
        except WireError as error:
            return self._misfit(claim, record, code, error)
        except Exception as error:
            # Constructing the user's types may raise anything.
            return Unrunnable(claim, Failed(error, permanent=True))
        # Check `crashes` first: few jobs have crashed, and reading a retry policy costs as much as
        # all the rest.
        alone = claim.job.crashes > 0 and lifecycle.runs_alone(claim.job, record.policy)
        if alone and not code.is_findable and _is_proven_enough(claim.job, record):
            return Unrunnable(claim, Failed(_never_alone(claim.job, code), permanent=True))
        alone = alone and self.isolates
        if record.source is not None and record.source != code.source:
            self._check_file(claim.job, record.source, code)
        return PreparedClaim(claim, record, code, call, alone, brought=brought)

    @property
    def refused(self) -> frozenset[str]:
        """The causes of calls that the currently registered tasks do not accept."""
        codes, refused = self._refused
        return refused if codes == self.codes.registered else frozenset()

    def causes(self) -> frozenset[str]:
        """Return the causes of parked jobs that can run here."""
        return self.codes.causes()

    def complete(
        self, prepared: PreparedClaim, claim: Claim, value: Any, end: AttemptEnd
    ) -> Change | Failed:
        """Return the change of a job that returned; a value that cannot be stored is a failure."""
        code = prepared.code
        try:
            if code is None:
                # Waiters in this process have the value already; others can read it if it is JSON.
                data = pack_returned(value)
            else:
                data = code.pack_result(value, bound_result(claim.job) if code.signs else b"")
        except PoolhandError as error:
            return Failed(error, permanent=True)
        except Exception as error:
            kind = type(error).__name__
            text = f"the result of {claim.job.name} raises {kind} when encoded; return plain data"
            return Failed(UsageError(text), permanent=True)
        return Change(lifecycle.complete(claim.job, data, end.at, end.ran), claim.token)

    def settle(
        self, claim: Claim, outcome: Outcome, policy: Retry | None, end: AttemptEnd
    ) -> Change:
        """Return the change of a job that did not return a value."""
        assert not isinstance(outcome, Completed)
        job = lifecycle.settle(claim.job, outcome, policy, end.at, end.ran, end.roll)
        return _change(job, claim, _wait(job, outcome, end.at), end)

    def settle_surely(
        self, claim: Claim, outcome: Outcome, policy: Retry | None, end: AttemptEnd
    ) -> tuple[Change, Outcome]:
        """Settle even an unreadable outcome; return the change and the outcome that counts."""
        try:
            return self.settle(claim, outcome, policy, end), outcome
        except Exception:
            outcome = unreadable(claim.job.id)
            return self.settle(claim, outcome, policy, end), outcome

    def lost(self, claim: Claim, record: CallRecord, end: AttemptEnd) -> Change:
        """Return the change of a job whose own child process died while it ran."""
        job = lifecycle.crash(claim.job, record.policy, record.rerun, end.at, proven=True)
        return _change(job, claim, 0.0, end)

    def _refuse(self, claim: Claim, cause: str) -> Change:
        """Park a job that this process claimed and will not claim again."""
        refused = self.refused
        # At the limit, drop them all: each call is then tried once more.
        known = refused if len(refused) < MOST_REFUSED else frozenset()
        self._refused = self.codes.registered, known | {cause}
        return set_aside(claim, cause)

    def _check_file(self, job: Job, source: str, code: TaskCode) -> None:
        """Warn, once for each file, of jobs from another file whose task has the same name."""
        files = code.source, source
        if files in self._other_files or not is_other_file(code.name, *files):
            return
        if is_other_release(*files):
            return
        if len(self._other_files) < MOST_REFUSED:
            self._other_files.add(files)
            warn(
                f"job {job.id} was submitted to task {job.name!r} of the file {source}, and this "
                f"worker runs it with the task of that name of {code.source}; if these are two "
                "programs, give one of the tasks another name: @app.task(name=…), or use two "
                "stores (other jobs from that file are not logged)"
            )

    def _misfit(
        self, claim: Claim, record: CallRecord, code: TaskCode, error: WireError
    ) -> Unrunnable | Change:
        """Park a call that does not fit but may fit the task version it was submitted to."""
        if record.version is None or record.version == code.version:
            return Unrunnable(claim, Failed(error, permanent=True))
        cause = call_cause(record.version, claim.job.name)
        change = self._refuse(claim, cause)
        text = error.message
        if is_other_file(code.name, code.source, record.source or ""):
            text += f" (submitted to the task of that name of the file {record.source})"
        fault = Fault(f"poolhand.errors.{type(error).__name__}", text)
        return replace(change, job=lifecycle.with_fault(change.job, writable(fault)))

    def _closure(
        self, claim: Claim, record: CallRecord, held: Held
    ) -> PreparedClaim | Unrunnable | Change:
        closure = self.closures.get(claim.job.id)
        if closure is None:
            if record.home is not None and held(record.home, claim.job.id):
                return set_aside(claim, home_cause(record.home))
            text = (
                f"job {claim.job.id} called {record.task}, which is not a task: it existed only in "
                "the process that submitted it, which is gone; register it as a task, or submit it "
                "again"
            )
            return Unrunnable(claim, Failed(JobLost(text, job_id=claim.job.id), permanent=True))
        return PreparedClaim(claim, record, None, closure.call, context=closure.context)


class AttemptEnd(Struct, frozen=True):
    """How an attempt ended: when, after how long, and a random number for retry jitter."""

    at: datetime
    ran: float
    roll: float
    fault: Fault | None = None
    stuck: bool = False


def hand_back(claim: Claim) -> Change:
    """Return a job that was stopped in order, or not begun, to where it came from."""
    return Change(lifecycle.hand_back(claim.job), claim.token, wait=0.0)


def set_aside(claim: Claim, cause: str) -> Change:
    """Park a job that cannot run in this process until a process claims it that can run it."""
    return Change(lifecycle.set_aside(claim.job, cause), claim.token)


def _unverified(claim: Claim, error: BadSignature) -> Unrunnable | Change:
    if error.missing_key is None:
        return Unrunnable(claim, Failed(error, permanent=True))
    # Another worker may have the key: a new key does not reach all workers at once.
    return set_aside(claim, key_cause(error.missing_key, claim.job.name))


def unwritable(change: Change, error: Exception) -> Change:
    """Return the change to write for a job whose outcome no store can take as it is."""
    text = f"its outcome cannot be stored ({type(error).__name__})"
    job = change.job
    ended_at = job.finished_at or job.started_at
    job = replace(job, status=Status.FAILED, finished_at=ended_at, result=None, run_at=None)
    fault = Fault("poolhand.errors.JobFailed", text)
    return Change(lifecycle.with_fault(job, fault), change.token, stuck=change.stuck)


def crashed(claim: Claim, at: datetime) -> Change:
    """Return the change of a job whose process died, as found by another process."""
    record = _readable_record(claim)
    # A job with an unreadable call record is requeued: the next worker that claims it fails it with
    # the reason.
    policy, rerun = (None, True) if record is None else (record.policy, record.rerun)
    job = lifecycle.crash(claim.job, policy, rerun, at, proven=False)
    text = "the process that ran it died"
    if job.status is Status.FAILED and not rerun:
        text += NOT_AGAIN
    return Change(lifecycle.with_fault(job, _lost(text)), claim.token, 0.0)


def stopped(claim: Claim, at: datetime, entered: bool = True) -> Change:
    """Return the change of a job that its worker has stopped; `entered`: its code had begun."""
    record = _readable_record(claim) if entered else None
    job = lifecycle.cut_short(claim.job, record is None or record.rerun, at)
    if job.status is Status.FAILED:
        job = lifecycle.with_fault(job, _lost("its worker was stopped while it ran" + NOT_AGAIN))
    return Change(job, claim.token, 0.0)


def loss_of(job: Job) -> JobLost:
    """Return the error for callers of a job that must not start again."""
    text = "" if job.error is None else job.error.message
    return JobLost(f"job {job.id} was lost: {text}", job_id=job.id)


def _readable_record(claim: Claim) -> CallRecord | None:
    try:
        return read_call_record(claim.call_record, claim.job.id)
    except PoolhandError:
        return None


def _lost(text: str) -> Fault:
    return Fault("poolhand.errors.JobLost", text)


def _is_proven_enough(job: Job, record: CallRecord) -> bool:
    """Return whether a job that cannot run alone has used its last attempt beside other jobs."""
    return (record.policy or NO_RETRY).attempts == 1 and job.crashes >= lifecycle.CRASHES_IN_COMPANY


def _never_alone(job: Job, code: TaskCode) -> JobLost:
    return JobLost(
        f"job {job.id} was lost: {job.crashes} processes that ran it died, and "
        f"{code.unfindable().message}",
        job_id=job.id,
    )


def is_own_loss(outcome: Outcome, job: Job) -> bool:
    """Return whether an outcome means that the child process of this job is gone."""
    # Compare ids: a job may pass on the JobLost of another job.
    error = outcome.error if isinstance(outcome, Failed) else None
    return type(error) is JobLost and error.job_id == job.id


def _change(job: Job, claim: Claim, wait: float | None, end: AttemptEnd) -> Change:
    if end.fault is not None:
        job = lifecycle.with_fault(job, writable(end.fault))
    return Change(job, claim.token, wait=wait, stuck=end.stuck)


def writable(fault: Fault) -> Fault:
    """Return a fault whose texts every store can take: errors may contain invalid text."""
    texts = (fault.type, fault.message, fault.traceback)
    return Fault(*(text.encode(errors="replace").decode() for text in texts))


def _wait(job: Job, outcome: Outcome, at: datetime) -> float | None:
    """Return the seconds until a job runs again; None if it named a calendar time."""
    if job.status is Status.QUEUED:
        return 0.0
    if job.run_at is None or job.status is not Status.SCHEDULED:
        return None
    if isinstance(getattr(outcome, "until", None), datetime):
        return None
    return max(0.0, (job.run_at - at).total_seconds())
