"""Values, durations, counts and table columns as text: the formats that every face shares.

Stored values are untrusted: control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from poolhand.farm.records import FarmState
from poolhand.rules.job import Fault, Status
from poolhand.rules.plain import safe

NOTHING = "-"
BARS = "▁▂▃▄▅▆▇█"
MINUTE, HOUR, DAY = 60, 3600, 86400
COARSE = 10 * MINUTE
LEAST_OF_LAST = 22
ID_END = 3
STEP = 10  # seconds
GAP = 2  # space between two columns

STYLES: Mapping[str, str] = {
    Status.RUNNING: "green",
    Status.QUEUED: "cyan",
    Status.BLOCKED: "cyan",
    Status.SCHEDULED: "blue",
    Status.COMPLETED: "dim",
    Status.FAILED: "red",
    Status.REJECTED: "red",
    Status.EXPIRED: "yellow",
    Status.CANCELLED: "yellow",
    "paused": "yellow",
    "ok": "green",
    "warn": "yellow",
    "WRONG": "bold red",
}
FARM_STYLES = {
    FarmState.STARTING: "yellow",
    FarmState.RUNNING: "bold green",
    FarmState.STOPPING: "bold yellow",
}


def text_of(value: object) -> str:
    """Return a value as text for people."""
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case datetime():
            return moment(value)
        case float():
            return f"{value:.3f} s"
        case _:
            return safe(str(value))


def many(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def jobs_wait(count: int) -> str:
    """Return how many jobs wait, as the beginning of a sentence."""
    return f"{many(count, 'job')} {'waits' if count == 1 else 'wait'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def fault_text(fault: Fault | None) -> str | None:
    """Return the type and message of an error."""
    return None if fault is None else f"{fault.type}: {fault.message}"


def moment(at: datetime) -> str:
    """Return a time in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def lasting(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return NOTHING
    whole = round(max(0.0, seconds))
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02} min"
    return f"{whole // DAY} d {whole % DAY // HOUR:02} h"


def short_duration(seconds: float | None) -> str:
    """Return a duration that fits into a column: 0.4s, 28s, 2m05s, 28m, 3h12m, 4d06h."""
    if seconds is None:
        return NOTHING
    whole = round(max(0.0, seconds))
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        # From ten minutes on seconds do not matter, and would cause a redraw every second.
        seconds_too = whole < COARSE
        return f"{whole // MINUTE}m" + (f"{whole % MINUTE:02}s" if seconds_too else "")
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02}h"


def age(since: datetime, now: datetime) -> str:
    """Return an age; after a minute in steps of ten seconds.

    All rows then change at the same time, so an idle table is redrawn only six times a minute.
    """
    seconds = (now - since).total_seconds()
    if seconds >= MINUTE:
        seconds -= now.second % STEP + now.microsecond / 1e6
    return short_duration(seconds)


def size(octets: int) -> str:
    """Return a memory size; 0 means unknown."""
    if octets <= 0:
        return NOTHING
    megabytes = octets / (1 << 20)
    return f"{megabytes:,.0f} MB" if megabytes < 10_000 else f"{megabytes / 1024:,.1f} GB"


def bars(values: Sequence[float]) -> str:
    """Return values as bars, scaled to the highest; any value above 0 is visible."""
    most = max(values, default=0.0)
    if most <= 0:
        return BARS[0] * len(values)
    last = len(BARS) - 1
    return "".join(BARS[max(int(v > 0), round(v / most * last))] for v in values)


class Column(Struct, frozen=True):
    """A column of at most `most` characters.

    On a narrow screen columns shrink to `short` first, then columns with the highest `spare` are
    dropped (0: never), then columns shrink to `least`. The last column is never dropped. A long id
    loses its middle, as its beginning is a time and its end a counter; a long `path` loses its
    beginning. Numbers are aligned `right`.
    """

    name: str
    most: int = 12
    least: int = 4
    spare: int = 0
    is_id: bool = False
    right: bool = False
    path: bool = False
    short: int = 0


class TableRow(Struct, frozen=True):
    """A row with a key that is unique in its table; `style` is that of its state."""

    key: str
    cells: tuple[str, ...]
    style: str = ""


def widths(columns: Sequence[Column], rows: Sequence[TableRow]) -> list[int]:
    """Return the width that each column needs for its cells."""
    return [
        min(column.most, max([len(column.name), *(len(row.cells[place]) for row in rows)]))
        for place, column in enumerate(columns)
    ]


def fitting(columns: Sequence[Column], wanted: Sequence[int], width: int) -> dict[int, int]:
    """Return the indexes of the columns that fit into that width, each with its width.

    Long columns shrink first, then spare ones are dropped, then the widest shrink further. The last
    column gets the rest.
    """
    wide = dict(enumerate(wanted))
    last = len(columns) - 1
    least = min(wide[last], LEAST_OF_LAST)
    short = {place: min(room, columns[place].short or room) for place, room in enumerate(wanted)}
    for place in sorted(wide, key=lambda p: -columns[p].spare):
        if columns[place].spare == 0 or _room(short, last, width) >= least:
            break
        del wide[place], short[place]
    for floor in (short, {place: columns[place].least for place in wide}):
        while _room(wide, last, width) < least:
            may_give = [p for p in wide if p != last and wide[p] > floor[p]]
            if not may_give:
                break
            wide[max(may_give, key=lambda p: wide[p])] -= 1
    return wide | {last: max(columns[last].least, min(wide[last], _room(wide, last, width)))}


def _room(wide: Mapping[int, int], last: int, width: int) -> int:
    """Return the width that is left for the last column."""
    return width - GAP - sum(room + GAP for place, room in wide.items() if place != last)


def cell(text: str, width: int, column: Column) -> str:
    """Return the text of a cell, shortened or padded to its column."""
    if len(text) <= width:
        return text.rjust(width) if column.right else text
    if column.path:
        return f"…{text[1 - width :]}" if width > 1 else "…"
    end = text[-ID_END:] if column.is_id else ""
    return f"{text[: width - 1 - len(end)]}…{end}"
