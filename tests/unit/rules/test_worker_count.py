"""How many workers a load needs, check by check."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from poolhand.rules.scaling.worker_count import (
    CALM_LOOKS,
    CapWatch,
    FarmSettings,
    Load,
    Plan,
    Processes,
    ScalingStep,
    Trend,
    decide,
    held_text,
    plan,
    runnable,
    to_retire,
    wanted_for,
)

SETTINGS = FarmSettings(
    min_workers=1,
    max_workers=10,
    prefetch_per_worker=10,
    scale_up_batch_size=2,
    scale_down_batch_size=1,
    scale_up_wait_s=5.0,
    scale_down_cooldown_s=10.0,
)
AT_REST = Trend()


def look(
    wanted: int,
    demand: int,
    queued: int = 0,
    all_busy: bool = False,
    trend: Trend = AT_REST,
    now: float = 100.0,
    settings: FarmSettings = SETTINGS,
) -> ScalingStep:
    return decide(settings, Load(wanted, demand, queued, all_busy), trend, now)


# More


def test_a_load_above_the_capacity_starts_a_batch_at_once() -> None:
    step = look(1, demand=11)
    assert (step.wanted, step.why) == (3, "11 jobs, room for 10")


def test_a_load_that_just_fits_starts_no_worker() -> None:
    assert look(1, demand=10).wanted == 1


def test_no_more_workers_are_started_than_the_maximum() -> None:
    assert look(9, demand=1000).wanted == 10
    step = look(10, demand=1000)
    assert (step.wanted, step.why) == (10, "")


def test_a_farm_without_workers_starts_some_for_a_single_job() -> None:
    settings = replace(SETTINGS, min_workers=0)
    assert look(0, demand=1, queued=1, settings=settings).wanted == 2
    assert look(0, demand=0, settings=settings).wanted == 0


def test_jobs_that_wait_while_all_workers_are_busy_start_a_batch_after_a_while() -> None:
    first = look(2, demand=20, queued=3, all_busy=True)
    assert (first.wanted, first.trend.waiting_since) == (2, 100.0)
    early = look(2, 20, 3, True, first.trend, now=104.9)
    assert early.wanted == 2
    due = look(2, 20, 3, True, early.trend, now=105.0)
    assert (due.wanted, due.why) == (4, "3 jobs wait, for 5 s with all workers busy")
    # New workers get time to take load before more are started.
    assert look(4, 20, 3, True, due.trend, now=109.9).wanted == 4
    assert look(4, 20, 3, True, due.trend, now=110.0).wanted == 6


def test_the_wait_restarts_when_a_worker_was_free() -> None:
    first = look(2, 20, 3, True)
    free = look(2, 20, 3, False, first.trend, now=103.0)
    assert free.trend.waiting_since is None
    assert look(2, 20, 3, True, free.trend, now=106.0).wanted == 2


# Fewer


def test_a_light_load_must_last_for_a_cooldown_before_a_worker_is_retired() -> None:
    first = look(3, demand=0)
    assert (first.wanted, first.trend.light_since) == (3, 100.0)
    assert look(3, 0, trend=first.trend, now=109.9).wanted == 3
    step = look(3, 0, trend=first.trend, now=110.0)
    assert (step.wanted, step.why) == (2, "light load: 0 jobs")
    # And again before the next one stops.
    assert look(2, 0, trend=step.trend, now=119.9).wanted == 2
    assert look(2, 0, trend=step.trend, now=120.0).wanted == 1


def test_a_load_is_light_if_the_remaining_workers_have_room() -> None:
    assert look(2, demand=7).trend.light_since == 100.0
    assert look(2, demand=8).trend.light_since is None


def test_a_short_load_restarts_the_cooldown() -> None:
    first = look(3, demand=0)
    busy = look(3, demand=25, trend=first.trend, now=105.0)
    assert busy.trend.light_since is None
    quiet = look(3, demand=0, trend=busy.trend, now=109.0)
    assert look(3, 0, trend=quiet.trend, now=112.0).wanted == 3


def test_the_least_number_stays_however_long_nothing_is_to_be_done() -> None:
    step = look(1, demand=0)
    assert step.trend.light_since is None
    assert look(1, 0, trend=step.trend, now=10**6).wanted == 1


# Bounds


@pytest.mark.parametrize(("wanted", "least", "most", "then"), [(1, 3, 5, 3), (9, 1, 4, 4)])
def test_new_bounds_apply_at_the_next_check(wanted: int, least: int, most: int, then: int) -> None:
    settings = replace(SETTINGS, min_workers=least, max_workers=most)
    step = look(wanted, demand=10 * wanted, settings=settings)
    assert (step.wanted, step.why) == (then, f"the bounds are {least} to {most}")


def test_the_wanted_worker_count_of_an_external_farm_follows_the_load() -> None:
    assert [wanted_for(SETTINGS, demand) for demand in (0, 1, 10, 11, 95, 10**6)] == [
        1, 1, 1, 2, 10, 10,
    ]  # fmt: skip


# The load


def test_the_runnable_count_is_limited_by_the_cap_of_its_pool() -> None:
    assert runnable(3, 100, None, paused=False) == 103
    assert runnable(3, 100, 5, paused=False) == 5
    assert runnable(3, 1, 5, paused=False) == 4


def test_running_jobs_count_even_above_a_lowered_cap() -> None:
    assert runnable(8, 100, 5, paused=False) == 8


def test_waiting_jobs_of_a_paused_pool_start_no_worker() -> None:
    assert runnable(3, 100, None, paused=True) == 3


# Which worker stops


def test_the_least_busy_and_then_the_youngest_workers_are_retired_first() -> None:
    workers = [("old", 0), ("busy", 9), ("young", 0), ("half", 4)]
    assert to_retire(workers, 1) == ["young"]
    assert to_retire(workers, 3) == ["young", "old", "half"]
    assert to_retire(workers, 0) == []


# How many processes


FOUR = FarmSettings(min_workers=1, max_workers=4)


@pytest.mark.parametrize(
    ("wanted", "now", "then"),
    [
        (3, Processes(1), Plan(start=2)),
        (2, Processes(4), Plan(stop=2)),
        (4, Processes(4, leaving=1), Plan()),
        # A replacement is started beside the worker it replaces.
        (4, Processes(3, outgoing=1), Plan(start=1)),
        (4, Processes(3, leaving=1), Plan(start=1)),
        # Leaving workers take the places of missing ones.
        (4, Processes(3, outgoing=1, leaving=1), Plan(held=1)),
        (4, Processes(1, leaving=3), Plan(start=1, held=2)),
        (4, Processes(0, leaving=4), Plan(start=1, held=3)),
        # More than allowed, after the maximum was lowered.
        (4, Processes(1, leaving=9), Plan(held=3)),
    ],
)
def test_processes_are_started_up_to_the_maximum_and_the_surge(
    wanted: int, now: Processes, then: Plan
) -> None:
    assert plan(FOUR, wanted, now) == then


def test_without_a_surge_a_worker_ends_before_its_replacement_starts() -> None:
    settings = replace(FOUR, surge=0)
    assert plan(settings, 4, Processes(3, outgoing=1)) == Plan(held=1, retire_first=True)
    assert plan(settings, 4, Processes(3, leaving=1)) == Plan(held=1)
    assert plan(settings, 4, Processes(3)) == Plan(start=1)
    # Below the maximum there is room for both.
    assert plan(settings, 3, Processes(2, outgoing=1)) == Plan(start=1)


def test_a_larger_surge_replaces_several_at_once() -> None:
    assert plan(replace(FOUR, surge=3), 4, Processes(0, leaving=4)) == Plan(start=3, held=1)


def test_the_reason_why_workers_are_not_started_yet_is_reported() -> None:
    assert held_text(4, 1, 1, 1) == (
        "1 worker waits to start: at most 5 processes at once (maximum 4 + surge 1), "
        "1 of them is leaving"
    )
    assert held_text(4, 0, 2, 3).startswith("2 workers wait to start: at most 4 processes at once")


# Pools whose cap keeps jobs waiting


def test_a_pool_behind_its_cap_is_reported_once_until_it_has_been_well_for_long() -> None:
    watch = CapWatch()
    assert watch.look(["chat"]) == []
    assert watch.look(["chat"]) == ["chat"]
    assert [watch.look(["chat"]) for _ in range(50)] == [[]] * 50
    for _ in range(CALM_LOOKS - 1):
        watch.look([])
    assert (watch.look(["chat"]), watch.look(["chat"])) == ([], [])
    for _ in range(CALM_LOOKS):
        watch.look([])
    assert (watch.look(["chat"]), watch.look(["chat"])) == ([], ["chat"])


def test_a_single_check_at_a_full_cap_is_not_an_incident() -> None:
    watch = CapWatch()
    assert [watch.look(["chat"] if number % 2 else []) for number in range(20)] == [[]] * 20


def test_a_check_while_all_workers_are_busy_resets_the_count() -> None:
    watch = CapWatch()
    assert watch.look(["chat"]) == []
    assert [watch.look(["chat"], are_free=False) for _ in range(5)] == [[]] * 5
    assert watch.look(["chat"]) == []
    assert watch.look(["chat"]) == ["chat"]


def test_each_pool_has_an_incident_of_its_own() -> None:
    watch = CapWatch()
    watch.look(["a"])
    assert watch.look(["a", "b"]) == ["a"]
    assert watch.look(["a", "b"]) == ["b"]
