"""Autoscaling of a pool, sample by sample."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from poolhand.errors import UsageError
from poolhand.rules.scaling.pool_size import (
    Autoscale,
    Decision,
    PoolLoad,
    PoolTrend,
    decide,
    suggest_workers,
)

SETTINGS = Autoscale(min=2, max=50)
FULL = PoolLoad(8, 8, 0, None)
IDLE = PoolLoad(8, 0, 0, None)
MIDDLING = PoolLoad(8, 4, 0, None)
AT_REST = PoolTrend()


def look(
    load: PoolLoad,
    trend: PoolTrend = AT_REST,
    now: float = 0.0,
    settings: Autoscale = SETTINGS,
) -> Decision:
    return decide(settings, load, trend, now)


def is_high(load: PoolLoad, settings: Autoscale = SETTINGS) -> bool:
    return look(load, settings=settings).trend.high == 1


def is_low(load: PoolLoad, settings: Autoscale = SETTINGS) -> bool:
    return look(load, settings=settings).trend.low == 1


# Growing


def test_a_pool_grows_by_a_step_when_two_samples_in_a_row_are_high() -> None:
    first = look(FULL)
    assert (first.target, first.why) == (8, "")
    second = look(FULL, first.trend, 10.0)
    assert (second.target, second.why) == (10, "utilisation 1.00")
    assert second.trend.changed_at == 10.0
    assert second.trend.grew


def test_one_high_sample_among_others_does_not_grow_a_pool() -> None:
    trend = PoolTrend()
    for load in [FULL, MIDDLING] * 5 + [FULL, IDLE] * 5:
        decision = look(load, trend)
        assert decision.target == 8
        trend = decision.trend


def test_a_pool_keeps_growing_with_each_further_high_sample() -> None:
    trend, size, sizes = PoolTrend(), 4, []
    for number in range(6):
        decision = look(PoolLoad(size, size, 0, None), trend, number * 10.0)
        size, trend = decision.target, decision.trend
        sizes.append(size)
    assert sizes == [4, 5, 6, 7, 8, 10]


def test_a_pool_grows_at_most_to_max_and_then_keeps_its_size() -> None:
    grown = look(PoolLoad(48, 48, 900, None), PoolTrend(high=1))
    assert grown.target == 50
    at_max = look(PoolLoad(50, 50, 900, None), grown.trend, 10.0)
    assert (at_max.target, at_max.why) == (50, "")
    assert at_max.trend.changed_at == 0.0


def test_a_small_pool_grows_by_one_at_least() -> None:
    assert look(PoolLoad(2, 2, 0, None), PoolTrend(high=1)).target == 3


@pytest.mark.parametrize(
    ("load", "high"),
    [
        (PoolLoad(10, 8, 0, None), False),
        (PoolLoad(10, 9, 0, None), True),
        (PoolLoad(10, 5, 20, None), False),
        (PoolLoad(10, 5, 21, None), True),
        (PoolLoad(10, 5, 50, 100), False),
        (PoolLoad(10, 5, 51, 100), True),
        (PoolLoad(10, 5, 300, 100), True),
        (PoolLoad(10, 8, 300, 0), False),
        (PoolLoad(10, 9, 0, 0), True),
        (PoolLoad(10, 15, 0, 100), True),
    ],
)
def test_a_sample_is_high_above_a_threshold_and_not_at_it(load: PoolLoad, high: bool) -> None:
    assert is_high(load) is high


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (PoolLoad(12, 11, 0, None), "utilisation 0.92"),
        (PoolLoad(12, 12, 61, 100), "queue fill 0.61"),
        (PoolLoad(4, 4, 40, None), "backlog 40 for 4 workers"),
        (PoolLoad(2, 2, 40, None), "backlog 40 for 2 workers"),
    ],
)
def test_a_decision_to_grow_has_a_reason(load: PoolLoad, why: str) -> None:
    assert look(load, PoolTrend(high=1)).why == why


def test_one_worker_is_named_in_the_singular() -> None:
    settings = Autoscale(min=1)
    assert (
        look(PoolLoad(1, 1, 3, None), PoolTrend(high=1), 0.0, settings).why
        == "backlog 3 for 1 worker"
    )


# Shrinking


def test_a_pool_shrinks_by_a_step_after_enough_low_samples_in_a_row() -> None:
    settings = Autoscale(idle_after=3)
    trend, targets = PoolTrend(), []
    for number in range(3):
        decision = look(IDLE, trend, number * 10.0, settings)
        targets.append(decision.target)
        trend = decision.trend
    assert targets == [8, 8, 6]
    assert trend == PoolTrend(changed_at=20.0, grew=False)


def test_a_decision_to_shrink_has_a_reason() -> None:
    assert look(PoolLoad(10, 1, 0, None), PoolTrend(low=1)).why == "utilisation 0.10"


def test_a_low_sample_among_others_does_not_shrink_a_pool() -> None:
    trend = PoolTrend()
    for load in [IDLE, MIDDLING] * 5 + [IDLE, FULL] * 5:
        decision = look(load, trend)
        assert decision.target == 8
        trend = decision.trend


def test_each_shrink_takes_as_many_low_samples_as_the_first() -> None:
    settings = Autoscale(idle_after=3, cooldown=0)
    trend, size, sizes = PoolTrend(), 8, []
    for number in range(9):
        decision = look(PoolLoad(size, 0, 0, None), trend, number * 10.0, settings)
        size, trend = decision.target, decision.trend
        sizes.append(size)
    assert sizes == [8, 8, 6, 6, 6, 5, 5, 5, 4]


def test_a_pool_never_shrinks_below_min() -> None:
    assert look(PoolLoad(3, 0, 0, None), PoolTrend(low=1), 0.0, Autoscale(step=1.0)).target == 2
    at_min = look(PoolLoad(2, 0, 0, None), PoolTrend(low=9))
    assert (at_min.target, at_min.why) == (2, "")
    assert at_min.trend == PoolTrend(low=10)


def test_a_sample_is_low_below_the_threshold_and_not_at_it() -> None:
    assert is_low(PoolLoad(10, 2, 0, None))
    assert not is_low(PoolLoad(10, 3, 0, None))


@pytest.mark.parametrize("load", [PoolLoad(10, 0, 21, None), PoolLoad(10, 0, 51, 100)])
def test_an_idle_pool_with_a_full_queue_is_not_low(load: PoolLoad) -> None:
    assert not is_low(load)


def test_a_shrink_leaves_enough_workers_for_running_jobs() -> None:
    greedy = Autoscale(min=1, max=100, up_at=0.8, down_at=0.79, step=1.0)
    assert look(PoolLoad(100, 10, 0, None), PoolTrend(low=1), 0.0, greedy).target == 13
    assert look(PoolLoad(13, 10, 0, None), PoolTrend(low=1), 0.0, greedy).target == 13
    assert look(PoolLoad(100, 0, 0, None), PoolTrend(low=1), 0.0, greedy).target == 1


def test_a_shrink_leaves_enough_workers_for_waiting_jobs() -> None:
    greedy = Autoscale(min=1, max=100, step=1.0)
    assert look(PoolLoad(100, 1, 31, None), PoolTrend(low=1), 0.0, greedy).target == 16
    assert look(PoolLoad(100, 1, 31, 100), PoolTrend(low=1), 0.0, greedy).target == 2


def test_a_shrink_leaves_enough_workers_despite_rounding_of_the_threshold() -> None:
    greedy = Autoscale(min=1, up_at=0.7 + 0.1, step=1.0)
    assert greedy.up_at < 8 / 10
    assert look(PoolLoad(50, 8, 0, None), PoolTrend(low=1), 0.0, greedy).target == 11


# Waiting between changes


def test_a_pool_that_changed_waits_before_it_shrinks() -> None:
    for grew in (True, False):
        trend = PoolTrend(low=5, changed_at=100.0, grew=grew)
        assert look(IDLE, trend, 129.9).target == 8
        assert look(IDLE, trend, 130.0).target == 6


def test_a_pool_that_shrank_waits_before_it_grows() -> None:
    trend = PoolTrend(high=5, changed_at=100.0, grew=False)
    assert look(FULL, trend, 129.9).target == 8
    assert look(FULL, trend, 130.0).target == 10


def test_a_pool_that_grew_keeps_growing_without_waiting() -> None:
    assert look(FULL, PoolTrend(high=5, changed_at=100.0, grew=True), 100.1).target == 10


def test_a_sample_that_changes_nothing_keeps_the_time_of_the_last_change() -> None:
    trend = PoolTrend(high=3, changed_at=100.0, grew=True)
    assert look(MIDDLING, trend, 110.0) == Decision(8, PoolTrend(0, 0, 100.0, True), "")


# Sizes out of bounds


@pytest.mark.parametrize("busy", [0, 1, 60])
@pytest.mark.parametrize("grew", [True, False])
def test_a_size_out_of_bounds_is_corrected_at_once_whatever_the_load(busy: int, grew: bool) -> None:
    trend = PoolTrend(changed_at=99.0, grew=grew)
    small = look(PoolLoad(1, busy, 0, None), trend, 100.0)
    assert (small.target, small.why) == (2, "size 1 below min 2")
    assert (small.trend.changed_at, small.trend.grew) == (100.0, True)
    large = look(PoolLoad(60, busy, 0, None), trend, 100.0)
    assert (large.target, large.why) == (50, "size 60 above max 50")
    assert (large.trend.changed_at, large.trend.grew) == (100.0, False)


@pytest.mark.parametrize("capacity", [None, 0, 10])
def test_a_pool_without_workers_gets_its_minimum(capacity: int | None) -> None:
    load = PoolLoad(0, 0, 5, capacity)
    assert load.utilisation == 0
    assert look(load).target == 2


# The settings


def test_the_defaults_match_the_manual() -> None:
    assert Autoscale() == Autoscale(
        min=2,
        max=50,
        up_at=0.8,
        down_at=0.3,
        queue_up_at=0.5,
        interval=10,
        step=0.25,
        cooldown=30,
        idle_after=2,
    )


def test_the_widest_settings_are_allowed() -> None:
    Autoscale(min=1, max=1, up_at=1, down_at=0.999, queue_up_at=1, step=1, cooldown=0, idle_after=1)
    Autoscale(min=100_000, max=100_000, up_at=2e-9, down_at=1e-9, step=1e-9, interval=1e-3)


ODD: list[Any] = [True, None, "1", nan, inf, -inf, -1]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("min", [*ODD, 0, 2.0, 51, 100_001]),
        ("max", [*ODD, 0, 1, 50.0, 100_001]),
        ("up_at", [*ODD, 0, 0.3, 0.2, 1.01]),
        ("down_at", [*ODD, 0, 0.8, 0.9, 1.01]),
        ("queue_up_at", [*ODD, 0, 1.01]),
        ("interval", [*ODD, 0]),
        ("step", [*ODD, 0, 1.01]),
        ("cooldown", [*ODD]),
        ("idle_after", [*ODD, 0, 1.5]),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_value(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError) as caught:
            Autoscale(**{name: value})
        assert f"{name}={value!r}" in str(caught.value)


def test_all_bad_settings_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Autoscale(min=5, max=4, up_at=0.2, down_at=0.5, step=0, interval=nan, idle_after=0)
    assert caught.value.message == (
        "Autoscale: interval=nan is not allowed; it must be seconds above 0 and at most 10**18; "
        "step=0 is not allowed; it must be a number above 0 and at most 1; "
        "idle_after=0 is not allowed; it must be an int of at least 1 and at most 10**18; "
        "max=4 is not allowed; it must be at least min=5; "
        "down_at=0.5 is not allowed; it must be below up_at=0.2"
    )


# Suggestions


@pytest.mark.parametrize(
    ("rate", "seconds", "workers"),
    [
        (20, 5, 100),
        (0.1, 30, 3),
        (10, 0.1 + 0.2, 3),
        (1.1, 10, 11),
        (3, 0.7, 3),
        (0.1, 31, 4),
        (0.001, 1, 1),
        (0, 5, 1),
        (1e9, 0.3, 300_000_000),
    ],
)
def test_workers_are_suggested_for_the_rate_and_the_time_of_a_job(
    rate: float, seconds: float, workers: int
) -> None:
    assert suggest_workers(rate=rate, seconds=seconds) == workers


def test_the_suggestion_respects_the_narrowest_limit() -> None:
    assert suggest_workers(rate=20, seconds=5, limits=[]) == 100
    assert suggest_workers(rate=20, seconds=5, limits=[200, 20]) == 20
    assert suggest_workers(rate=20, seconds=5, limits=iter((200, 300))) == 100


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rate", [*ODD]),
        ("seconds", [*ODD]),
        ("limits", [[0], [20, 2.5], [True], [-1], [None], ["20"], 20, None]),
    ],
)
def test_a_bad_value_gets_no_suggestion(name: str, values: list[Any]) -> None:
    for value in values:
        arguments: dict[str, Any] = {"rate": 1, "seconds": 1} | {name: value}
        with pytest.raises(UsageError) as caught:
            suggest_workers(**arguments)
        assert f"{name}={value!r}" in str(caught.value)


def test_all_bad_values_of_a_suggestion_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"rate=-1.*seconds=nan.*limits=\[0\]"):
        suggest_workers(rate=-1, seconds=nan, limits=[0])
