"""Lanes: first in, first out."""

from __future__ import annotations

from poolhand.rules.queue.entry import Entry, WaitingLine
from tests.unit.rules.floor import names, new_entry


def line_of(*seqs: int) -> tuple[WaitingLine[Entry], dict[int, Entry]]:
    line: WaitingLine[Entry] = WaitingLine()
    entries = {seq: new_entry(str(seq), seq=seq) for seq in seqs}
    for entry in entries.values():
        line.append(entry)
    return line, entries


def backwards(line: WaitingLine[Entry]) -> list[str]:
    found, one = [], line.last
    while one is not None:
        found.append(one.job.id)
        one = one.before
    return found


def test_a_line_keeps_the_order_in_which_entries_joined() -> None:
    line, _ = line_of(3, 1, 2)
    assert names(line) == ["3", "1", "2"]
    assert backwards(line) == ["2", "1", "3"]
    assert line.size == 3


def test_an_entry_can_leave_from_the_front_the_middle_and_the_back() -> None:
    line, entries = line_of(1, 2, 3, 4)
    for seq, left in ((2, "134"), (1, "34"), (4, "3"), (3, "")):
        line.remove(entries[seq])
        assert "".join(names(line)) == left
        assert "".join(backwards(line)) == left[::-1]
        assert line.size == len(left)


def test_an_entry_that_left_is_in_no_place_and_may_join_again() -> None:
    line, entries = line_of(1, 2)
    line.remove(entries[1])
    assert entries[1].place is None
    line.append(entries[1])
    assert entries[1].place is line
    assert names(line) == ["2", "1"]


def test_an_entry_can_be_put_first_in_the_middle_and_last() -> None:
    line, entries = line_of(2, 5)
    line.insert_after(new_entry("3"), entries[2])
    line.insert_after(new_entry("1"), None)
    line.insert_after(new_entry("9"), entries[5])
    assert names(line) == ["1", "2", "3", "5", "9"]
    assert backwards(line) == ["9", "5", "3", "2", "1"]
    assert line.size == 5
    assert all(entry.place is line for entry in line)


def test_an_entry_can_be_put_into_an_empty_line() -> None:
    line, _ = line_of()
    line.insert_after(new_entry("1"), None)
    assert names(line) == backwards(line) == ["1"]


def test_entries_can_be_removed_while_a_lane_is_iterated() -> None:
    line, entries = line_of(1, 2, 3)
    seen = []
    for entry in line:
        seen.append(entry.job.id)
        line.remove(entry)
    assert seen == ["1", "2", "3"]
    assert line.first is None
    assert line.last is None
    assert entries[2].after is None
