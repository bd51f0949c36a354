"""One job: where it is and why, what it raised, and what it tells while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import RichLog, Static

from poolhand.errors import JobLost, PoolhandError
from poolhand.operate.actions import Operator
from poolhand.operate.payload import payload_lines
from poolhand.operate.showing import safe
from poolhand.operate.views import JobView
from poolhand.tui.pages import KEYS, KeyLine, StatusLine
from poolhand.tui.rows import Running
from poolhand.tui.told import event_lines, facts

MOST_LINES = 5_000


class JobScreen(Screen[None]):
    """Follows a job until a person goes back."""

    DEFAULT_CSS: ClassVar[str] = """
    JobScreen > VerticalScroll { height: auto; max-height: 50%; }
    JobScreen > RichLog { height: 1fr; border-top: solid $primary; background: transparent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "back")]

    def __init__(
        self,
        operator: Operator,
        job_id: str,
        where: Callable[[str], Running | None],
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
        self._facts = Static()
        self._log = RichLog(max_lines=MOST_LINES, wrap=True, markup=False, min_width=20)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self._facts
        yield self._log
        yield StatusLine()
        yield KeyLine(KEYS["job"], markup=False)

    def on_mount(self) -> None:
        self._log.focus()
        self.run_worker(self._watch())
        self.run_worker(self._follow())

    async def _watch(self) -> None:
        """Show how the job is, again and again."""
        while True:
            self._facts.update(Text("\n".join(await self._told())))
            await asyncio.sleep(self._every)

    async def _told(self) -> list[str]:
        try:
            job = await self._operator.job(self.job_id)
            payload = await self._operator.payload(self.job_id)
        except PoolhandError as error:
            known = [] if self.job is None else facts(self.job, None, self._now())
            return [f"the store does not answer, asked again: {safe(str(error))}", *known]
        if job is None:
            return [f"job {safe(self.job_id)} is not kept any more"]
        self.job = job
        return facts(job, self._where(job.id), self._now()) + payload_lines(payload)

    async def _follow(self) -> None:
        """Show what the job tells, until it is over; a store that is away is asked again."""
        after = 0
        while True:
            try:
                async for event in self._operator.follow(self.job_id, after):
                    after = event.number
                    self._log.write(Text("\n".join(event_lines(event))))
                return
            except JobLost:
                return
            except PoolhandError:
                await asyncio.sleep(self._every)
