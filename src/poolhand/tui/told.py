"""What is told of one job: facts about it, its error, what it said; and of a worker's history."""

from __future__ import annotations

from datetime import datetime

import msgspec

from poolhand.farm.roster import FinishedJob, Snapshot
from poolhand.operate.showing import safe
from poolhand.operate.views import JobView
from poolhand.rules.job import Fault, Status
from poolhand.rules.streams import JobEvent, Kind
from poolhand.tui.rows import Running, job_state, took
from poolhand.tui.words import lasting

LONGEST_LINE = 2_000


def facts(job: JobView, runs: Running | None, now: datetime) -> list[str]:
    """Return a job in lines: where it is, why, how often it was tried, what it raised."""
    lines = [
        f"job {safe(job.id)}  {job_state(job)}",
        f"task {safe(job.name) or '-'}  pool {safe(job.pool)}" + _of(job),
        f"submitted {_moment(job.submitted_at)} by {safe(job.submitted_by)}  "
        f"waited {lasting(job.waited)}  took {lasting(took(job, now))}  {_tries(job)}",
    ]
    if runs is not None and job.status is Status.RUNNING:
        mark = f", {safe(runs.job.mark)}" if runs.job.mark else ""
        lines.append(f"runs in worker {safe(runs.worker)}{mark}")
    if job.why is not None and not job.status.terminal:
        lines.append(f"why: {safe(job.why)}")
    if job.run_at is not None and job.status.waiting:
        lines.append(f"due at {_moment(job.run_at)}")
    if job.rejection_reason is not None:
        lines.append(f"rejected: {safe(job.rejection_reason)}")
    if job.result_bytes is not None:
        lines.append(f"result of {job.result_bytes:,} bytes")
    if job.dead:
        lines.append("a dead letter: r runs it again")
    return lines + fault_lines(job.error)


def _of(job: JobView) -> str:
    names = {"key": job.key, "session": job.session, "tenant": job.tenant, "user": job.user}
    return "".join(f"  {name} {safe(value)}" for name, value in names.items() if value)


def _tries(job: JobView) -> str:
    crashes = f", {job.crashes} crashed" if job.crashes else ""
    return f"attempts {job.attempts}{crashes}"


def fault_lines(fault: Fault | None) -> list[str]:
    """Return an error with its traceback."""
    if fault is None:
        return []
    lines = fault.traceback.splitlines()
    return [
        f"error {safe(fault.type)}: {safe(fault.message)}",
        *(f"    {safe(line)}" for line in lines),
    ]


def event_lines(event: JobEvent) -> list[str]:
    """Return something that a job told, in lines that each fit on a screen or two."""
    start = f"{event.at:%H:%M:%S} {event.kind.value:<9} "
    return [
        start + line if number == 0 else " " * len(start) + line
        for number, line in enumerate(_said(event))
    ]


def _said(event: JobEvent) -> list[str]:
    if event.kind is Kind.RESTARTED:
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
    """Return what a farm or a worker runs, and what it has lately finished."""
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
    return [line, *(f"    {told}" for told in fault_lines(job.error))]


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _time(at: datetime) -> str:
    return f"{at:%H:%M:%S}Z"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
