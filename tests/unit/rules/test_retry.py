"""Retry policies: how long a job waits."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.errors import UsageError
from poolhand.rules.outcome import NO_RETRY, Retry, delay, name_of_error, recorded


def test_the_waits_grow_by_the_factor_up_to_the_cap() -> None:
    policy = Retry(attempts=10, first=5, factor=2, cap=60, jitter=0)
    assert [delay(policy, n, 0.5) for n in range(1, 7)] == [5, 10, 20, 40, 60, 60]


def test_the_defaults_match_the_manual() -> None:
    assert Retry() == Retry(attempts=4, first=5, factor=2, cap=600, jitter=0.5)
    assert NO_RETRY.attempts == 1


def test_jitter_shortens_a_wait_and_never_lengthens_it() -> None:
    policy = Retry(first=8, jitter=0.5)
    assert delay(policy, 1, 0.0) == 8
    assert delay(policy, 1, 0.5) == 6
    assert 4 < delay(policy, 1, 0.999) < 4.01
    assert delay(Retry(first=8, jitter=0), 1, 0.999) == 8


def test_a_requested_retry_after_is_never_shortened() -> None:
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


def test_all_invalid_options_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Retry(attempts=0, jitter=5, first=-1)
    assert all(name in str(caught.value) for name in ("attempts=0", "jitter=5", "first=-1"))


class Broken(ValueError):
    """An error of this test."""


@pytest.mark.parametrize(
    "given",
    [(ValueError,), ("ValueError",), (KeyError, "ValueError"), (name_of_error(Broken),), (Broken,)],
    ids=["class", "name", "one of two", "full name", "own class"],
)
def test_give_up_on_matches_an_error_by_class_or_by_name(given: tuple[Any, ...]) -> None:
    policy = Retry(give_up_on=given)
    assert policy.gives_up_on(Broken())
    assert not policy.gives_up_on(OSError())


def test_a_name_in_give_up_on_matches_the_error_and_its_subclasses() -> None:
    policy = Retry(give_up_on=(name_of_error(Broken),))
    assert not policy.gives_up_on(ValueError())
    assert Retry(give_up_on=("LookupError",)).gives_up_on(KeyError())
    assert not Retry(give_up_on=("Error",)).gives_up_on(KeyError())
    assert not Retry(give_up_on=("Broken",)).gives_up_on(Broken())


def test_give_up_on_matches_only_exception_classes() -> None:
    assert not Retry(give_up_on=("object",)).gives_up_on(OSError())


def test_an_error_is_named_by_its_module_unless_it_is_pythons_own() -> None:
    assert name_of_error(KeyError) == "KeyError"
    assert name_of_error(Broken) == f"{__name__}.Broken"


def test_a_retry_policy_round_trips_through_its_record() -> None:
    policy = Retry(
        attempts=7, first=1, factor=3, cap=9, jitter=0.25, give_up_on=(Broken, "KeyError")
    )
    record = recorded(policy)
    assert record.give_up_on == (name_of_error(Broken), "KeyError")
    kept = msgspec.json.decode(msgspec.json.encode(record), type=type(record)).retry()
    for attempts in range(1, 9):
        assert delay(kept, attempts, 0.5) == delay(policy, attempts, 0.5)
    assert kept.attempts == 7
    for error in (Broken(), KeyError(), OSError()):
        assert kept.gives_up_on(error) is policy.gives_up_on(error)


@pytest.mark.parametrize("name", ["ValueEror", "KeyErorr", "valueError"])
def test_a_misspelt_name_of_a_built_in_exception_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is not an exception; did you mean"):
        Retry(give_up_on=("KeyError", name))


@pytest.mark.parametrize("name", ["Broken", "shop.ValueEror", "ExceptionGroup"])
def test_a_name_that_may_be_right_is_allowed(name: str) -> None:
    assert Retry(give_up_on=(name,)).give_up_on == (name,)


def test_a_misspelt_name_that_was_stored_is_read() -> None:
    record = msgspec.structs.replace(recorded(Retry()), give_up_on=("ValueEror",))
    assert record.retry().give_up_on == ("ValueEror",)
