"""What a retry policy promises about waiting."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.errors import UsageError
from poolhand.rules.backoff import NO_RETRY, Retry, delay


def test_the_waits_grow_by_the_factor_up_to_the_cap() -> None:
    policy = Retry(attempts=10, first=5, factor=2, cap=60, jitter=0)
    assert [delay(policy, n, 0.5) for n in range(1, 7)] == [5, 10, 20, 40, 60, 60]


def test_the_defaults_are_those_of_the_manual() -> None:
    assert Retry() == Retry(attempts=4, first=5, factor=2, cap=600, jitter=0.5)
    assert NO_RETRY.attempts == 1


def test_jitter_shortens_a_wait_and_never_lengthens_it() -> None:
    policy = Retry(first=8, jitter=0.5)
    assert delay(policy, 1, 0.0) == 8
    assert delay(policy, 1, 0.5) == 6
    assert 4 < delay(policy, 1, 0.999) < 4.01
    assert delay(Retry(first=8, jitter=0), 1, 0.999) == 8


def test_a_wait_that_was_asked_for_is_never_shortened() -> None:
    policy = Retry(first=1, cap=5, jitter=1.0)
    assert delay(policy, 1, 0.0, retry_after=30.0) == 30
    assert 30 < delay(policy, 1, 0.99, retry_after=30.0) <= 33
    assert delay(policy, 1, 0.99, retry_after=0.0) == 0


@given(
    st.builds(
        Retry,
        attempts=st.integers(1, 10**9),
        first=st.floats(0, 1e15),
        factor=st.one_of(st.floats(1, 1e15), st.integers(1, 10**9)),
        cap=st.floats(0, 1e15),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 10**9),
    st.floats(0, 1, exclude_max=True),
)
def test_no_policy_that_is_allowed_waits_longer_than_its_cap(
    policy: Retry, attempts: int, roll: float
) -> None:
    assert 0 <= delay(policy, attempts, roll) <= policy.cap


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("attempts", [0, -1, 1.5, True, None, "3", nan]),
        ("first", [-1, nan, inf, True, None, "3"]),
        ("factor", [0.5, 0, -2, nan, inf, True, None]),
        ("cap", [-1, nan, inf, True, None]),
        ("jitter", [-0.1, 1.1, nan, True, None]),
        ("give_up_on", [ValueError, [ValueError], (" ",), (5,), None]),
    ],
)
def test_a_bad_option_is_refused_by_name_and_value(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError) as caught:
            Retry(**{name: value})
        assert f"{name}={value!r}" in str(caught.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Retry(attempts=0, jitter=5, first=-1)
    assert all(name in str(caught.value) for name in ("attempts=0", "jitter=5", "first=-1"))
