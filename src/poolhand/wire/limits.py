"""Limits: the largest size and nesting of one payload."""

from __future__ import annotations

from poolhand.errors import UsageError
from poolhand.misuse import OptionsStruct
from poolhand.rules.validation import (
    COUNT_ALLOWED,
    WHOLE_ALLOWED,
    Predicate,
    is_count,
    is_whole,
    shown,
)

KIB = 1024

CHECKS: dict[str, tuple[Predicate, str]] = {
    "payload": (is_count, f"bytes, {COUNT_ALLOWED}"),
    "depth": (is_count, COUNT_ALLOWED),
    "state": (is_count, f"bytes, {COUNT_ALLOWED}"),
    "compress_above": (is_whole, f"bytes, {WHOLE_ALLOWED}"),
}


class Limits(OptionsStruct, frozen=True):
    """The limits of a payload: bytes before compression, and levels of nesting.

    Payloads above `compress_above` bytes are compressed if that saves space. `state` limits the
    state of a session, in bytes of JSON; every turn writes it as a whole.
    """

    payload: int = 256 * KIB
    depth: int = 64
    compress_above: int = 8 * KIB
    state: int = 1024 * KIB

    def __post_init__(self) -> None:
        faults = [
            f"{name}={shown(getattr(self, name))} is not allowed; it must be {allowed}"
            for name, (check, allowed) in CHECKS.items()
            if not check(getattr(self, name))
        ]
        if faults:
            raise UsageError("Limits: " + "; ".join(faults))


LIMITS = Limits()
