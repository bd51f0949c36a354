"""The screen of one job: its state and reason, its error, and its events while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar

import msgspec
from msgspec import Struct
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import RichLog, Static

from poolhand.errors import JobLost, PoolhandError
from poolhand.farm.records import FinishedJob, Snapshot
from poolhand.operate.actions import Operator
from poolhand.operate.format import NOTHING, STYLES, lasting, moment
from poolhand.operate.tables import RunningRow, job_state, took
from poolhand.operate.views import JobView, PayloadView, payload_lines
from poolhand.rules.job import Fault, Status
from poolhand.rules.plain import safe
from poolhand.rules.streams import JobEvent, StreamKind
from poolhand.tui.board import TITLE, spread
from poolhand.tui.widgets import KeyLine, StatusLine

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
        found.append(Fact("due", moment(job.run_at)))
    if job.rejection_reason is not None:
        found.append(Fact("rejected", safe(job.rejection_reason), "red"))
    if payload is not None:
        advice = f"`poolhand jobs show {safe(job.id)} --payload --json` shows all"
        found += map(_payload, payload_lines(payload, advice))
    elif job.result_bytes is not None:
        found.append(Fact("result", f"{job.result_bytes:,} bytes"))
    if job.dead:
        found.append(Fact("dead letter", "it failed for good; press r to retry it"))
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
    return f"{moment(job.submitted_at)}, {ago} ago, by {safe(job.submitted_by)}"


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
    lines = [
        f"{whose}: {len(snapshot.running)} running, {len(snapshot.finished)} recently ended",
        "",
    ]
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


def _time(at: datetime) -> str:
    return f"{at:%H:%M:%S}Z"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


MOST_LINES = 5_000
LABEL = 14  # width of the labels
TIME, KIND = 8, 18  # end positions of an event's time and of its kind
KINDS = {
    StreamKind.CHUNK: "green",
    StreamKind.PROGRESS: "cyan",
    StreamKind.STATE: "bold",
    StreamKind.RESTARTED: "yellow",
}
SILENT = "nothing yet: what the job prints, logs and emits is shown here"


class JobScreen(Screen[None]):
    """Follows a job until the user goes back."""

    DEFAULT_CSS: ClassVar[str] = """
    JobScreen > #title { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    JobScreen > VerticalScroll { height: auto; max-height: 60%; padding: 1 1 0 1;
        scrollbar-size-vertical: 1; }
    JobScreen > #silent { height: 1fr; border-top: solid ansi_bright_black;
        border-title-style: bold; padding: 0 1; text-style: dim; }
    JobScreen > RichLog { height: 1fr; border-top: solid ansi_bright_black;
        border-title-style: bold; background: transparent; padding: 0 1;
        scrollbar-size-vertical: 1; overflow: hidden auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "back")]

    def __init__(
        self,
        operator: Operator,
        job_id: str,
        where: Callable[[str], RunningRow | None],
        now: Callable[[], datetime],
        every: float,
    ) -> None:
        super().__init__()
        self.job_id = job_id
        self.job: JobView | None = None
        self._operator = operator
        self._where = where
        self._now = now
        self._every = every
        self._title = Static(id="title")
        self._facts = Static()
        self._log = RichLog(max_lines=MOST_LINES, wrap=True, markup=False, min_width=20)
        self._silent = Static(Text(SILENT), id="silent")
        self._log.border_title = self._silent.border_title = "Output"
        self._log.display = False

    def compose(self) -> ComposeResult:
        yield self._title
        with VerticalScroll():
            yield self._facts
        yield self._silent
        yield self._log
        yield StatusLine()
        yield KeyLine("job")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._watch())
        self.run_worker(self._follow())

    async def _watch(self) -> None:
        """Refresh the job's facts periodically."""
        while True:
            found = await self._look_up()
            self._show_title()
            self._facts.update(_table(found))
            await asyncio.sleep(self._every)

    def _show_title(self) -> None:
        name = [(f" {TITLE} ", "bold blue"), (" job ", ""), (safe(self.job_id), "bold")]
        state = [] if self.job is None else [(f"● {job_state(self.job)}", _style(self.job))]
        self._title.update(spread(name, state, self.size.width))

    async def _look_up(self) -> Sequence[Fact]:
        try:
            job = await self._operator.job(self.job_id)
            payload = await self._operator.payload(self.job_id)
        except PoolhandError as error:
            known = [] if self.job is None else facts(self.job, None, self._now())
            text = f"the store does not answer, retrying: {safe(str(error))}"
            return [Fact("STORE DOWN", text, "bold red"), *known]
        if job is None:
            return [Fact("state", f"job {safe(self.job_id)} is no longer stored", "yellow")]
        self.job = job
        return facts(job, self._where(job.id), self._now(), payload)

    async def _follow(self) -> None:
        """Show the job's events until it has ended; retry while the store is unavailable."""
        after = 0
        while True:
            try:
                async for event in self._operator.follow(self.job_id, after):
                    after = event.number
                    self._write(event)
                return
            except JobLost:
                return
            except PoolhandError:
                await asyncio.sleep(self._every)

    def _write(self, event: JobEvent) -> None:
        if not self._log.display:
            self._log.display, self._silent.display = True, False
            self._log.focus()
        text = Text("\n".join(event_lines(event)))
        text.stylize("dim", 0, TIME)
        text.stylize(KINDS.get(event.kind, ""), TIME, KIND)
        self._log.write(text)


def _table(found: Sequence[Fact]) -> Table:
    """Return facts in two columns; long texts are folded."""
    table = Table.grid()
    table.add_column(width=LABEL)
    table.add_column(overflow="fold")
    for fact in found:
        table.add_row(Text(fact.label, "dim"), Text(fact.text, fact.style))
    return table


def _style(job: JobView) -> str:
    return f"bold {STYLES.get(job.status, '')}".replace(" dim", "")
