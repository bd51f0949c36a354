"""A table widget whose rows are replaced at every refresh while the user moves in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable, Static

from poolhand.tui.rows import Column, TableRow, cell, fitting, widths

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
