"""The screen: tables on a terminal, plain lines in a pipe, JSON for programs.

What comes out of a store was written by others: it is shown as text, never as markup, and what
would steer a terminal is spelled out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from poolhand.operate.retry import Progress

NOTHING = "-"
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
STYLED = ("status", "state", "result")


def safe(text: str) -> str:
    """Return a text in which every character can be seen and none does anything."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def shown(value: object) -> str:
    """Return a value as people read it."""
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


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows: as a table on a terminal, in columns of plain text elsewhere.

    The first column names its row and is never cut.
    """
    cells = [[shown(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _console(sys.stdout).print(_rich_table(columns, cells))
        return
    heads = [column.upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in (heads, *cells):
        line("  ".join(map(str.ljust, row, widths)).rstrip())


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Write names and values, one pair to a line; those that are None are left out."""
    known = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        line(f"{name.ljust(width)}  {shown(value)}")


def line(text: str) -> None:
    """Write one line to the output."""
    sys.stdout.write(f"{text}\n")


def aside(text: str) -> None:
    """Write one line beside the output, for the person alone."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def as_json(value: Any) -> None:
    """Write a value as JSON, and nothing else."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    # Every character that could steer a terminal stands inside a string, where it may be escaped.
    line("".join(c if c == "\n" or c.isprintable() else _in_json(c) for c in text))


@contextmanager
def progress(what: str, clock: Callable[[], float]) -> Iterator[Callable[[Progress], None]]:
    """Show how far something is: a bar on a terminal, a line now and then elsewhere."""
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


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, column in enumerate(columns):
        # The text goes whole onto as many lines as it takes; only a name stays on one.
        grid.add_column(column, no_wrap=place == 0, overflow="fold")
    for row in cells:
        grid.add_row(
            *(
                Text(cell, style=STYLES.get(cell, "") if column in STYLED else "")
                for column, cell in zip(columns, row, strict=True)
            )
        )
    return grid


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    return Console(file=file, markup=False, highlight=False, emoji=False)


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def _in_json(character: str) -> str:
    number = ord(character)
    if number <= 0xFFFF:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
