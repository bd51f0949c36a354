"""Job requests: what a store is sent for a call, and the errors of those that it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.context import REGISTERED, running, snapshot
from poolhand.contract import JobRequest, Refusal
from poolhand.durable.calls.call_record import (
    CALL,
    CONTEXT,
    CallRecord,
    bound,
    bound_to,
    read_call_record,
    record_of,
    write_call_record,
)
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.errors import (
    Conflict,
    NoFreeSlot,
    PoolFull,
    PoolhandError,
    SessionBusy,
    SessionForbidden,
)
from poolhand.pool.options import Options, SubmitTerms
from poolhand.rules.job import Ids, Job, Status, full_id
from poolhand.rules.queue.gates import OnBusy
from poolhand.rules.queue.idempotency import key_conflict
from poolhand.rules.validation import shown
from poolhand.runtime import Identity, Runtime

# The fields of a dead job that the job which runs it again has, too.
KEPT = (
    *("name", "pool", "pool_id", "key", "priority"),
    *("session", "tenant", "user", "idempotency_key"),
)


class TaskCall(Struct, frozen=True):
    """A call to be stored: of a task with its arguments, or of a closure held by process `home`.

    `digest` is that of the arguments of a closure.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    code: TaskCode | None = None
    home: Identity | None = None
    digest: bytes | None = None


class JobRequests:
    """Makes job requests from calls and the options they are submitted with; from any thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._begin()

    def _begin(self) -> None:
        runtime = self._runtime
        offset = runtime.wall().timestamp() - runtime.monotonic()
        self._ids = Ids(runtime.salt(), offset)
        self._lock = Lock()
        self._process = os.getpid()

    def make(self, call: TaskCall, terms: SubmitTerms) -> JobRequest:
        (id,) = self._next_ids(1)
        job = self._draft(call, terms, id)
        record = _call_record(call, job, terms.options)
        if job.idempotency_key is not None:
            record = replace(record, digest=_digest(call))
        on_busy = OnBusy(terms.options.on_busy)
        request = JobRequest(job, write_call_record(record), *_how(terms.options))
        return request if on_busy is OnBusy.ENQUEUE else replace(request, on_busy=on_busy)

    def make_all(
        self, call: TaskCall, calls: Sequence[tuple[Any, ...]], terms: SubmitTerms
    ) -> list[JobRequest]:
        """Return requests for calls that differ in their arguments only."""
        options, how, requests = terms.options, _how(terms.options), list[JobRequest]()
        draft, code, record = self._draft(call, terms, ""), call.code, None
        for id, args in zip(self._next_ids(len(calls)), calls, strict=True):
            job = replace(draft, id=id)
            if record is None or code is None or code.signs:
                record = _call_record(replace(call, args=args), job, options)
            else:
                # Only the payload differs: nothing is signed, and the rest is the same for all.
                record = replace(record, payload=code.pack(args, {}))
            requests.append(JobRequest(job, write_call_record(record), *how))
        return requests

    def _draft(self, call: TaskCall, terms: SubmitTerms, id: str) -> Job:
        inside = running.get()
        return replace(
            terms.draft,
            id=id,
            name=call.name,
            submitted_at=self._runtime.wall(),
            submitted_by="user" if inside is None else inside.submitter,
            run_at=terms.options.run_at,
        )

    def again(self, job: Job, record: bytes, by: str) -> JobRequest:
        """Return the request that runs a dead job again, as a new job."""
        same: dict[str, Any] = {name: getattr(job, name) for name in KEPT}
        same |= {"submitted_at": self._runtime.wall(), "submitted_by": by, "continues": job.run}
        anew = Job(id=self._next_ids(1)[0], status=Status.QUEUED, **same)
        expires = None
        if job.expires_at is not None:
            expires = (job.expires_at - job.submitted_at).total_seconds()
        return JobRequest(anew, record, expires=expires, rerun_failed=True, revives=job.id)

    def copy(
        self, request: JobRequest, by: str, key: str | None = None, code: TaskCode | None = None
    ) -> JobRequest:
        """Return a request for another job that makes the same call.

        With a `code` that signs, the packed call is signed for that job; no user code runs.
        """
        id = self._next_ids(1)[0]
        now = self._runtime.wall()
        job = replace(request.job, id=id, submitted_at=now, submitted_by=by, idempotency_key=key)
        record = (
            request.call_record
            if code is None or not code.signs
            else _signed_for(job, request, code)
        )
        return replace(request, job=job, call_record=record)

    def _next_ids(self, count: int) -> list[str]:
        if self._process != os.getpid():
            # A fork would continue counting with the salt of its parent, and may inherit a held
            # lock.
            self._begin()
        with self._lock:
            now = self._runtime.monotonic()
            return [self._next_id(now) for _ in range(count)]

    def _next_id(self, now: float) -> str:
        # Take the number first: that may change the head.
        number = self._ids.next(now)
        return full_id(self._ids.head, number)


def _how(options: Options) -> tuple[float | None, float | None, bool]:
    return options.delay, options.expires, options.rerun_failed


def _call_record(call: TaskCall, job: Job, options: Options) -> CallRecord:
    """Return the call record with its context values; signatures are valid for this job only."""
    code = call.code
    if code is not None and code.signs:
        return _signed(call, code, job, options)
    # A closure has the whole context of its submitter.
    if code is None:
        return _plain(call, options, b"")
    record = _plain(call, options, code.pack(call.args, call.kwargs))
    brought = snapshot() if REGISTERED else None
    return replace(record, context=code.pack_context(brought)) if brought else record


def _digest(call: TaskCall) -> bytes | None:
    code = call.code
    return call.digest if code is None else code.digest(call.args, call.kwargs)


def _signed(call: TaskCall, code: TaskCode, job: Job, options: Options) -> CallRecord:
    plain = _plain(call, options, b"")
    to = bound_to(job, plain, job.run)
    payload = code.pack(call.args, call.kwargs, bound(CALL, to))
    brought = snapshot()
    context = code.pack_context(brought, bound(CONTEXT, to)) if brought else None
    return replace(plain, payload=payload, context=context, run=job.run)


def _signed_for(job: Job, request: JobRequest, code: TaskCode) -> bytes:
    """Return the call record of a request with call and context signed for another job."""
    record = read_call_record(request.call_record, request.job.id)
    to = bound_to(job, record, job.run)
    payload = code.sign(record.payload, bound(CALL, to))
    context = None if record.context is None else code.sign(record.context, bound(CONTEXT, to))
    return write_call_record(replace(record, payload=payload, context=context, run=job.run))


def _plain(call: TaskCall, options: Options, payload: bytes) -> CallRecord:
    return CallRecord(
        call.name,
        payload,
        record_of(options.retry),
        options.timeout,
        options.soft_timeout,
        options.run_in,
        options.on_crash == "rerun",
        call.home is not None,
        call.home,
        version=None if call.code is None else call.code.version,
        source=None if call.code is None else call.code.source,
    )


def refused(refusal: Refusal, name: str = "") -> PoolhandError:
    """Return the error for the submitter of a refused batch, of calls of `name`."""
    if refusal.reason == "not_dead":
        return Conflict(
            f"the job to run again in pool {refusal.pool!r} is not a dead letter: it was run again "
            "before, or did not fail"
        )
    if refusal.reason == "user":
        return forbidden()
    if refusal.reason == "busy":
        return _busy(refusal)
    if refusal.reason == "key" and refusal.holder is not None:
        job = refusal.holder
        return key_conflict(name, job.idempotency_key or "", job.id, job.name)
    return _full(refusal)


def _busy(refusal: Refusal) -> SessionBusy:
    job = refusal.holder
    session, turn = "the session", "a turn"
    if job is not None:
        session, turn = f"the session {shown(job.session)}", f"the turn {job.id} ({job.status})"
    return SessionBusy(
        f"{session} has {turn} already in pool {refusal.pool!r}; submit when it is over, or choose "
        "another on_busy"
    )


def forbidden() -> SessionForbidden:
    # Without names: the owner of the session must not leak to other users.
    return SessionForbidden(
        "the session belongs to another user than this one, or to none: it belongs to the user of "
        "its first turn; give that one as user=, or use another session"
    )


def waited(pool: str, seconds: float | None, policy: str) -> PoolFull:
    return PoolFull(
        f"pool {pool!r} stayed full for {seconds} s ({policy}); try again later, enlarge "
        "the pool, or wait longer (wait_timeout)",
        policy=policy,
    )


def _full(refusal: Refusal) -> PoolhandError:
    kind: Callable[..., PoolhandError] = NoFreeSlot if refusal.reason == "no_slot" else PoolFull
    return kind(
        f"pool {refusal.pool!r} is full ({refusal.running} running, {refusal.waiting} waiting, "
        f"{refusal.policy}); try again later or enlarge the pool",
        policy=refusal.policy,
    )
