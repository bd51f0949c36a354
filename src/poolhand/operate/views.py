"""Views: what a person sees of jobs, pools and the audit log; frozen, made from what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from poolhand.contract import LogEntry, PoolRow, Stored
from poolhand.rules.audit import FARM_BOUNDS, FARM_DRAIN, FARM_RESTART, RERUN, RESIZE
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Fault, Status
from poolhand.rules.outcome import is_self_cancelled
from poolhand.rules.values.plain import PlainView


class JobView(PlainView, frozen=True, kw_only=True):
    """A job as an operator sees it; `reason` and `why` say what it waits for, if it does,
    and `waits_for` the cause that is neither a time nor a slot.

    `result_bytes` is the size of its result: what is in it belongs to the code that asked for it.
    """

    id: str
    pool: str
    name: str
    status: Status
    reason: str | None
    why: str | None
    waits_for: str | None
    parked: bool
    dead: bool
    cancel_wished: bool
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
        """What is worth a glance: why it waits, what it raised, why it was turned away."""
        if self.why is not None:
            return self.why
        if self.error is not None and is_self_cancelled(self.status, self.error):
            return self.error.message
        if self.error is not None and self.status is Status.FAILED:
            return f"{self.error.type}: {self.error.message}"
        return self.rejection_reason or ""


class JobsView(PlainView, frozen=True):
    """A page of jobs, newest first; `after` goes on behind it, None at the end."""

    jobs: tuple[JobView, ...]
    after: int | None

    def __iter__(self) -> Iterator[JobView]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


class PoolView(PlainView, frozen=True):
    """A pool: its rules, what an operator set, and who is where; `slots` is the cap in force."""

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
    parked: int


class AuditView(PlainView, frozen=True):
    """A line of the audit log; `record` is all that was written, `text` what matters of it."""

    number: int
    at: datetime
    kind: str
    pool: str | None
    job: str | None
    by: str | None
    text: str
    record: Any


class ControlResult(PlainView, frozen=True):
    """What came of an act on one job: a word for programs and a sentence for people."""

    id: str
    done: bool
    reason: str
    text: str
    new_id: str | None = None


class Summary(PlainView, frozen=True):
    """What came of an act on many jobs; `answers` are those of the jobs it was not done to."""

    done: int
    not_done: int
    answers: tuple[ControlResult, ...] = ()


def job_view(stored: Stored, why: Explanation | None = None) -> JobView:
    """Return what is to be seen of a job."""
    job = stored.job
    same = {name: getattr(job, name) for name in _SAME}
    return JobView(
        **same,
        reason=None if why is None else why.reason,
        why=None if why is None else why.text,
        parked=stored.parked,
        dead=stored.dead,
        cancel_wished=stored.cancel_wished,
        result_bytes=len(job.result) if isinstance(job.result, bytes) else None,
    )


def pool_view(row: PoolRow) -> PoolView:
    """Return what is to be seen of a pool."""
    spec = row.spec
    return PoolView(
        spec.name,
        spec.id,
        row.slots,
        spec.slots,
        row.resized is not None,
        row.paused,
        str(spec.queue),
        str(spec.backpressure),
        spec.max_per_key,
        row.running,
        row.queued,
        row.blocked,
        row.scheduled,
        row.parked,
    )


def audit_view(line: LogEntry) -> AuditView:
    """Return what is to be seen of an audit line, of kinds yet unknown too."""
    try:
        record = msgspec.json.decode(line.body)
    except msgspec.DecodeError:
        record = None
    facts = record if isinstance(record, dict) else {}
    return AuditView(
        line.number,
        line.at,
        line.kind,
        facts.get("pool") or None,
        facts.get("task_id"),
        facts.get("by") or facts.get("submitted_by"),
        _told(line.kind, facts),
        record,
    )


_SAME = tuple(
    name
    for name in JobView.__struct_fields__
    if name not in ("reason", "why", "parked", "dead", "cancel_wished", "result_bytes")
)


def _told(kind: str, facts: dict[str, Any]) -> str:
    """Say in a few words what a record holds beside whom it is about."""
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
