"""The head of every view: title, tabs, load, and alerts about the store or the farm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from poolhand.tui.model import JOBS, POOLS, VIEWS, WORKERS, ViewModel
from poolhand.tui.summary import Part

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

    def show(self, sight: ViewModel, view: str) -> None:
        """Show the model's state, with current times."""
        width = self.size.width
        name: list[Part] = [(f" {TITLE} ", "bold blue"), (" ", "")]
        self._put(self.title, spread([*name, *sight.who()], sight.state(), width))
        self.tabs.show(view, _troubles(sight.troubles))
        self._put(self.load, Text("\n").join(map(styled, sight.load(width - 2))))
        alert = sight.alert()
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


def _troubles(count: int) -> list[Part]:
    if not count:
        return [("no trouble", "dim")]
    return [(f"{count} trouble{'' if count == 1 else 's'}", "bold red")]
