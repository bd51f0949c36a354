"""Short forms of numbers and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.operate.format import BARS, bars, lasting, short_duration, size
from poolhand.operate.summary import SPAN, Throughput


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (-3.0, "0.0 s"),
        (0.26, "0.3 s"),
        (9.94, "9.9 s"),
        (10.0, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599.0, "59 min 59 s"),
        (3600.0, "1 h 00 min"),
        (90_000.0, "1 d 01 h"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float | None, words: str) -> None:
    assert lasting(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (-3.0, "0.0s"),
        (0.26, "0.3s"),
        (28.0, "28s"),
        (59.6, "1m00s"),
        (125.0, "2m05s"),
        (1_700.0, "28m"),
        (11_520.0, "3h12m"),
        (370_000.0, "4d06h"),
    ],
)
def test_a_time_in_a_column_is_short(seconds: float | None, words: str) -> None:
    assert short_duration(seconds) == words


@pytest.mark.parametrize(
    ("octets", "words"), [(0, "-"), (60 << 20, "60 MB"), (20 << 30, "20.0 GB")]
)
def test_memory_is_shown_in_megabytes(octets: int, words: str) -> None:
    assert size(octets) == words


@given(st.lists(st.floats(0, 1e9)))
def test_bars_show_the_highest_full_and_nothing_as_nothing(values: list[float]) -> None:
    shown = bars(values)
    assert len(shown) == len(values)
    for value, bar in zip(values, shown, strict=True):
        assert (bar == BARS[0]) == (value == 0)
        assert bar == BARS[-1] if value and value == max(values) else True


def test_throughput_counts_jobs_between_two_samples() -> None:
    counted = Throughput(0.0)
    counted.note(0.0, {"a": 1000})
    counted.note(1.0, {"a": 1010})
    assert counted.rate(1.0) == 10.0
    counted.note(2.0, {"a": 1010})
    assert counted.rate(2.0) == 5.0


def test_a_farm_that_appears_or_restarts_causes_no_peak() -> None:
    counted = Throughput(0.0)
    counted.note(1.0, {"a": 50})
    counted.note(2.0, {"a": 52, "b": 9000})
    counted.note(3.0, {"a": 0, "b": 9001})
    counted.note(4.0, {"b": 9001})
    assert sum(counted.history(4.0, 10)) == 3


def test_history_ends_with_now_and_drops_old_samples() -> None:
    counted = Throughput(0.0)
    counted.note(0.0, {"a": 0})
    counted.note(1.0, {"a": 7})
    counted.note(SPAN, {"a": 8})
    assert counted.history(SPAN, 4) == [7, 0, 0, 1]
    counted.note(SPAN + 2, {"a": 8})
    assert counted.history(SPAN + 2, 4) == [0, 0, 0, 1]
