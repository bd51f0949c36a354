"""The rows of the fault table, played short: real processes, killed, poisoned, stopped in order.

The full table, with the values that need their time, is played by `python -m tests.faults`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.checker import Verdict
from tests.faults.planted import PLANTED
from tests.faults.row_clock import clock
from tests.faults.row_crowd import crowd
from tests.faults.row_drain import drain
from tests.faults.row_fence import fence
from tests.faults.row_kills import kills, restart
from tests.faults.row_planted import SHORT as SHORT_ROWS
from tests.faults.row_planted import find
from tests.faults.row_poison import poison
from tests.faults.rows import Settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="looks for strays there"),
]

SHORT = Settings(seed=7, kills=10, jobs=200, say=print)


def expect(verdict: Verdict, **figures: float) -> None:
    assert not verdict.faults, "\n".join(verdict.faults)
    assert {name: verdict.figures[name] for name in figures} == figures


def test_a_process_killed_ten_times_loses_nothing_and_repeats_only_what_it_ran(
    tmp_path: Path,
) -> None:
    expect(kills(tmp_path, SHORT), kills=10, lost=0, unexpected=0, duplicated=0)


def test_a_process_that_starts_again_takes_its_leases_back_before_it_claims(
    tmp_path: Path,
) -> None:
    expect(restart(tmp_path, SHORT), recovered=10)


def test_three_processes_on_one_file_share_the_work_its_caps_and_its_turns(tmp_path: Path) -> None:
    expect(crowd(tmp_path, SHORT), duplicated=0, recovered=0)


def test_poison_ends_dead_and_takes_no_neighbour_along(tmp_path: Path) -> None:
    expect(poison(tmp_path, SHORT), dead=3, lost=0)


def test_an_orderly_stop_charges_no_attempt_and_does_nothing_twice(tmp_path: Path) -> None:
    expect(drain(tmp_path, SHORT), duplicated=0, recovered=0)


def test_a_worker_that_was_given_up_cannot_write_over_the_one_that_took_over(
    tmp_path: Path,
) -> None:
    expect(fence(tmp_path, SHORT), late_results=4, recovered=4, duplicated=0)


def test_a_moved_wall_clock_moves_no_lease_and_no_delay_only_appointments(tmp_path: Path) -> None:
    expect(clock(tmp_path, SHORT), duplicated=0, recovered=0)


@pytest.mark.parametrize("bug", ["starts-without-looking", "counts-late-results"])
def test_a_bug_planted_on_purpose_is_found(tmp_path: Path, bug: str) -> None:
    assert find(tmp_path / bug, SHORT, bug)


def test_every_planted_bug_has_a_row_that_is_played_short() -> None:
    assert {row for _, row, _ in PLANTED.values()} <= SHORT_ROWS.keys()
