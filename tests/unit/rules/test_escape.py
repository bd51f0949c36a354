"""Text of jobs, escaped line by line."""

from __future__ import annotations

from poolhand.rules.plain import LONGEST_LINE, complete_lines, safe


def test_control_characters_are_escaped() -> None:
    assert safe("plain, ünïcode") == "plain, ünïcode"
    assert safe("\x1b[2J\r\n\x07\u202e") == r"\x1b[2J\r\n\x07\u202e"


def test_lines_are_returned_when_they_are_complete() -> None:
    assert complete_lines("", "") == ([], "")
    assert complete_lines("", "no end") == ([], "no end")
    assert complete_lines("no end", " yet\none\r\n\ntwo") == (["no end yet", "one", ""], "two")


def test_long_lines_are_split_at_the_limit() -> None:
    lines, held = complete_lines("", "x" * (2 * LONGEST_LINE + 5))
    assert [len(line) for line in lines] == [LONGEST_LINE, LONGEST_LINE]
    assert held == "xxxxx"
    lines, held = complete_lines("", "x" * (LONGEST_LINE + 1) + "\n")
    assert [len(line) for line in lines] == [LONGEST_LINE, 1]
    assert held == ""
