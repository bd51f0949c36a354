"""The board: the head, and below it one of three views."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import ContentSwitcher, Input, Static

from poolhand.tui import rows
from poolhand.tui.grid import Grid
from poolhand.tui.pages import KeyLine, StatusLine
from poolhand.tui.sight import JOBS, POOLS, VIEWS, WORKERS, Sight


class Board(Vertical):
    """Shows what was seen; knows what is selected."""

    DEFAULT_CSS: ClassVar[str] = """
    Board ContentSwitcher { height: 1fr; }
    Board #head { height: 4; text-wrap: nowrap; text-overflow: ellipsis; }
    Board #choice { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    Board #search { height: 1; border: none; padding: 0; background: transparent; }
    Board #troubles { max-height: 50%; border-top: solid $primary; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.head = Static(id="head")
        self.choice = Static(id="choice")
        # What is typed before it has the focus is not selected, or it would be written over.
        hint = "a part of an id or of a task's name"
        self.search = Input(id="search", placeholder=hint, select_on_focus=False)
        self.search.display = False
        self.crew = Grid(rows.WORKERS, WORKERS)
        self.jobs = Grid(rows.JOBS, "table-of-jobs")
        self.pools = Grid(rows.POOLS, "table-of-pools")
        self.troubles = Grid(rows.TROUBLES, "troubles")
        self.keys = KeyLine()
        self.switcher = ContentSwitcher(initial=WORKERS)

    def compose(self) -> ComposeResult:
        yield self.head
        with self.switcher:
            yield self.crew
            with Vertical(id=JOBS):
                yield self.choice
                yield self.search
                yield self.jobs
            with Vertical(id=POOLS):
                yield self.pools
                yield self.troubles
        yield StatusLine()
        yield self.keys

    @property
    def view(self) -> str:
        """The name of the view that is shown."""
        return self.switcher.current or WORKERS

    @property
    def next_view(self) -> str:
        """The name of the view that comes after it."""
        return VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]

    def go_to(self, view: str) -> None:
        """Show another view."""
        self.switcher.current = view
        # At once, unlike focus(): keys that were typed ahead go to what is shown from now on.
        self.screen.set_focus({WORKERS: self.crew, JOBS: self.jobs, POOLS: self.pools}[view])
        self.keys.show(view)

    def open_search(self) -> None:
        """Let a person write what to search for."""
        self.go_to(JOBS)
        self.search.display = True
        self.screen.set_focus(self.search)

    def close_search(self) -> None:
        """Forget what was searched for."""
        self.search.display = False
        self.search.value = ""
        self.go_to(self.view)

    def show(self, sight: Sight, now: datetime) -> None:
        """Show what was seen."""
        match self.view:
            case "workers":
                self.crew.show(rows.worker_rows(sight.farms, sight.alone, now))
            case "jobs":
                self.jobs.show(rows.job_rows(sight.jobs, rows.running_in(sight.farms), now))
                more = " or more" if len(sight.jobs) >= sight.limit else ""
                text = f"jobs: {sight.choice.words} · {len(sight.jobs)}{more}"
                self.choice.update(Text(text))
            case _:
                self.pools.show(rows.pool_rows(sight.pools))
                self.troubles.show(rows.trouble_rows(sight.farms))

    def show_head(self, sight: Sight) -> None:
        """Show the head, with times as of now."""
        text = Text("\n".join(sight.head(self.size.width)))
        text.highlight_regex(r"(?m)^(STORE|TROUBLE).*", "red")
        self.head.update(text)
