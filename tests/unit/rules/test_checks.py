"""What the checks let through, and what not."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from poolhand.rules import checks

ODD_VALUES = [None, True, "1", b"1", [], {}, object(), nan, inf, -inf, 1j]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.is_text, ["a", " a "], ["", "  ", "\n"]),
        (checks.is_int, [0, -1, 2**40], [0.0, 1.5]),
        (checks.is_whole, [0, 1, 2**40], [-1, 0.0]),
        (checks.is_count, [1, 2**40], [0, -1, 1.0]),
        (checks.is_number, [0, -1, 1.5, -1e12], []),
        (checks.is_seconds, [0, 0.0, 1e12], [-1, -1e-9]),
        (checks.is_amount, [1, 1e-9], [0, 0.0, -1]),
    ],
)
def test_a_check_tells_good_values_from_bad_ones(
    check: checks.Predicate, good: list[Any], bad: list[Any]
) -> None:
    odd = [value for value in ODD_VALUES if not (check is checks.is_text and value == "1")]
    assert [value for value in good if not check(value)] == []
    assert [value for value in bad + odd if check(value)] == []


@pytest.mark.parametrize("check", [checks.is_number, checks.is_seconds, checks.is_amount])
def test_an_int_that_no_float_can_hold_is_no_number_to_count_with(check: checks.Predicate) -> None:
    assert not check(10**400)


def test_an_optional_value_may_be_missing() -> None:
    check = checks.optional(checks.is_count)
    assert check(None)
    assert check(1)
    assert not check(0)
