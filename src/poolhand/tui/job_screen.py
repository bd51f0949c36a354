"""The screen of one job: its state and reason, its error, and its events while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import RichLog, Static

from poolhand.errors import JobLost, PoolhandError
from poolhand.operate.actions import Operator
from poolhand.operate.views import JobView
from poolhand.rules.streams import JobEvent, StreamKind
from poolhand.rules.values.escape import safe
from poolhand.tui.head import TITLE, spread
from poolhand.tui.job_text import Fact, event_lines, facts
from poolhand.tui.pages import KeyLine, StatusLine
from poolhand.tui.rows import STYLES, RunningRow, job_state

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
            found = await self._told()
            self._show_title()
            self._facts.update(_table(found))
            await asyncio.sleep(self._every)

    def _show_title(self) -> None:
        name = [(f" {TITLE} ", "bold blue"), (" job ", ""), (safe(self.job_id), "bold")]
        state = [] if self.job is None else [(f"● {job_state(self.job)}", _style(self.job))]
        self._title.update(spread(name, state, self.size.width))

    async def _told(self) -> Sequence[Fact]:
        try:
            job = await self._operator.job(self.job_id)
            payload = await self._operator.payload(self.job_id)
        except PoolhandError as error:
            known = [] if self.job is None else facts(self.job, None, self._now())
            text = f"the store does not answer, asked again: {safe(str(error))}"
            return [Fact("STORE AWAY", text, "bold red"), *known]
        if job is None:
            return [Fact("state", f"job {safe(self.job_id)} is not kept any more", "yellow")]
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
