"""Running claims: claimed jobs in slots, and what becomes of them when their worker must end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.context import restore
from poolhand.contract import Claim
from poolhand.durable.calls.capture import attributed_level, is_capturing
from poolhand.durable.calls.task_registry import WIRE, run_apart
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.leases.heartbeat import LEASE
from poolhand.durable.worker.executor import Executor, PreparedClaim
from poolhand.observe.failures import warn
from poolhand.pool.options import Options, SubmitTerms, deadlines, where_to_run
from poolhand.pool.slots.attempt import NOTHING, Attempt, AttemptWatch
from poolhand.pool.slots.process_parent import ending, pack, unguarded
from poolhand.rules.job import Job
from poolhand.rules.plain import safe
from poolhand.rules.streams import StreamKind

_OPTIONS = Options()
MOST_NAMED = 5
LONGEST_NAME = 200


class RunningClaim:
    """The work of a slot for a claim.

    `lost`: the claim is no longer valid, whatever the code does. `cancel_requested`: not by this
    worker. `returned`: this worker stops the job, and hands it back once it has stopped.
    `given_back`: that was done. `swept`: another job has cancelled it along with all tasks of the
    loop.
    """

    __slots__ = (
        "_connection",
        "attempt_values",
        "call",
        "cancel_requested",
        "context",
        "given_back",
        "host",
        "job",
        "lost",
        "place",
        "prepared",
        "returned",
        "run_in",
        "swept",
        "terms",
    )

    def __init__(
        self,
        prepared: PreparedClaim,
        host: AttemptWatch,
        context: Context,
        connection: StoreConnection,
    ) -> None:
        record, code = prepared.record, prepared.code
        self._connection = connection
        self.attempt_values: dict[str, Any] = {} if code is None else {WIRE: code.wire}
        self.prepared = prepared
        self.host = host
        self.job: Job = prepared.job
        self.terms = SubmitTerms(
            _OPTIONS, prepared.job, False, *deadlines(record.soft_timeout, record.timeout)
        )
        self.call: Callable[[], Any] | bytes | None
        self.run_in, self.call = _where(prepared)
        self.place: Any = None
        self.context = (prepared.context or context).copy()
        if prepared.brought:
            self.context.run(restore, prepared.brought)
        self.lost = self.cancel_requested = self.returned = self.given_back = self.swept = False

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def token(self) -> int:
        return self.prepared.claim.token

    @property
    def claim(self) -> Claim:
        """The claim, with the current job record."""
        claim = self.prepared.claim
        return claim if claim.job is self.job else replace(claim, job=self.job)

    def stay_here(self, attempt: Attempt[RunningClaim], executor: Executor) -> bool:
        """Switch to this process if no child can start; return whether the job switched.

        Only a job that is isolated because of crashes: its code never ran in that child, so the
        failed start does not count as an attempt.
        """
        loss = None if attempt.outside is None else attempt.outside.loss
        if loss is None or not loss.is_by_script or attempt.asked is not NOTHING:
            return False
        prepared = replace(self.prepared, alone=False)
        run_in, call = _where(prepared)
        if run_in == "process":
            return False
        self.prepared, self.run_in, self.call = prepared, run_in, call
        if executor.isolates:
            executor.isolates = False
            warn(_not_isolated(self.job, ending(loss.code)))
        return True

    def snapshot(self) -> Job:
        return self.job

    def fresh_context(self) -> Context:
        return self.context

    def emit(self, kind: str, data: bytes) -> Awaitable[None]:
        return self._connection.event_writer.emit(self.job, self.token, StreamKind(kind), data)

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]:
        return self._connection.job_api.ask(self.job, self.token, verb, details)

    def ask_sync(self, verb: str, *details: Any) -> Any:
        return self._connection.job_api.ask_sync(self.job, self.token, verb, details)


def _where(prepared: PreparedClaim) -> tuple[str, Callable[[], Any] | bytes]:
    """Return where a call runs, and the call in the form needed there."""
    code, call = prepared.code, prepared.call
    if code is None:
        assert isinstance(call, partial)
        wanted = where_to_run(call.func, prepared.record.run_in, prepared.record.run_in)
        return wanted, pack(call.func, call.args, call.keywords) if wanted == "process" else call
    run_in = prepared.record.run_in
    # An explicit `run_in` was checked against the task on submit; otherwise it is the pool's
    # default.
    wanted = where_to_run(code.fn, run_in, run_in)
    if prepared.alone and code.is_findable:
        wanted = "process"
    if wanted != "process":
        return wanted, call
    if not code.is_findable:
        raise code.unfindable()
    assert isinstance(call, partial)
    # By name: its task replaces the function under its own name, so it cannot be pickled.
    path = (code.fn.__module__, code.fn.__qualname__)
    passed = (call.args, call.keywords, is_capturing(), prepared.brought, attributed_level())
    return wanted, pack(run_apart, (*path, *passed), {})


def _not_isolated(job: Job, how: str) -> str:
    """Return what is logged when a job runs in its worker because no child can start."""
    died = "a process that ran it died"
    if job.crashes > 1:
        died = f"{job.crashes} processes that ran it died"
    return (
        f"job {job.id} of task {safe(job.name)!r} runs in this worker: {died}, so a process of its "
        f"own was started for it, which {how} before it was ready: {unguarded()}"
    )


class Unfinished(Struct, frozen=True):
    """A job that was still running when its worker had to end.

    `fails`: it must not start again, as `on_crash="fail"` says. `stuck`: its code did not stop.
    """

    id: str
    name: str
    in_thread: bool = False
    fails: bool = False
    stuck: bool = False

    def __str__(self) -> str:
        return f"job {self.id} of task {safe(self.name[:LONGEST_NAME])!r}"


def unfinished(work: RunningClaim, stuck: bool = False) -> Unfinished:
    """Return the record of a running job."""
    job, record = work.job, work.prepared.record
    return Unfinished(job.id, job.name, work.run_in == "thread", not record.rerun, stuck)


def draining_text(jobs: int, seconds: float) -> str:
    """Say how many jobs a drain waits for, and how long at most."""
    return f"stopping: {_are(jobs)} still running; waiting up to {seconds:g} s"


def stopping_text(jobs: Sequence[Unfinished]) -> str:
    """Return a text on what becomes of the jobs that run when their worker must stop now."""
    threads = [one for one in jobs if one.in_thread]
    others = len(jobs) - len(threads)
    parts = [f"{_are(others)} handed back to the store"] if others else []
    if threads:
        runs, goes, is_back = ("runs", "it runs", "is") if len(threads) == 1 else _MANY
        parts.append(
            f"{_named(threads)} {runs} in a thread, which cannot be stopped: {goes} on until the "
            f"code ends or this process ends, and {is_back} handed back then"
        )
    return "; ".join(parts)


_MANY = ("run", "they run", "are")


def stopped_text(jobs: Sequence[Unfinished], seconds: float) -> str:
    """Return a text on which jobs still ran when their worker ended, and what became of them."""
    within = f" after {seconds:g} s" if seconds else ""
    parts = [f"{_were(len(jobs))} still running{within}"]
    stuck = [one for one in jobs if one.stuck]
    parts += _ends([one for one in jobs if not one.stuck])
    if stuck:
        where = "in a thread, " if all(one.in_thread for one in stuck) else ""
        again = "fails" if all(one.fails for one in stuck) else "runs again in another worker"
        parts.append(
            f"not stopped: {_named(stuck)}; the code runs on {where}until it ends or this process "
            f"ends, its result is discarded, and the job {again} when this process has ended, at "
            f"the latest after about {LEASE:.0f} s"
        )
    return "; ".join(parts)


def cut_short_text(jobs: Sequence[Unfinished]) -> str:
    """Return a text on the jobs that a worker process could not finish before it ends."""
    threads = sum(one.in_thread and not one.fails for one in jobs)
    note = f" ({threads} in a thread, which ends with its process)" if threads else ""
    began = f"{_were(len(jobs))} still running when the worker had to end"
    return "; ".join([began, *_ends(jobs, note)])


def _ends(jobs: Sequence[Unfinished], note: str = "") -> list[str]:
    """Return which jobs are handed back, with a note on them, and which have failed."""
    back = [one for one in jobs if not one.fails]
    failed = [one for one in jobs if one.fails]
    parts = [f"handed back to the store, to run again: {_named(back)}{note}"] if back else []
    return parts + ([f"failed, as on_crash='fail' says: {_named(failed)}"] if failed else [])


def _named(jobs: Sequence[Unfinished]) -> str:
    more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
    return ", ".join(str(one) for one in jobs[:MOST_NAMED]) + more


def _are(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def _were(count: int) -> str:
    return "1 job was" if count == 1 else f"{count} jobs were"
