"""Text that is safe to show on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with control characters escaped."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def seconds(value: float | None) -> str:
    """Return a duration as a few characters."""
    if value is None:
        return "–"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"


def clock(value: float) -> str:
    """Return a duration as a stopwatch shows it."""
    return f"{int(value) // 60}:{int(value) % 60:02d}"
