"""The main screen: the head, one of three views below it, and the keys at the bottom."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import ContentSwitcher, Input, Static

from poolhand.tui import rows
from poolhand.tui.filter import JobFilter
from poolhand.tui.grid import Grid, Panel
from poolhand.tui.head import Head
from poolhand.tui.model import JOBS, POOLS, VIEWS, WORKERS, ViewModel
from poolhand.tui.pages import KeyLine, StatusLine

ALL = JobFilter()
NO_WORKERS = "no worker processes yet"
NO_JOBS = "no jobs yet: submit one from your code with `await task.submit(…)`"
NO_SUCH_JOBS = "no such jobs: escape shows all"
NO_POOLS = "no pools yet: they appear when an app first submits or works"


class Board(Vertical):
    """Shows the model's state; holds the selection."""

    DEFAULT_CSS: ClassVar[str] = """
    Board ContentSwitcher { height: 1fr; }
    Board ContentSwitcher > Vertical { height: 1fr; }
    Board #choice { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    Board #search { height: 1; border: none; padding: 0 1; background: transparent; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.head = Head()
        self.choice = Static(id="choice")
        # Keys typed before the focus are in the field: selected, the next key would replace them.
        hint = "a part of an id or of a task's name"
        self.search = Input(id="search", placeholder=hint, select_on_focus=False)
        self.search.display = False
        self.crew = Grid(rows.WORKERS, "table-of-workers")
        self.recent = Grid(rows.JOBS, "newest-jobs")
        self.jobs = Grid(rows.JOBS, "table-of-jobs")
        self.found = Panel(self.jobs, "", NO_JOBS)
        self.pools = Grid(rows.POOLS, "table-of-pools")
        self.troubles = {
            view: Grid(rows.TROUBLES, f"troubles-of-{view}") for view in (WORKERS, POOLS)
        }
        self.status = StatusLine()
        self.keys = KeyLine()
        self.switcher = ContentSwitcher(initial=WORKERS)

    def compose(self) -> ComposeResult:
        yield self.head
        with self.switcher:
            with Vertical(id=WORKERS):
                yield Panel(self.crew, "Workers", NO_WORKERS, "short")
                yield Panel(self.troubles[WORKERS], "Troubles", "", "short")
                yield Panel(self.recent, "Newest jobs", NO_JOBS)
            with Vertical(id=JOBS):
                yield self.choice
                yield self.search
                yield self.found
            with Vertical(id=POOLS):
                yield Panel(self.pools, "Pools", NO_POOLS)
                yield Panel(self.troubles[POOLS], "Troubles", "", "short")
        yield self.status
        yield self.keys

    @property
    def view(self) -> str:
        """The name of the current view."""
        return self.switcher.current or WORKERS

    @property
    def next_view(self) -> str:
        """The name of the next view."""
        return VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]

    @property
    def job(self) -> str | None:
        """The id of the selected job; in the workers view, only if the job table has the focus."""
        if self.view == JOBS:
            return self.jobs.chosen
        return self.recent.chosen if self.screen.focused is self.recent else None

    def go_to(self, view: str) -> None:
        """Show another view."""
        self.switcher.current = view
        # Takes effect at once, unlike focus(): keys typed ahead go to the new view.
        self.screen.set_focus({WORKERS: self.crew, JOBS: self.jobs, POOLS: self.pools}[view])
        self.keys.show(view)

    def open_search(self) -> None:
        """Open the search field."""
        self.go_to(JOBS)
        self.search.display = True
        self.screen.set_focus(self.search)

    def close_search(self) -> None:
        """Close and clear the search field."""
        self.search.display = False
        self.search.value = ""
        self.go_to(self.view)

    def show(self, sight: ViewModel, now: datetime) -> None:
        """Show the model's state in the current view."""
        running = rows.running_in(sight.farms)
        match self.view:
            case "workers":
                self.crew.show(rows.worker_rows(sight.farms, sight.alone, now))
                self.troubles[WORKERS].show(rows.trouble_rows(sight.farms))
                self.recent.show(rows.job_rows(sight.recent, running, sight.pools, now))
            case "jobs":
                self.found.says(NO_JOBS if sight.choice == ALL else NO_SUCH_JOBS)
                self.jobs.show(rows.job_rows(sight.jobs, running, sight.pools, now))
                more = " or more" if len(sight.jobs) >= sight.limit else ""
                text = f"jobs: {sight.choice.words} · {len(sight.jobs)}{more}"
                self.choice.update(Text(text))
            case _:
                self.pools.show(rows.pool_rows(sight.pools))
                self.troubles[POOLS].show(rows.trouble_rows(sight.farms))

    def show_head(self, sight: ViewModel) -> None:
        """Show the head, with current times."""
        self.head.show(sight, self.view)
        self.status.hint(sight.hint())
