"""Text that others wrote, as it may be shown: every face stands on these functions."""

from __future__ import annotations

LONGEST_LINE = 16 * 1024


def safe(text: str) -> str:
    """Return a text in which every character can be seen and none does anything."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def indented(text: str, indent: str) -> str:
    """Return lines of text as they may follow a line of a log: escaped, each behind an indent."""
    return "".join(f"\n{indent}{safe(line)}" for line in text.split("\n"))


def complete_lines(held: str, text: str, longest: int = LONGEST_LINE) -> tuple[list[str], str]:
    """Return the lines that a text completes, behind what was held back, and what is held now.

    Neither is ever longer than `longest` characters: a longer line counts as several.
    """
    *ended, rest = (held + text).split("\n")
    lines = [piece for line in ended for piece in _pieces(line.removesuffix("\r"), longest)]
    *full, rest = _pieces(rest, longest)
    return lines + full, rest


def _pieces(line: str, longest: int) -> list[str]:
    if len(line) <= longest:
        return [line]
    return [line[start : start + longest] for start in range(0, len(line), longest)]
