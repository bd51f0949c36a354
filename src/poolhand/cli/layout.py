"""Column layout of a table on a terminal: which columns are shown, and how wide each is.

The first column identifies its row, the last may be long: both are folded, never cut. The task name
is shown on every terminal of 80 columns or more: other columns are dropped before it, and a name
that is too long is shortened to its function.
"""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "-"
GAP = 2
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
