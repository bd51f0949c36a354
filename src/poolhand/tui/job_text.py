"""Text about one job: its facts, its error and its events; and about a worker's history."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from poolhand.farm.records import FinishedJob, Snapshot
from poolhand.operate.payload import PayloadView, payload_lines
from poolhand.operate.views import JobView
from poolhand.rules.job import Fault, Status
from poolhand.rules.streams import JobEvent, StreamKind
from poolhand.rules.values.escape import safe
from poolhand.tui.format import NOTHING, lasting
from poolhand.tui.rows import RunningRow, took

LONGEST_LINE = 2_000
PAYLOAD = ("arguments", "result")


class Fact(Struct, frozen=True):
    """A line about a job: its label, text and style."""

    label: str
    text: str
    style: str = ""


def facts(
    job: JobView, runs: RunningRow | None, now: datetime, payload: PayloadView | None = None
) -> list[Fact]:
    """Return a job as lines: its state and reason, its attempts and its error."""
    found = [
        Fact("task", f"{safe(job.name) or NOTHING} in pool {safe(job.pool)}"),
        *_of(job),
        Fact("submitted", _submitted(job, now)),
        Fact("attempts", _attempts(job, now)),
    ]
    if runs is not None and job.status is Status.RUNNING:
        mark = f", {safe(runs.job.mark)}" if runs.job.mark else ""
        found.append(Fact("worker", f"{safe(runs.worker)}{mark}"))
    if job.why is not None and not job.status.terminal:
        waits = job.status.waiting
        found.append(Fact("why it waits" if waits else "now", safe(job.why), "cyan" * waits))
    if job.run_at is not None and job.status.waiting:
        found.append(Fact("due", _moment(job.run_at)))
    if job.rejection_reason is not None:
        found.append(Fact("rejected", safe(job.rejection_reason), "red"))
    if payload is not None:
        advice = f"`poolhand jobs show {safe(job.id)} --payload --json` shows all"
        found += map(_payload, payload_lines(payload, advice))
    elif job.result_bytes is not None:
        found.append(Fact("result", f"{job.result_bytes:,} bytes"))
    if job.dead:
        found.append(Fact("dead letter", "it failed for good; r runs it again"))
    # A job that waits for its retry has the error of its last attempt.
    label = "error" if job.status.terminal else "last error"
    lines = fault_lines(job.error)
    found += [Fact(label, line, "red") for line in lines[:1]]
    return found + [Fact("", line, "dim") for line in lines[1:]]


def _payload(line: str) -> Fact:
    """Return a line of the payload as a fact labelled `arguments` or `result`."""
    name, colon, text = line.partition(": ")
    return Fact(name, text) if colon and name in PAYLOAD else Fact("", line, "dim")


def _submitted(job: JobView, now: datetime) -> str:
    ago = lasting((now - job.submitted_at).total_seconds())
    return f"{_moment(job.submitted_at)}, {ago} ago, by {safe(job.submitted_by)}"


def _attempts(job: JobView, now: datetime) -> str:
    crashes = f" ({job.crashes} crashed)" if job.crashes else ""
    waited = "" if job.waited is None else f" · waited {lasting(job.waited)}"
    ran = took(job, now)
    return f"{job.attempts}{crashes}{waited}" + ("" if ran is None else f" · took {lasting(ran)}")


def _of(job: JobView) -> list[Fact]:
    names = {"key": job.key, "session": job.session, "tenant": job.tenant, "user": job.user}
    return [Fact(name, safe(value)) for name, value in names.items() if value]


def fault_lines(fault: Fault | None) -> list[str]:
    """Return an error with its traceback."""
    if fault is None:
        return []
    lines = fault.traceback.splitlines()
    return [f"{safe(fault.type)}: {safe(fault.message)}", *(f"  {safe(line)}" for line in lines)]


def event_lines(event: JobEvent) -> list[str]:
    """Return an event of a job as lines, each cut to LONGEST_LINE."""
    start = f"{event.at:%H:%M:%S} {event.kind.value:<9} "
    return [
        start + line if number == 0 else " " * len(start) + line
        for number, line in enumerate(_said(event))
    ]


def _said(event: JobEvent) -> list[str]:
    if event.kind is StreamKind.RESTARTED:
        return [f"attempt {event.attempt} begins"]
    match event.data:
        case str(text):
            pass
        case {"stream": str(stream), "text": str(text)}:
            level = event.data.get("level")
            text = f"{stream}: {text}" if level is None else f"{level}: {text}"
        case {"message": str(text), **details}:
            text = " ".join([text, *(f"{name}={_json(value)}" for name, value in details.items())])
        case data:
            text = _json(data)
    return [safe(line[:LONGEST_LINE]) for line in text.split("\n")] or [""]


def snapshot_lines(snapshot: Snapshot) -> list[str]:
    """Return the running and recently finished jobs of a farm or a worker as lines."""
    whose = f"worker {safe(snapshot.worker)}" if snapshot.worker else f"farm {safe(snapshot.farm)}"
    lines = [f"{whose}: {len(snapshot.running)} running, {len(snapshot.finished)} lately ended", ""]
    for job in snapshot.running:
        mark = f"  {safe(job.mark)}" if job.mark else ""
        since = _time(job.since)
        lines.append(f"running since {since}  {safe(job.id)}  {safe(job.name)}{mark}")
    for ended in snapshot.finished:
        lines += _finished(ended)
    return lines


def _finished(job: FinishedJob) -> list[str]:
    line = (
        f"{job.status} {_time(job.at)}  {safe(job.id)}  {safe(job.name)}  "
        f"attempt {job.attempts}  took {lasting(job.ran)}"
    )
    return [line, *(f"    {text}" for text in fault_lines(job.error))]


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _time(at: datetime) -> str:
    return f"{at:%H:%M:%S}Z"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
