"""Limits: how much one payload may be."""

from __future__ import annotations

from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.rules.checks import Predicate, is_count, is_whole, shown

KIB = 1024

CHECKS: dict[str, tuple[Predicate, str]] = {
    "payload": (is_count, "bytes, an int of at least 1"),
    "depth": (is_count, "an int of at least 1"),
    "state": (is_count, "bytes, an int of at least 1"),
    "compress_above": (is_whole, "bytes, an int of 0 or more"),
}


class Limits(Struct, frozen=True):
    """What a payload may measure: bytes before compression, and levels of nesting.

    Above `compress_above` bytes compression is tried. `state` is what the state of a session may
    measure, in bytes of JSON; it is written as a whole with every turn.
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
