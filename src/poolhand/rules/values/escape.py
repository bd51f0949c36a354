"""Escaping: make untrusted text safe to show; the CLI, the TUI and log lines all use it."""

from __future__ import annotations

LONGEST_LINE = 16 * 1024


def safe(text: str) -> str:
    """Return a text in which every control character is escaped."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def indented(text: str, indent: str) -> str:
    """Return lines of text to follow a log line: escaped, each with an indent."""
    return "".join(f"\n{indent}{safe(line)}" for line in text.split("\n"))


def complete_lines(held: str, text: str, longest: int = LONGEST_LINE) -> tuple[list[str], str]:
    """Return the lines that a text completes after the held text, and the rest to hold.

    None of them is longer than `longest` characters: a longer line is split into several.
    """
    *ended, rest = (held + text).split("\n")
    lines = [piece for line in ended for piece in _pieces(line.removesuffix("\r"), longest)]
    *full, rest = _pieces(rest, longest)
    return lines + full, rest


def _pieces(line: str, longest: int) -> list[str]:
    if len(line) <= longest:
        return [line]
    return [line[start : start + longest] for start in range(0, len(line), longest)]
