"""The main screen: the head, one of three views below it, and the keys at the bottom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Click
from textual.message import Message
from textual.widgets import ContentSwitcher, Input, Static

from poolhand.operate import tables
from poolhand.operate.summary import Part
from poolhand.tui.model import JOBS, POOLS, VIEWS, WORKERS, JobFilter, ViewModel
from poolhand.tui.widgets import Grid, KeyLine, Panel, StatusLine

TITLE = "poolhand"
LEAST_OF_LEFT = 12
TABS = {WORKERS: "Farm", JOBS: "Jobs", POOLS: "Pools"}


class ViewTabs(Static):
    """The tabs of the views, the current one in reverse; a click switches the view."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view

    _shown: Text | None = None

    def show(self, view: str, end: Sequence[Part]) -> None:
        """Show the current view, and `end` at the end of the line."""
        names = [_label(one) for one in VIEWS]
        parts = [
            (name, "bold reverse" if one == view else "")
            for one, name in zip(VIEWS, names, strict=True)
        ]
        text = spread(parts, end, self.size.width)
        if text != self._shown:
            self._shown = text
            self.update(text)

    def on_click(self, event: Click) -> None:
        end = 0
        for view in VIEWS:
            end += len(_label(view))
            if event.x < end:
                self.post_message(self.Chosen(view))
                return


class Head(Vertical):
    """Four lines, and up to two more for an alert."""

    DEFAULT_CSS: ClassVar[str] = """
    Head { height: auto; }
    Head > Static { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    Head > #load { height: 2; padding: 0 1; }
    Head > #alert { height: auto; max-height: 2; padding: 0 1; text-wrap: wrap; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.title = Static(id="title")
        self.tabs = ViewTabs(id="tabs")
        self.load = Static(id="load")
        self.alert = Static(id="alert")
        self._shown: dict[Static, Text] = {}

    def compose(self) -> ComposeResult:
        yield self.title
        yield self.tabs
        yield self.load
        yield self.alert

    def show(self, model: ViewModel, view: str) -> None:
        """Show the model's state, with current times."""
        width = self.size.width
        name: list[Part] = [(f" {TITLE} ", "bold blue"), (" ", "")]
        self._put(self.title, spread([*name, *model.who()], model.state(), width))
        self.tabs.show(view, model.troubles())
        self._put(self.load, Text("\n").join(map(styled, model.load(width - 2))))
        alert = model.alert()
        self.alert.display = bool(alert)
        self._put(self.alert, styled(alert))

    def _put(self, where: Static, text: Text) -> None:
        """Draw a text, unless it is already shown."""
        if self._shown.get(where) != text:
            self._shown[where] = text
            where.update(text)


def styled(parts: Sequence[Part]) -> Text:
    """Return parts as a Text, without markup."""
    return Text.assemble(*parts)


def spread(left: Sequence[Part], right: Sequence[Part], width: int) -> Text:
    """Return a line with a part at each end; the left one is truncated if there is no room."""
    start, end = styled(left), styled(right)
    room = width - end.cell_len - 2
    if room < LEAST_OF_LEFT:
        return start
    start.truncate(room, overflow="ellipsis", pad=True)
    return Text.assemble(start, " ", end, " ")


def _label(view: str) -> str:
    return f" {VIEWS.index(view) + 1} {TABS[view]} "


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
        self.worker_table = Grid(tables.WORKERS, "table-of-workers")
        self.recent = Grid(tables.JOBS, "newest-jobs")
        self.jobs = Grid(tables.JOBS, "table-of-jobs")
        self.found = Panel(self.jobs, "", NO_JOBS)
        self.pools = Grid(tables.POOLS, "table-of-pools")
        self.troubles = {
            view: Grid(tables.TROUBLES, f"troubles-of-{view}") for view in (WORKERS, POOLS)
        }
        self.status = StatusLine()
        self.keys = KeyLine()
        self.switcher = ContentSwitcher(initial=WORKERS)

    def compose(self) -> ComposeResult:
        yield self.head
        with self.switcher:
            with Vertical(id=WORKERS):
                yield Panel(self.worker_table, "Workers", NO_WORKERS, "short")
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
        self.screen.set_focus(
            {WORKERS: self.worker_table, JOBS: self.jobs, POOLS: self.pools}[view]
        )
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

    def show(self, model: ViewModel, now: datetime) -> None:
        """Show the model's state in the current view."""
        running = tables.running_in(model.farms)
        match self.view:
            case "workers":
                self.worker_table.show(tables.worker_rows(model.farms, model.alone, now))
                self.troubles[WORKERS].show(tables.trouble_rows(model.farms, now))
                self.recent.show(tables.job_rows(model.recent, running, model.pools, now))
            case "jobs":
                self.found.says(NO_JOBS if model.choice == ALL else NO_SUCH_JOBS)
                self.jobs.show(tables.job_rows(model.jobs, running, model.pools, now))
                more = " or more" if len(model.jobs) >= model.limit else ""
                text = f"jobs: {model.choice.words} · {len(model.jobs)}{more}"
                self.choice.update(Text(text))
            case _:
                self.pools.show(tables.pool_rows(model.pools))
                self.troubles[POOLS].show(tables.trouble_rows(model.farms, now))

    def show_head(self, model: ViewModel) -> None:
        """Show the head, with current times."""
        self.head.show(model, self.view)
        self.status.hint(model.hint())
