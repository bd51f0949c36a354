"""A finding: the result of one check of a store, its level, and how to fix it."""

from __future__ import annotations

from enum import StrEnum

from poolhand.rules.values.plain import PlainView


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    WRONG = "WRONG"


class Finding(PlainView, frozen=True):
    """The result of one check; `fix` says what to do about it."""

    check: str
    level: Level
    text: str
    fix: str | None = None


def many(count: int, what: str) -> str:
    """Return a count with its noun in singular or plural."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
