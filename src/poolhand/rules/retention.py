"""Retention: how long, and how many, finished jobs and audit records are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from poolhand.errors import UsageError
from poolhand.misuse import OptionsStruct
from poolhand.rules.validation import (
    AMOUNT_ALLOWED,
    COUNT_ALLOWED,
    Seconds,
    convert_seconds,
    is_amount,
    is_count,
    shown,
)

DAY = 86_400.0


class Keep(OptionsStruct, frozen=True, kw_only=True):
    """How long a store keeps finished work, in seconds, and how many at most (None: any number).

    Results are finished jobs other than dead letters; dead letters have bounds of their own.
    """

    results: float = 7 * DAY
    dead: float = 90 * DAY
    audit: float = 90 * DAY
    max_results: int | None = None
    max_dead: int | None = 100_000
    max_audit: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            results: Seconds = 7 * DAY,
            dead: Seconds = 90 * DAY,
            audit: Seconds = 90 * DAY,
            max_results: int | None = None,
            max_dead: int | None = 100_000,
            max_audit: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_seconds(self, "results", "dead", "audit")


KEEP = Keep()


def check_keep(keep: object) -> None:
    """Raise UsageError listing every fault unless `keep` is a valid Keep."""
    if not isinstance(keep, Keep):
        raise UsageError(f"keep={shown(keep)} is not allowed; give Keep(results=…, dead=…)")
    if faults := list(_faults(keep)):
        raise UsageError("Keep: " + "; ".join(faults))


def _faults(keep: Keep) -> Iterator[str]:
    for name in ("results", "dead", "audit"):
        if not is_amount(value := getattr(keep, name)):
            yield f"{name}={shown(value)} is not allowed; give {AMOUNT_ALLOWED}"
    for name in ("max_results", "max_dead", "max_audit"):
        value = getattr(keep, name)
        if value is not None and not is_count(value):
            yield f"{name}={shown(value)} is not allowed; give {COUNT_ALLOWED}, or None"
