"""Checks of single option values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Predicate = Callable[[Any], bool]

LARGEST = 1e18


def optional(check: Predicate) -> Predicate:
    return lambda value: value is None or check(value)


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_writable(text: str) -> bool:
    """Tell whether a text can be written as UTF-8: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    return is_int(value) and 0 <= value <= LARGEST


def is_count(value: Any) -> bool:
    return is_int(value) and 1 <= value <= LARGEST


def is_number(value: Any) -> bool:
    # Compared, not converted: an int may be too long for a float. NaN and infinity fail.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -LARGEST <= value <= LARGEST


def is_seconds(value: Any) -> bool:
    return is_number(value) and value >= 0


def is_amount(value: Any) -> bool:
    return is_seconds(value) and value > 0
