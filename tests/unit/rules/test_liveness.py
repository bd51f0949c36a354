"""Liveness: which workers are hung, and how long to wait before a restart."""

from __future__ import annotations

import pytest

from poolhand.rules.scaling.worker_count import (
    LONGEST_PAUSE,
    MANY_DEATHS,
    MANY_PAUSE,
    Deaths,
    FarmSettings,
    LivenessFacts,
    Verdict,
    came_up,
    died,
    is_silent,
    judge,
    may_start_at,
)

SETTINGS = FarmSettings(heartbeat_interval_s=1.0, loop_blocked_limit_s=120.0)
SLOW = FarmSettings(heartbeat_interval_s=5.0)


def verdict(facts: LivenessFacts, now: float, settings: FarmSettings = SETTINGS) -> Verdict:
    return judge(facts, settings, now)[0]


# Hung workers


def test_a_worker_that_sends_heartbeats_is_fine() -> None:
    assert judge(LivenessFacts(0.0, 100.0, None, 0.0), SETTINGS, 106.9) == (Verdict.FINE, "")


def test_a_worker_silent_for_seven_intervals_is_terminated_and_killed_two_later() -> None:
    silent = LivenessFacts(0.0, 100.0, None, 0.0)
    assert judge(silent, SETTINGS, 107.0) == (Verdict.TERMINATE, "silent for 7.0 s")
    told = LivenessFacts(0.0, 100.0, 107.0, 0.0)
    assert verdict(told, 108.9) is Verdict.FINE
    assert verdict(told, 109.0) is Verdict.KILL
    assert verdict(told, 200.0) is Verdict.KILL


def test_a_terminated_worker_is_killed_even_if_it_sends_heartbeats_again() -> None:
    assert verdict(LivenessFacts(0.0, 108.9, 107.0, 0.0), 109.0) is Verdict.KILL


@pytest.mark.parametrize(("settings", "within"), [(SETTINGS, 15.0), (SLOW, 35.0)])
def test_a_process_that_sends_nothing_after_its_start_is_replaced(
    settings: FarmSettings, within: float
) -> None:
    new = LivenessFacts(100.0, None, None, 0.0)
    assert verdict(new, 100.0 + within - 0.1, settings) is Verdict.FINE
    assert judge(new, settings, 100.0 + within) == (
        Verdict.TERMINATE,
        "it did not report after its start",
    )


def test_a_worker_whose_loop_is_blocked_too_long_is_replaced_despite_heartbeats() -> None:
    assert verdict(LivenessFacts(0.0, 100.0, None, 119.9), 100.5) is Verdict.FINE
    hung = judge(LivenessFacts(0.0, 100.0, None, 120.0), SETTINGS, 100.5)
    assert hung == (Verdict.TERMINATE, "its event loop has been blocked for 120 s")


def test_a_supervisor_is_silent_after_seven_intervals() -> None:
    assert not is_silent(100.0, SETTINGS, 106.9)
    assert is_silent(100.0, SETTINGS, 107.0)
    assert not is_silent(100.0, SLOW, 134.9)


# Delay before a restart


def test_the_first_may_start_at_once() -> None:
    assert may_start_at(Deaths()) == 0.0


def test_while_no_worker_becomes_ready_each_restart_delay_doubles_up_to_a_limit() -> None:
    deaths, now, pauses = Deaths(), 100.0, []
    for _ in range(10):
        deaths = died(deaths, False, now)
        pauses.append(may_start_at(deaths) - now)
        now = may_start_at(deaths) + 1.0
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_PAUSE


def test_thousands_of_deaths_do_not_overflow_the_delay() -> None:
    deaths = Deaths()
    for number in range(5000):
        deaths = died(deaths, False, 100.0 * number)
    assert may_start_at(deaths) == deaths.last_at + LONGEST_PAUSE


def test_workers_that_die_together_count_as_one_death() -> None:
    deaths = Deaths()
    for now in (100.0, 100.1, 100.2, 100.4):
        deaths = died(deaths, False, now)
    assert may_start_at(deaths) == 100.5
    assert may_start_at(died(deaths, False, 101.0)) == 102.0


def test_a_worker_that_becomes_ready_resets_the_delay() -> None:
    deaths = died(died(Deaths(), False, 100.0), False, 102.0)
    assert may_start_at(came_up(deaths)) == 0.0


def test_a_worker_that_had_been_ready_is_replaced_at_once() -> None:
    assert may_start_at(died(Deaths(), True, 100.0)) == 0.0


def test_many_deaths_within_a_minute_are_followed_with_a_pause() -> None:
    deaths = Deaths()
    for number in range(MANY_DEATHS):
        assert may_start_at(deaths) == 0.0
        deaths = died(came_up(deaths), True, 100.0 + number)
    assert may_start_at(deaths) == deaths.last_at + MANY_PAUSE


def test_deaths_that_are_far_apart_cause_no_restart_delay() -> None:
    deaths = Deaths()
    for number in range(5 * MANY_DEATHS):
        deaths = died(deaths, True, 4.0 * number)
    assert may_start_at(deaths) == 0.0
