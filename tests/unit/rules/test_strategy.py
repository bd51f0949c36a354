"""Strategies before anything is queued: their options, names and costs."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nan
from typing import Any

import pytest

from poolhand.errors import UsageError
from poolhand.rules.queue.strategy import (
    STRATEGIES,
    FairRoundRobin,
    Priority,
    QueueStrategy,
    aged_rank,
    fair_round_robin,
    fifo,
    job_rank,
    lifo,
    priority,
)
from tests.unit.rules.floor import new_entry


def test_a_strategy_has_a_readable_name() -> None:
    assert [str(one()) for one in (fifo, lifo, priority, fair_round_robin)] == [
        "fifo", "lifo", "priority", "fair_round_robin(key)",
    ]  # fmt: skip
    assert str(priority(aging=2.5)) == "priority(aging=2.5)"
    assert str(fair_round_robin("tenant_id")) == "fair_round_robin(tenant_id)"


def test_every_strategy_has_a_name_and_a_place_in_the_namespace() -> None:
    for name, make in STRATEGIES.items():
        assert getattr(QueueStrategy, name)() == make()
        assert str(make()).startswith(name)


def test_equal_options_make_equal_strategies() -> None:
    assert priority(3) == priority(3) != priority()
    assert fair_round_robin(weights={"a": 2}) == fair_round_robin(weights={"a": 2})
    assert fifo() != lifo()


@pytest.mark.parametrize("aging", [0, -1, nan, inf, True, "5", []])
def test_a_bad_aging_is_refused_by_name_and_value(aging: Any) -> None:
    with pytest.raises(UsageError, match="aging") as caught:
        priority(aging)
    assert repr(aging) in str(caught.value)


@pytest.mark.parametrize("key", ["", "  ", "two words", "1st", None, 5, True])
def test_a_bad_fairness_field_is_refused_by_name_and_value(key: Any) -> None:
    with pytest.raises(UsageError, match="key") as caught:
        fair_round_robin(key)
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize(
    "weights",
    [{"a": 0}, {"a": -1}, {"a": nan}, {"a": inf}, {"a": True}, {"a": "2"}, {"a": 1e9}, {"": 1},
     {5: 1}, [("a", 1)], "a"],
)  # fmt: skip
def test_bad_weights_are_refused(weights: Any) -> None:
    with pytest.raises(UsageError, match="weight"):
        fair_round_robin(weights=weights)


@pytest.mark.parametrize("weight", range(1, 17))
def test_the_weights_up_to_16_share_a_turn_exactly(weight: int) -> None:
    strategy = fair_round_robin(weights={"a": weight})
    assert isinstance(strategy, FairRoundRobin)
    assert Fraction(strategy.step("a"), strategy.step("b")) == Fraction(1, weight)


@pytest.mark.parametrize("weight", [1e-9, 0.5, 720_720])
def test_every_weight_that_is_allowed_has_a_cost(weight: float) -> None:
    strategy = fair_round_robin(weights={"a": weight})
    assert isinstance(strategy, FairRoundRobin)
    assert strategy.step("a") >= 1


def test_a_tiny_weight_is_refused_or_has_a_cost() -> None:
    try:
        strategy = fair_round_robin(weights={"a": 1e-305})
    except UsageError:
        return
    assert isinstance(strategy, FairRoundRobin)
    assert strategy.step("a") >= 1


def test_within_a_key_the_earlier_job_ranks_first() -> None:
    early, late = new_entry(seq=1), new_entry(seq=2)
    for strategy in (fifo(), priority(), fair_round_robin()):
        assert job_rank(strategy, early) < job_rank(strategy, late)
    assert job_rank(lifo(), early) > job_rank(lifo(), late)


def test_the_higher_priority_ranks_first_whenever_it_arrived() -> None:
    low, high = new_entry(seq=1), new_entry(seq=2, priority=1)
    assert job_rank(priority(), high) < job_rank(priority(), low)


def test_a_waiting_job_gains_one_level_per_aging_seconds() -> None:
    old, new = new_entry(seq=1), new_entry(seq=2, priority=1)
    new.ready_at = 9.9
    assert job_rank(Priority(10.0), new) < job_rank(Priority(10.0), old)
    new.ready_at = 10.0
    assert aged_rank(new, 10.0) == aged_rank(old, 10.0)
    assert job_rank(Priority(10.0), old) < job_rank(Priority(10.0), new)
