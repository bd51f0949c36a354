"""Output of the commands: tables on a terminal, plain lines in a pipe, JSON for programs.

Stored values are untrusted: they are shown as text, never as markup, and control characters are
escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from poolhand.operate.format import GAP, NOTHING, STYLES, text_of
from poolhand.rules.plain import safe as safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from poolhand.operate.bulk import Progress

LEAST = 4
LEAST_OF_LAST = 24
LEAST_BESIDE_A_NAME = 16  # of the last column, if a name would not fit otherwise
SHORTEST_FUNCTION, LONGEST_FUNCTION = 12, 24  # bounds for the shortened form of a name
USUAL_WIDTH = 80
NAMES = ("name", "task")
STATES = ("status", "state", "result")
CUT = "…"

Cells = Sequence[Sequence[str]]


def fitting(
    columns: Sequence[str], cells: Cells, spare: Sequence[str], width: int
) -> dict[int, int]:
    """Return the indexes of the columns to show, each with its width."""
    wanted = [max(map(_length, column)) for column in zip(columns, *cells, strict=True)]
    places = [
        place
        for place in range(len(columns))
        if place == 0 or not cells or any(row[place] != NOTHING for row in cells)
    ]
    name = next((place for place in places[1:-1] if columns[place] in NAMES), None)
    if name is None or width < USUAL_WIDTH:
        return _shared(_without(spare, columns, places, wanted, width), wanted, width)
    function = max((_length(function_of(row[name])) for row in cells), default=0)
    least = max(LEAST, min(wanted[name], function + len(CUT), LONGEST_FUNCTION))
    smallest = [least if place == name else room for place, room in enumerate(wanted)]
    # Drop spare columns first, then all others between the first and the last but the name.
    others = [one for one in columns[1:-1] if one not in (*spare, *STATES)]
    order = [one for one in (*spare, *reversed(others)) if one not in NAMES]
    return _around(name, _without(order, columns, places, smallest, width), wanted, smallest, width)


def short_name(name: str, room: int) -> str:
    """Shorten a task name to that width: its function, and as much before it as fits."""
    if _length(name) <= room:
        return name
    parts = name.split(".")
    for first in range(1, len(parts)):
        short = CUT + ".".join(parts[first:])
        if _length(short) <= room:
            return short
    function = parts[-1]
    while _length(function) > room and len(function) > 1:
        middle = len(function) // 2
        before, behind = function[: middle - 1], function[middle + 1 :]
        function = before.removesuffix(CUT) + CUT + behind.removeprefix(CUT)
    return function


def function_of(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def _without(
    spare: Sequence[str],
    columns: Sequence[str],
    places: Sequence[int],
    rooms: Sequence[int],
    width: int,
) -> list[int]:
    """Drop columns in the given order until the rest fits; return the remaining indexes."""
    left = list(places)
    for word in spare:
        last = min(LEAST_OF_LAST, rooms[left[-1]])
        if sum(rooms[place] + GAP for place in left[:-1]) + last <= width:
            break
        left = [place for place in left if columns[place] != word]
    return left


def _around(
    name: int, places: Sequence[int], wanted: Sequence[int], smallest: Sequence[int], width: int
) -> dict[int, int]:
    """Give the name the width that the others leave, and at least room for its functions."""
    *before, last = places
    first = before[0]
    states = sum(wanted[place] + GAP for place in before if place not in (first, name))
    # Users copy ids: cut a long name in its middle before folding the id.
    shortest = min(smallest[name], SHORTEST_FUNCTION)
    room = width - states - shortest - GAP - LEAST_BESIDE_A_NAME - GAP
    rooms = {place: wanted[place] for place in before}
    rooms[first] = max(LEAST, min(wanted[first], room))
    others = sum(rooms[place] + GAP for place in before if place != name) + GAP
    easy = width - others - min(LEAST_OF_LAST, wanted[last])
    tight = width - others - min(LEAST_BESIDE_A_NAME, wanted[last])
    rooms[name] = max(LEAST, min(wanted[name], max(easy, min(smallest[name], tight))))
    left = width - others - rooms[name]
    return rooms | {last: max(LEAST, min(wanted[last], left))}


def _shared(places: Sequence[int], wanted: Sequence[int], width: int) -> dict[int, int]:
    """Share the width among the middle columns."""
    first, *middle, last = places if len(places) > 1 else (*places, *places)
    kept = min(LEAST_OF_LAST, wanted[last])
    rooms = {first: max(LEAST, min(wanted[first], width - kept - GAP))}
    left = width - rooms[first] - GAP - kept
    most = max(LEAST, left // max(1, len(middle)) - GAP)
    fits = sum(wanted[place] + GAP for place in middle) <= left
    rooms |= {place: wanted[place] if fits else min(wanted[place], most) for place in middle}
    left = width - sum(room + GAP for place, room in rooms.items() if place != last)
    return rooms | {last: max(LEAST, min(wanted[last], left))}


def _length(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


PLAIN_LINES_EVERY = 1.0


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], spare: Sequence[str] = ()
) -> None:
    """Write rows: as a table on a terminal, as columns of plain text elsewhere.

    The first column identifies its row, the last one may be long; both are shown whole. Empty
    columns are left out. On a narrow terminal the `spare` columns are dropped in that order; a task
    name is shortened before it is dropped.
    """
    cells = [[text_of(value) for value in row] for row in rows]
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
        line(f"{name.ljust(width)}  {text_of(value)}")


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
    return getattr(sys.stdout, "lost", None) is not None


def to_stderr(text: str) -> None:
    """Write one line to stderr, for people only."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def warn(text: str) -> None:
    """Write a line of ours to stderr; the text may hold stored values."""
    to_stderr(f"poolhand: {safe(text)}")


def end_page(after: object, found: bool, nothing: str) -> None:
    """Write to stderr how to get the next page, or that nothing was found."""
    if after is not None:
        to_stderr(f"there are more: --after {safe(str(after))}")
    elif not found:
        to_stderr(nothing)


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
        with _bar(what) as report:
            yield report
        return
    next_at = clock()

    def report_plainly(now: Progress) -> None:
        nonlocal next_at
        if clock() >= next_at:
            next_at = clock() + PLAIN_LINES_EVERY
            to_stderr(f"{what}: {now.done + now.not_done}/{now.total}, {now.not_done} not done")

    yield report_plainly


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

        def report(now: Progress) -> None:
            bar.update(task, total=now.total, completed=now.done + now.not_done)

        yield report


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
