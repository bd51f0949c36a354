"""Backpressure policies as pure decisions."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from poolhand.errors import UsageError
from poolhand.rules.queue.backpressure import (
    POLICIES,
    Backpressure,
    Bounded,
    OnFull,
    Policy,
    QueueFacts,
    Ruling,
    bounded,
    drop_name,
    drop_reason,
    evicts,
    fail_fast,
    ring_buffer,
    rule,
    unbounded,
)

WHEN_FULL = {
    bounded(2): Ruling.PARK,
    bounded(2, "block_submitter", 5.0): Ruling.PARK,
    bounded(2, "drop_oldest"): Ruling.EVICT,
    bounded(2, "drop_newest"): Ruling.REJECT,
    bounded(2, "fail_submitter"): Ruling.REFUSE,
    ring_buffer(2): Ruling.EVICT,
}
BOUNDED = list(WHEN_FULL)


def test_an_unbounded_pool_takes_everything() -> None:
    assert rule(unbounded(), QueueFacts(5, 10**6, 5, False)) is Ruling.TAKE


@pytest.mark.parametrize("policy", BOUNDED, ids=str)
def test_a_bounded_pool_accepts_what_can_start_at_once(policy: Policy) -> None:
    assert rule(policy, QueueFacts(0, 0, 1, True)) is Ruling.TAKE
    assert rule(policy, QueueFacts(0, 2, 1, True)) is Ruling.TAKE


@pytest.mark.parametrize("policy", BOUNDED, ids=str)
def test_a_bounded_pool_lets_up_to_its_depth_wait(policy: Policy) -> None:
    assert rule(policy, QueueFacts(1, 1, 1, False)) is Ruling.TAKE
    assert rule(policy, QueueFacts(1, 2, 1, False)) is WHEN_FULL[policy]


@pytest.mark.parametrize("policy", BOUNDED, ids=str)
def test_requeued_retries_count_against_both_bounds_together(policy: Policy) -> None:
    assert rule(policy, QueueFacts(0, 3, 1, True)) is WHEN_FULL[policy]
    assert rule(policy, QueueFacts(1, 3, 2, True)) is WHEN_FULL[policy]
    assert rule(policy, QueueFacts(1, 2, 2, True)) is Ruling.TAKE


@pytest.mark.parametrize("policy", BOUNDED, ids=str)
def test_without_a_cap_on_slots_only_the_depth_counts(policy: Policy) -> None:
    assert rule(policy, QueueFacts(1000, 1, None, False)) is Ruling.TAKE
    assert rule(policy, QueueFacts(1000, 2, None, True)) is Ruling.TAKE
    assert rule(policy, QueueFacts(0, 2, None, False)) is WHEN_FULL[policy]


def test_fail_fast_takes_as_many_as_there_are_slots() -> None:
    taken = [rule(fail_fast(), QueueFacts(0, waiting, 4, False)) for waiting in range(5)]
    assert taken == [Ruling.TAKE] * 4 + [Ruling.REFUSE]
    assert rule(fail_fast(), QueueFacts(3, 0, 4, True)) is Ruling.TAKE
    assert rule(fail_fast(), QueueFacts(3, 1, 4, False)) is Ruling.REFUSE
    assert rule(fail_fast(), QueueFacts(10**6, 0, None, True)) is Ruling.TAKE


def test_only_the_dropping_policies_evict() -> None:
    assert [policy for policy in (unbounded(), fail_fast(), *BOUNDED) if evicts(policy)] == [
        bounded(2, "drop_oldest"),
        ring_buffer(2),
    ]


def test_a_dropped_job_records_the_reason_and_the_policy() -> None:
    found = {drop_name(policy): drop_reason(policy) for policy in BOUNDED}
    assert found["drop_oldest"] == "drop_oldest_queue_full"
    assert found["drop_newest"] == "drop_newest_queue_full"
    assert found["ring_buffer"] == "ring_buffer_drop_oldest"


def test_a_policy_has_a_readable_name() -> None:
    assert str(unbounded()) == "unbounded"
    assert str(fail_fast()) == "fail_fast"
    assert str(ring_buffer(3)) == "ring_buffer(3)"
    assert str(bounded(3)) == "bounded(3, block_submitter)"


def test_every_policy_is_in_the_namespace() -> None:
    assert Backpressure.queue() == Backpressure.unbounded() == unbounded()
    assert Backpressure.queue(None) == Backpressure.queue(None, "drop_oldest") == unbounded()
    assert Backpressure.queue(5) == Backpressure.queue(5, None) == bounded(5)
    assert Backpressure.queue(5, "drop_oldest") == bounded(5, "drop_oldest")
    assert Backpressure.queue(5, None, 2.0) == bounded(5, wait_timeout=2.0)
    for wrong in ((0,), (5, "drop"), (None, "drop")):
        with pytest.raises(UsageError, match="is not allowed"):
            Backpressure.queue(*wrong)
    assert Backpressure.bounded(3, "drop_newest") == Bounded(3, OnFull.DROP_NEWEST)
    assert Backpressure.ring_buffer(3) == ring_buffer(3)
    assert Backpressure.fail_fast() == fail_fast()
    assert POLICIES["queue"]() == unbounded()
    assert POLICIES["fail_fast"]() == fail_fast()


@pytest.mark.parametrize("depth", [0, -1, 1.0, True, None, "5", nan])
def test_a_bad_depth_is_refused_with_its_value(depth: Any) -> None:
    for make in (bounded, ring_buffer):
        with pytest.raises(UsageError) as caught:
            make(depth)
        assert repr(depth) in str(caught.value)


@pytest.mark.parametrize("on_full", ["", "drop", None, 5, ["drop_oldest"], {}])
def test_a_bad_on_full_is_refused_and_the_good_ones_are_named(on_full: Any) -> None:
    with pytest.raises(UsageError, match="on_full") as caught:
        bounded(5, on_full)
    assert repr(on_full) in str(caught.value)
    assert all(repr(str(one)) in str(caught.value) for one in OnFull)


@pytest.mark.parametrize("seconds", [-1, nan, inf, True, "5", [1]])
def test_a_bad_wait_timeout_is_refused(seconds: Any) -> None:
    with pytest.raises(UsageError, match="wait_timeout"):
        bounded(5, wait_timeout=seconds)


@pytest.mark.parametrize("on_full", ["drop_oldest", "drop_newest", "fail_submitter"])
def test_only_a_policy_that_waits_can_have_a_wait_timeout(on_full: str) -> None:
    with pytest.raises(UsageError, match="wait_timeout"):
        bounded(5, on_full, wait_timeout=1.0)
    assert bounded(5, wait_timeout=0) == Bounded(5, OnFull.BLOCK_SUBMITTER, 0)
