"""Diagnosis: findings about a pool with a problem, and none about a healthy one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from poolhand.rules.diagnosis import Condition, Diagnosis, Sample

WELL = Sample(
    size=4,
    busy=2,
    backlog=0,
    waiting=0,
    capacity=None,
    completed=0,
    failed=0,
    executor_size=None,
    executor_backlog=0,
)


def told(samples: Iterable[Sample]) -> list[tuple[int, Condition]]:
    """Return the findings, each with the number of its sample."""
    diagnosis = Diagnosis()
    return [
        (number, condition)
        for number, sample in enumerate(samples)
        for condition in diagnosis.look(sample)
    ]


def full(*backlogs: int, size: int = 4) -> list[Sample]:
    """All slots busy, with these backlogs one after the other."""
    return [
        replace(WELL, size=size, busy=size, backlog=one, waiting=one, completed=number)
        for number, one in enumerate(backlogs)
    ]


def ends(*counts: tuple[int, int]) -> list[Sample]:
    """Jobs that completed and attempts that failed, counted from the start."""
    return [replace(WELL, completed=completed, failed=failed) for completed, failed in counts]


def waiting(*depths: int, capacity: int | None = 10) -> list[Sample]:
    return [replace(WELL, waiting=depth, capacity=capacity) for depth in depths]


def threads(*facts: tuple[int | None, int, int]) -> list[Sample]:
    """Threads of the executor, busy slots, calls that wait for a thread."""
    return [
        replace(WELL, size=16, busy=busy, executor_size=size, executor_backlog=backlog)
        for size, busy, backlog in facts
    ]


# All slots busy while the backlog grows


def test_a_backlog_that_grows_three_times_while_all_slots_are_busy_is_reported_once() -> None:
    assert told(full(1, 2, 3, 4, 5, 6, 7, 8)) == [(3, Condition.WORKER_BOUND)]


def test_the_backlog_may_have_begun_to_grow_while_a_slot_was_free() -> None:
    assert told([WELL, *full(1, 2, 3)]) == [(3, Condition.WORKER_BOUND)]


def test_a_backlog_that_does_not_grow_with_every_sample_is_not_reported() -> None:
    assert told(full(1, 2, 3, 3, 4, 5, 4, 5, 6, 6, 6)) == []


def test_a_steady_full_load_with_a_constant_backlog_is_not_reported() -> None:
    assert told(full(*[40] * 20)) == []


def test_bursts_that_drain_are_not_reported() -> None:
    assert told(full(*[0, 30, 60, 40, 20, 0] * 5)) == []


def test_a_backlog_that_grows_while_a_slot_is_free_is_not_reported() -> None:
    samples = [replace(sample, busy=3) for sample in full(1, 2, 3, 4, 5, 6)]
    assert told(samples) == []
    samples = full(1, 2, 3, 4, 5, 6)
    samples[2] = replace(samples[2], busy=3)
    assert told(samples) == [(5, Condition.WORKER_BOUND)]


def test_a_backlog_is_reported_again_after_a_slot_was_free() -> None:
    grows = full(1, 2, 3, 4)
    free = replace(grows[-1], busy=3)
    again = [(3, Condition.WORKER_BOUND), (8, Condition.WORKER_BOUND)]
    assert told([*grows, free, *grows]) == again


def test_a_backlog_is_reported_again_after_it_fell_below_its_start() -> None:
    again = [(3, Condition.WORKER_BOUND), (8, Condition.WORKER_BOUND)]
    assert told(full(5, 6, 7, 8, 4, 4, 5, 6, 7)) == again


def test_a_backlog_that_falls_but_not_below_where_it_began_is_the_same_incident() -> None:
    assert told(full(5, 6, 7, 8, 5, 6, 7, 8, 5, 9, 13, 17)) == [(3, Condition.WORKER_BOUND)]
    assert told(full(5, 6, 7, 8, 7, 6, 7, 8, 9, 9, 8, 9, 10, 11)) == [(3, Condition.WORKER_BOUND)]


def test_the_start_of_a_backlog_is_that_of_its_lasting_growth() -> None:
    # It began at 5, not at 1: with 4 it is over.
    samples = full(1, 5, 5, 6, 7, 8, 4, 5, 6, 7)
    assert told(samples) == [(5, Condition.WORKER_BOUND), (9, Condition.WORKER_BOUND)]


def test_a_pool_without_slots_is_not_reported_as_busy() -> None:
    assert told(full(1, 2, 3, 4, 5, 6, size=0)) == []


def test_more_running_than_slots_counts_as_all_busy() -> None:
    samples = [replace(sample, busy=6) for sample in full(1, 2, 3, 4)]
    assert told(samples) == [(3, Condition.WORKER_BOUND)]


# Only failures


def test_three_samples_with_failures_and_no_completion_are_reported_once() -> None:
    assert told(ends((7, 0), (7, 1), (7, 3), (7, 4), (7, 5), (7, 9))) == [(3, Condition.POISON)]


def test_failures_before_the_first_sample_are_not_counted() -> None:
    assert told(ends((0, 50), (0, 51), (0, 52))) == []


def test_failures_among_completions_are_not_reported() -> None:
    assert told(ends(*[(number, number * 9) for number in range(20)])) == []
    assert told(ends((0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (2, 6))) == []


def test_a_pause_between_failures_starts_no_incident() -> None:
    assert told(ends((0, 0), (0, 1), (0, 2), (0, 2), (0, 3), (0, 4), (0, 4))) == []
    assert told(ends(*[(0, 0)] * 10)) == []


def test_a_pause_between_failures_ends_no_incident() -> None:
    counts = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 3), (0, 3), (0, 4), (0, 5), (0, 6)]
    assert told(ends(*counts)) == [(3, Condition.POISON)]


def test_poison_is_reported_again_after_a_completion() -> None:
    counts = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7)]
    assert told(ends(*counts)) == [(3, Condition.POISON), (7, Condition.POISON)]


# A queue that is nearly full


def test_a_queue_above_80_percent_for_three_samples_is_reported_once() -> None:
    assert told(waiting(9, 9, 9, 10, 9, 10)) == [(2, Condition.QUEUE_HIGH)]


def test_a_queue_at_80_percent_is_not_reported() -> None:
    assert told(waiting(*[8] * 10)) == []


def test_a_queue_that_is_high_for_two_samples_is_not_reported() -> None:
    assert told(waiting(9, 9, 8, 10, 10, 0, 10, 10)) == []


def test_a_high_queue_is_reported_again_after_it_was_not_high() -> None:
    told_twice = [(2, Condition.QUEUE_HIGH), (6, Condition.QUEUE_HIGH)]
    assert told(waiting(9, 9, 9, 8, 9, 9, 9)) == told_twice


@pytest.mark.parametrize("capacity", [None, 0])
def test_a_queue_without_places_or_without_a_bound_is_never_high(capacity: int | None) -> None:
    assert told(waiting(0, 5, 5, 5, 5, capacity=capacity)) == []


# An executor with fewer threads than callers


def test_an_executor_smaller_than_its_callers_is_reported_once() -> None:
    assert told(threads(*[(8, 12, 3)] * 6)) == [(2, Condition.EXECUTOR_SMALL)]


def test_an_executor_is_small_only_when_calls_wait_and_more_run_than_it_has_threads() -> None:
    assert told(threads(*[(8, 12, 0)] * 6)) == []
    assert told(threads(*[(8, 8, 3)] * 6)) == []
    assert told(threads(*[(None, 12, 3)] * 6)) == []
    assert told(threads(*[(8, 12, 3), (8, 12, 3), (8, 12, 0)] * 3)) == []


def test_a_small_executor_is_reported_again_after_no_call_waited() -> None:
    small, free = (8, 12, 3), (8, 12, 0)
    samples = threads(small, small, small, free, small, small, small)
    assert told(samples) == [(2, Condition.EXECUTOR_SMALL), (6, Condition.EXECUTOR_SMALL)]


# Together


def test_an_idle_pool_has_nothing_wrong() -> None:
    nothing = Sample(0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert told([nothing] * 10) == []
    assert told([WELL] * 10) == []


def test_several_conditions_can_begin_with_one_sample() -> None:
    bad = [Sample(4, 4, number + 6, number + 6, 8, 5, number, 2, number) for number in range(6)]
    assert told(bad) == [
        (3, Condition.WORKER_BOUND),
        (3, Condition.POISON),
        (3, Condition.QUEUE_HIGH),
        (3, Condition.EXECUTOR_SMALL),
    ]
