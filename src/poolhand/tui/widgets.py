"""The widgets of the live view: tables, modal pages, the status line and the key line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.coordinate import Coordinate
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from poolhand.operate.format import Column, TableRow, cell, fitting, widths
from poolhand.rules.plain import safe

STYLED = ("state", "at")
NOTE = "note"
EDGE = 1  # columns of the screen for the scrollbar


class Grid(DataTable[Text]):
    """Shows rows; the cursor follows its row when rows move.

    Cells are Text, so their content is never markup.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Grid { height: 1fr; background: transparent; overflow-x: hidden; scrollbar-size-vertical: 1; }
    Grid, Grid:ansi, Grid:focus {
        & > .datatable--header {
            text-style: bold; background: transparent; color: $foreground;
        }
        & > .datatable--cursor {
            text-style: bold; background: transparent; color: $foreground;
        }
    }
    Grid:focus > .datatable--cursor { text-style: reverse; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top"),
        Binding("end", "scroll_bottom"),
    ]

    def __init__(self, columns: Sequence[Column], id: str) -> None:
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")
        self._kinds = columns
        self._shown: dict[int, int] = {}
        self._rows: list[TableRow] = []
        self._widest = [0] * len(columns)

    @property
    def chosen(self) -> str | None:
        """The key of the row that the cursor is on."""
        place = self.cursor_row
        return self._rows[place].key if 0 <= place < len(self._rows) else None

    @property
    def at_end(self) -> bool:
        """Whether the cursor is on the last row."""
        return self.cursor_row >= len(self._rows) - 1

    class Filled(Message):
        """The table got its first rows, or lost its last ones."""

        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

    def on_mount(self) -> None:
        # Rows set before the mount have posted no message.
        self.post_message(self.Filled(len(self._rows)))

    def show(self, rows: Sequence[TableRow]) -> None:
        """Replace all rows by these."""
        if bool(rows) != bool(self._rows):
            self.post_message(self.Filled(len(rows)))
        before, self._rows = self._rows, list(rows)
        # Columns never become narrower, so that changing values do not move the table.
        self._widest = list(map(max, self._widest, widths(self._kinds, rows)))
        places = fitting(self._kinds, self._widest, self.size.width - EDGE)
        if places != self._shown:
            self._fill(before, places)
        elif [row.key for row in before] != [row.key for row in rows]:
            self._fill(before, None)
        else:
            self._amend(before)

    def on_resize(self) -> None:
        self._widest = [0] * len(self._kinds)
        self.show(self._rows)

    def _fill(self, before: Sequence[TableRow], places: dict[int, int] | None) -> None:
        """Rebuild the rows, and the columns, too, if they have changed."""
        cursor, top, x = self.cursor_row, self.scroll_offset.y, self.scroll_offset.x
        key = before[cursor].key if 0 <= cursor < len(before) else None
        self.clear(columns=places is not None)
        if places is not None:
            self._shown = places
            for place, width in places.items():
                column = self._kinds[place]
                self.add_column(cell(column.name, width, column), width=width, key=str(place))
        self.add_rows(self._cells(row) for row in self._rows)
        self._go_back(key, cursor, top, x)

    def _go_back(self, key: str | None, cursor: int, top: int, x: int) -> None:
        """Put the cursor back on its row; on the first row it stays first, with the newest job."""
        keys = [row.key for row in self._rows]
        place = keys.index(key) if key in keys and cursor > 0 else min(cursor, len(keys) - 1)
        self.move_cursor(row=max(0, place), animate=False, scroll=False)
        moved = place - cursor if cursor > 0 else 0
        self.call_after_refresh(self.scroll_to, x, max(0, top + moved), animate=False)

    def _amend(self, before: Sequence[TableRow]) -> None:
        """Update only the cells that have changed."""
        for number, (old, new) in enumerate(zip(before, self._rows, strict=True)):
            if old == new:
                continue
            for x, place in enumerate(self._shown):
                # Compare per cell: ages change all the time, other cells rarely.
                if old.cells[place] != new.cells[place] or old.style != new.style:
                    self.update_cell_at(Coordinate(number, x), self._cell(new, place))

    def _cells(self, row: TableRow) -> list[Text]:
        return [self._cell(row, place) for place in self._shown]

    def _cell(self, row: TableRow, place: int) -> Text:
        column = self._kinds[place]
        text = cell(row.cells[place], self._shown[place], column)
        return Text(text, _style(column, row), no_wrap=True)


def _style(column: Column, row: TableRow) -> str:
    if column.name in STYLED:
        return row.style
    if column.name == NOTE:
        return "red" if row.style == "red" else "dim"
    return ""


class Panel(Vertical):
    """A grid under a title; without rows it shows the text `empty`, or hides if that is empty.

    A `short` panel is as high as its rows need, up to half of the screen.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Panel { height: 1fr; }
    Panel.titled { border-top: solid ansi_bright_black; border-title-style: bold; }
    Panel > Static { padding: 0 1; height: auto; color: $foreground; text-style: dim; }
    Panel.empty { height: auto; }
    Panel.empty > Grid { height: auto; }
    Panel.short { height: auto; max-height: 50%; }
    Panel.short > Grid { height: auto; }
    """

    def __init__(self, grid: Grid, title: str, empty: str, kind: str = "") -> None:
        super().__init__(classes=f"{kind} {'titled' if title else ''}")
        self.border_title = title
        self._grid = grid
        self._empty = Static(Text(empty))
        self._says = empty

    def compose(self) -> ComposeResult:
        yield self._grid
        yield self._empty

    def says(self, text: str) -> None:
        """Set the text that is shown if there are no rows."""
        if text != self._says:
            self._says = text
            self._empty.update(Text(text))

    def on_grid_filled(self, event: Grid.Filled) -> None:
        """Show the text if there are no rows, or hide."""
        event.stop()
        self._empty.display = not event.rows
        self.set_class(not event.rows, "empty")
        self.display = bool(event.rows or self._says)


HELP = (
    "t  1 2 3   next view; farm, jobs, pools",
    "tab        next table of the view",
    "enter      open the selected job, the jobs of a pool, or a worker",
    "escape     back; all jobs again",
    "",
    "+ -        minimum of workers of the selected farm",
    "] [        maximum of workers",
    "s          snapshot of the selected worker or farm: running and recent jobs",
    "x          drain the selected farm: it stops after its running jobs",
    "",
    "/          search jobs by a part of the id or of the task's name",
    "f          jobs of the next state: waiting, running, ended, ...",
    "o          jobs of the next pool only",
    "r          retry the selected dead job",
    "c          cancel the selected job",
    "p          pause or resume the selected pool, or that of the job",
    "",
    "q          quit; a farm of this terminal is stopped gracefully,",
    "           q again stops it at once",
)
Keys = Mapping[str, str]
LAST = {"?": "help", "q": "quit"}
KEYS: Mapping[str, Keys] = {
    "workers": {
        "t": "view",
        "tab": "table",
        "+ -": "min",
        "] [": "max",
        "s": "snapshot",
        "x": "drain",
        "/": "search",
        "enter": "open",
    },
    "jobs": {
        "t": "view",
        "/": "search",
        "f": "state",
        "o": "pool",
        "r": "retry",
        "c": "cancel",
        "p": "pause",
        "enter": "open",
    },
    "pools": {"t": "view", "enter": "jobs of it", "p": "pause or resume", "/": "search"},
    "job": {"escape": "back", "r": "retry", "c": "cancel", "p": "pause its pool"},
}
GAP = 2
SAID_FOR = 20  # refreshes for which the result of an action is shown


class TextPage(ModalScreen[None]):
    """A scrollable text; a key closes it."""

    DEFAULT_CSS: ClassVar[str] = """
    TextPage { align: center middle; }
    TextPage > VerticalScroll { width: auto; max-width: 96%; height: auto; max-height: 96%;
        border: round $primary; border-title-style: bold; padding: 0 1; background: $background;
        scrollbar-size-vertical: 1; }
    TextPage Static { width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "back")
    ]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._text = Text("\n".join(lines))

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = self._title
            page.border_subtitle = "escape: back"
            yield Static(self._text)


class Question(ModalScreen[bool]):
    """A question; only `y` means yes."""

    DEFAULT_CSS: ClassVar[str] = """
    Question { align: center middle; }
    Question > Vertical { width: auto; max-width: 90%; height: auto; border: round $warning;
        padding: 0 2; background: $background; }
    Question Static { width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._text = Text.assemble(
            question, "\n\n", ("y", "bold"), ": yes   ", ("n", "bold"), ": no"
        )

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._text)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class StatusLine(Static):
    """The result of the last action, in one line, or up to three."""

    DEFAULT_CSS: ClassVar[str] = """
    StatusLine { height: auto; min-height: 1; max-height: 3; padding: 0 1; }
    StatusLine.hint { text-wrap: nowrap; text-overflow: ellipsis; }
    """

    said = hinted = ""
    looks = 0

    def say(self, text: str) -> None:
        """Show a message for a while."""
        self.said, self.looks = safe(text), 0
        self.set_class(False, "hint")
        self.update(Text(self.said, "bold"))

    def hint(self, text: str) -> None:
        """Show a hint while there is no message; called at every refresh."""
        self.looks += 1
        if self.said and self.looks <= SAID_FOR:
            return
        if self.said or text != self.hinted:
            self.said, self.hinted = "", text
            self.set_class(True, "hint")
            self.update(Text(text, "yellow"))


class KeyLine(Static):
    """One line with the keys most useful in the current view; other keys work, too."""

    DEFAULT_CSS: ClassVar[str] = "KeyLine { height: 1; padding: 0 1; text-wrap: nowrap; }"

    def __init__(self, view: str = "workers") -> None:
        super().__init__()
        self._view = view

    def show(self, view: str) -> None:
        """Show the keys of a view."""
        self._view = view
        self.update(key_line(KEYS[view], self.size.width - 2))

    def on_resize(self) -> None:
        self.show(self._view)


def key_line(keys: Keys, width: int) -> Text:
    """Return as many keys as fit into a width, always with those for help and quit."""
    room = width - sum(len(key) + 1 + len(does) + GAP for key, does in LAST.items()) + GAP
    line = Text()
    for key, does in keys.items():
        room -= len(key) + 1 + len(does) + GAP
        if room < 0:
            break
        line.append(key, "bold").append(f" {does}{' ' * GAP}", "dim")
    for key, does in LAST.items():
        line.append(key, "bold").append(f" {does}{' ' * GAP}", "dim")
    line.rstrip()
    return line
