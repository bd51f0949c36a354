"""Validation: which values are allowed."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from poolhand.rules import validation as checks

ODD_VALUES = [None, True, "1", b"1", [], {}, object(), nan, inf, -inf, 1j]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.is_text, ["a", " a "], ["", "  ", "\n"]),
        (checks.is_short, ["", "a", "a" * 1000, "ü" * 500], ["a" * 1001, "ü" * 501]),
        (checks.is_name, ["a", "ü", "a" * 1000], ["", "  ", "a" * 1001, "\ud800", "a\0b"]),
        (checks.is_int, [0, -1, 2**40], [0.0, 1.5]),
        (checks.is_whole, [0, 1, 2**40], [-1, 0.0]),
        (checks.is_count, [1, 2**40], [0, -1, 1.0]),
        (checks.is_number, [0, -1, 1.5, -1e12], []),
        (checks.is_seconds, [0, 0.0, 1e12], [-1, -1e-9]),
        (checks.is_amount, [1, 1e-9], [0, 0.0, -1]),
    ],
)
def test_each_check_separates_valid_from_invalid_values(
    check: checks.Predicate, good: list[Any], bad: list[Any]
) -> None:
    texts = (checks.is_text, checks.is_short, checks.is_name)
    odd = [value for value in ODD_VALUES if not (check in texts and value == "1")]
    assert [value for value in good if not check(value)] == []
    assert [value for value in bad + odd if check(value)] == []


@pytest.mark.parametrize("check", [checks.is_number, checks.is_seconds, checks.is_amount])
def test_an_int_too_large_for_a_float_is_not_a_valid_number(check: checks.Predicate) -> None:
    assert not check(10**400)


def test_an_optional_value_may_be_missing() -> None:
    allowed = checks.COUNT.or_none()
    assert allowed.faults("n", None) == allowed.faults("n", 1) == []
    assert allowed.faults("n", 0) == [
        "n=0 is not allowed; it must be an int of at least 1 and at most 10**18, or None"
    ]


def test_a_value_is_shown_in_an_error_as_it_is_or_cut() -> None:
    assert checks.shown([1, "two"]) == "[1, 'two']"
    assert checks.shown("x" * 3_000_000) == "'" + "x" * 199 + "…"
    assert checks.shown(list(range(1000))).endswith("…")
    assert len(checks.shown(list(range(1000)))) == 201


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Hidden:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    assert checks.shown(Hidden()) == "<a Hidden>"
    assert checks.shown(10**5000) == "<a int>"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tiemout", "timeout"),
        ("TIMEOUT", "timeout"),
        ("max-workers", "Max_Workers"),
        ("colour", None),
        ("", None),
        (7, None),
        ("x" * 100_000, None),
    ],
)
def test_the_nearest_name_is_suggested(name: object, near: str) -> None:
    assert checks.nearest(name, ["retry", "timeout", "Max_Workers"]) == near


def test_an_unknown_name_is_reported_with_the_nearest_or_with_all() -> None:
    known = ("retry", "timeout")
    assert checks.did_you_mean("rety", known) == "did you mean 'retry'?"
    assert checks.did_you_mean("zzz", iter(known)) == "there are retry, timeout"
    assert checks.nearest("stores", ["store"], cutoff=0.95) is None
