"""Output of the commands: tables on a terminal, plain lines in a pipe, JSON for programs.

Stored values are untrusted: they are shown as text, never as markup, and control characters are
escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from poolhand.cli.layout import GAP, NAMES, NOTHING, STATES, fitting, short_name
from poolhand.cli.streams import SafeStream
from poolhand.rules.values.escape import safe as safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from poolhand.operate.retry import Progress

PLAIN_LINES_EVERY = 1.0

STYLES = {
    "running": "green",
    "completed": "dim",
    "failed": "red",
    "rejected": "red",
    "expired": "yellow",
    "cancelled": "yellow",
    "paused": "yellow",
    "ok": "green",
    "warn": "yellow",
    "WRONG": "bold red",
}


def shown(value: object) -> str:
    """Return a value as text for people."""
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case float():
            return f"{value:.3f} s"
        case _:
            return safe(str(value))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], spare: Sequence[str] = ()
) -> None:
    """Write rows: as a table on a terminal, as columns of plain text elsewhere.

    The first column identifies its row, the last one may be long; both are shown whole. Empty
    columns are left out. On a narrow terminal the `spare` columns are dropped in that order; a task
    name is shortened before it is dropped.
    """
    cells = [[shown(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        console = _console(sys.stdout)
        console.print(_rich_table(columns, cells, spare, console.width))
        return
    heads = [column.upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in (heads, *cells):
        line("  ".join(map(str.ljust, row, widths)).rstrip())


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Write names and values, one pair per line, without those that are None."""
    known = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        line(f"{name.ljust(width)}  {shown(value)}")


def line(text: str) -> None:
    """Write one line to stdout."""
    sys.stdout.write(f"{text}\n")


def begin_again() -> None:
    """Clear the terminal, so that the next output replaces the last."""
    if sys.stdout.isatty():
        _console(sys.stdout).clear()


def is_lost() -> bool:
    """Flush stdout; return whether its reader has closed it."""
    sys.stdout.flush()
    return isinstance(sys.stdout, SafeStream) and sys.stdout.lost is not None


def aside(text: str) -> None:
    """Write one line to stderr, for people only."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def as_json(value: Any) -> None:
    """Write a value as indented JSON."""
    _write_json(msgspec.json.format(msgspec.json.encode(value), indent=2))


def json_line(value: Any) -> None:
    """Write a value as one line of JSON, and flush."""
    _write_json(msgspec.json.encode(value))
    sys.stdout.flush()


def _write_json(data: bytes) -> None:
    # Every control character is inside a string, where JSON allows an escape.
    line("".join(c if c == "\n" or c.isprintable() else _in_json(c) for c in data.decode()))


@contextmanager
def progress(what: str, clock: Callable[[], float]) -> Iterator[Callable[[Progress], None]]:
    """Show progress on stderr: a bar on a terminal, a line every second elsewhere."""
    if sys.stderr.isatty():
        with _bar(what) as tell:
            yield tell
        return
    next_at = clock()

    def tell_plainly(now: Progress) -> None:
        nonlocal next_at
        if clock() >= next_at:
            next_at = clock() + PLAIN_LINES_EVERY
            aside(f"{what}: {now.done + now.not_done}/{now.total}, {now.not_done} not done")

    yield tell_plainly


@contextmanager
def _bar(what: str) -> Iterator[Callable[[Progress], None]]:
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=_console(sys.stderr)) as bar:
        task = bar.add_task(what, total=None)

        def tell(now: Progress) -> None:
            bar.update(task, total=now.total, completed=now.done + now.not_done)

        yield tell


def _rich_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    places = fitting(columns, cells, spare, width)
    for place, room in places.items():
        folds = place in (min(places), max(places))
        overflow: Literal["fold", "ellipsis"] = "fold" if folds else "ellipsis"
        # Set the widths: rich may compute a table wider than the terminal.
        grid.add_column(columns[place], width=room, no_wrap=not folds, overflow=overflow)
    for row in cells:
        grid.add_row(
            *(
                Text(_cell(columns[place], row[place], room), _style(columns[place], row[place]))
                for place, room in places.items()
            )
        )
    return grid


def _cell(column: str, text: str, room: int) -> str:
    return short_name(text, room) if column in NAMES else text


def _style(column: str, cell: str) -> str:
    return STYLES.get(cell, "") if column in STATES else ""


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    return Console(file=file, markup=False, highlight=False, emoji=False)


def _in_json(character: str) -> str:
    number = ord(character)
    if number <= 0xFFFF:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
