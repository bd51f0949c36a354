"""Views of jobs, pools, payloads and the audit log for operators, built from stored records."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from poolhand.contract import LogEntry, PoolRow, Store, Stored
from poolhand.durable.calls.call_record import read_call_record, unpack_returned
from poolhand.errors import PoolhandError
from poolhand.rules.audit import FARM_BOUNDS, FARM_DRAIN, FARM_RESTART, RERUN, RESIZE
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.outcome import is_self_cancelled
from poolhand.rules.plain import PlainView, safe
from poolhand.wire.payload import read_without_keys


class JobView(PlainView, frozen=True, kw_only=True):
    """A job as an operator sees it.

    `reason` and `why` say what a waiting job waits for; `waits_for` is its cause, if that is
    neither a time nor a slot. `submitter_blocked`: its submitter waits until the full
    pool has room. `result_bytes` is the size of its result; the value itself is for the submitting
    code only.
    """

    id: str
    pool: str
    name: str
    status: Status
    reason: str | None
    why: str | None
    waits_for: str | None
    submitter_blocked: bool
    dead: bool
    cancel_requested: bool
    attempts: int
    crashes: int
    priority: int
    key: str
    session: str | None
    tenant: str | None
    user: str | None
    idempotency_key: str | None
    submitted_by: str
    submitted_at: datetime
    run_at: datetime | None
    expires_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    waited: float | None
    ran: float | None
    error: Fault | None
    rejection_reason: str | None
    rejection_policy: str | None
    result_bytes: int | None

    @property
    def note(self) -> str:
        """A short note: why the job waits, its error, or why it was rejected."""
        if self.why is not None:
            return self.why
        if self.error is not None and is_self_cancelled(self.status, self.error):
            return self.error.message
        if self.error is not None and self.status is Status.FAILED:
            return f"{self.error.type}: {self.error.message}"
        return self.rejection_reason or ""


class JobsView(PlainView, frozen=True):
    """A page of jobs, newest first; `after` is the next cursor, None at the end."""

    jobs: tuple[JobView, ...]
    after: int | None

    def __iter__(self) -> Iterator[JobView]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


class PoolView(PlainView, frozen=True):
    """A pool: its rules, operator settings and job counts; `slots` is the cap in force."""

    name: str
    id: str
    slots: int | None
    declared_slots: int | None
    resized: bool
    paused: bool
    strategy: str
    policy: str
    max_per_key: int | None
    running: int
    queued: int
    blocked: int
    scheduled: int
    blocked_submitters: int


class AuditView(PlainView, frozen=True):
    """A line of the audit log; `record` is the whole record, `text` a short form of it."""

    number: int
    at: datetime
    kind: str
    pool: str | None
    job: str | None
    by: str | None
    text: str
    record: Any


class ControlResult(PlainView, frozen=True):
    """The result of an operation on one job: `reason` for programs, `text` for people."""

    id: str
    done: bool
    reason: str
    text: str
    new_id: str | None = None


class Summary(PlainView, frozen=True):
    """The result of an operation on many jobs; `answers` covers those it was not done to."""

    done: int
    not_done: int
    answers: tuple[ControlResult, ...] = ()


def job_view(stored: Stored, why: Explanation | None = None) -> JobView:
    """Return the view of a job."""
    job = stored.job
    same = {name: getattr(job, name) for name in _SAME}
    return JobView(
        **same,
        reason=None if why is None else why.reason,
        why=None if why is None else why.text,
        submitter_blocked=stored.submitter_blocked,
        dead=stored.dead,
        cancel_requested=stored.cancel_requested,
        result_bytes=len(job.result) if isinstance(job.result, bytes) else None,
    )


def pool_view(row: PoolRow) -> PoolView:
    """Return the view of a pool."""
    spec = row.spec
    slots = row.slots, spec.slots, row.resized is not None
    rules = str(spec.queue), str(spec.backpressure), spec.max_per_key
    counts = row.running, row.queued, row.blocked, row.scheduled, row.blocked_submitters
    return PoolView(spec.name, spec.id, *slots, row.paused, *rules, *counts)


def audit_view(line: LogEntry) -> AuditView:
    """Return the view of an audit line, also of a kind that this version does not know."""
    try:
        record = msgspec.json.decode(line.body)
    except msgspec.DecodeError:
        record = None
    facts = record if isinstance(record, dict) else {}
    by = facts.get("by") or facts.get("submitted_by")
    of = (facts.get("pool") or None, facts.get("task_id"), by, _detail(line.kind, facts))
    return AuditView(line.number, line.at, line.kind, *of, record)


_SAME = tuple(
    name
    for name in JobView.__struct_fields__
    if name
    not in ("reason", "why", "submitter_blocked", "dead", "cancel_requested", "result_bytes")
)


def _detail(kind: str, facts: dict[str, Any]) -> str:
    """Return the details of an audit record in a few words."""
    match facts:
        case {"detail": slots} if kind == RESIZE:
            return f"{slots} slots" if slots else "as declared"
        case {"detail": new_id} if kind == RERUN:
            return f"as {new_id}"
        case {"detail": str(id)} if kind in (FARM_DRAIN, FARM_RESTART):
            return f"worker {id}" if "." in id.rpartition("-")[2] else f"farm {id}"
        case {"detail": str(bounds)} if kind == FARM_BOUNDS:
            return _bounds(bounds)
        case {"detail": detail}:
            return str(detail)
        case {"replacement_task_id": other, "reason": reason, "policy": policy}:
            return f"{reason} ({policy})" + ("" if other is None else f", for {other}")
        case {"slot_index": slot, "queued_for_ms": waited, "attempt": attempt}:
            return f"attempt {attempt} in slot {slot} after {waited} ms"
        case {"status": status, "error": error, "attempt": attempt}:
            return f"{status}, attempt {attempt}" + ("" if error is None else f": {error}")
        case {"priority": priority, "key": key}:
            return f"priority {priority}" + (f", key {key}" if key else "")
        case _:
            return ""


def _bounds(detail: str) -> str:
    farm, _, numbers = detail.rpartition(" ")
    least, _, most = numbers.partition("-")
    words = [f"at least {least}"] if least else []
    words += [f"at most {most}"] if most else []
    return f"farm {farm}: {', '.join(words)} workers"


LONGEST_SHOWN = 4_000  # characters of a value in text output
_CLOSURE = "a closure: its arguments exist only in the process that submitted it"


class PayloadView(Struct, frozen=True):
    """The arguments of a job, by parameter name, and its result.

    A value that cannot be decoded here is None, and its note says why.
    """

    id: str
    task: str
    arguments: dict[str, Any] | None
    arguments_note: str | None
    has_result: bool
    result: Any
    result_note: str | None


async def payload_of(store: Store, id: str) -> PayloadView | None:
    """Return the arguments and the result of a job; None if there is no such job."""
    (stored,) = await store.get([id], calls=True)
    if stored is None or stored.call_record is None:
        return None
    return payload_view(stored.job, stored.call_record)


def payload_view(job: Job, record: bytes) -> PayloadView:
    """Return the view of a job's stored call record and result."""
    arguments, note, is_closure = _arguments(record, job.id)
    value, result_note = _result(job, is_closure)
    has_result = job.result is not None
    return PayloadView(job.id, job.name, arguments, note, has_result, value, result_note)


def payload_lines(view: PayloadView | None, advice: str) -> list[str]:
    """Return a payload as lines of text: long values cut, control characters escaped.

    The `advice` says how to see all of a value that is cut.
    """
    if view is None:
        return []
    lines = _lines("arguments", view.arguments, view.arguments_note, advice)
    if view.has_result:
        lines += _lines("result", view.result, view.result_note, advice)
    return lines


def _lines(name: str, value: Any, note: str | None, advice: str) -> list[str]:
    if note is not None:
        return [f"{name}: {safe(note)}"]
    text = msgspec.json.encode(value).decode()
    if len(text) <= LONGEST_SHOWN:
        return [f"{name}: {safe(text)}"]
    cut = f"{len(text) - LONGEST_SHOWN:,} of {len(text):,} characters are left out"
    return [f"{name}: {safe(text[:LONGEST_SHOWN])}…", f"({cut}; {advice})"]


def _arguments(data: bytes, job_id: str) -> tuple[dict[str, Any] | None, str | None, bool]:
    """Return the arguments of a call, or a note why not; and whether it is a closure."""
    try:
        record = read_call_record(data, job_id)
    except PoolhandError as error:
        return None, str(error), False
    if record.closure:
        return None, _CLOSURE, True
    call, note = read_without_keys(record.payload)
    match call:
        case [_, list(), dict(arguments)]:
            return arguments, None, False
        case _:
            return None, note or "not a call that this version of poolhand knows", False


def _result(job: Job, is_closure: bool) -> tuple[Any, str | None]:
    if not isinstance(job.result, bytes):
        return job.result, None
    if not is_closure:
        return read_without_keys(job.result)
    try:
        return unpack_returned(job), None
    except PoolhandError as error:
        return None, str(error)
