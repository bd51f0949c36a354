"""A finding: what one look at a store found, how bad it is, and how to mend it."""

from __future__ import annotations

from enum import StrEnum

from poolhand.rules.values.plain import PlainView


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    WRONG = "WRONG"


class Finding(PlainView, frozen=True):
    """What one look found; `fix` says what to do about it."""

    check: str
    level: Level
    text: str
    fix: str | None = None


def many(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
