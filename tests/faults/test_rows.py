"""The rows of the fault table, played short: real processes and servers, killed, cut off, poisoned.

The full table, with the values that need their time, is played by `python -m tests.faults`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.extent import times
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin, until
from tests.faults.ground import POSTGRES, SQLITE, Ground, Skipped, laid
from tests.faults.load import Item, Plan
from tests.faults.planted import PLANTED
from tests.faults.row_clock import clock
from tests.faults.row_crowd import crowd
from tests.faults.row_drain import drain
from tests.faults.row_farm import farm_crash, farm_supervisor, farm_workers
from tests.faults.row_farm_jobs import farm_blocked, farm_poison
from tests.faults.row_farm_stop import farm_rolling, farm_term, farm_two
from tests.faults.row_fence import fence
from tests.faults.row_garbled import garbled
from tests.faults.row_inside import blocked, descriptors
from tests.faults.row_kills import kills, restart
from tests.faults.row_network import cut_commits
from tests.faults.row_planted import SHORT as SHORT_ROWS
from tests.faults.row_planted import find
from tests.faults.row_poison import poison
from tests.faults.row_server import absent, outages
from tests.faults.row_services import play as share_store
from tests.faults.row_services import services
from tests.faults.row_tools import tools
from tests.faults.rows import Settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="looks for strays there"),
]

SHORT = Settings(seed=7, kills=10, jobs=times(100, 200), longest=0.4, pace=0.5, say=print)

on_both = pytest.mark.parametrize(
    "ground", [SQLITE, pytest.param(POSTGRES, marks=pytest.mark.full)], indirect=True
)
# Also covered by tests/system/test_farm_*.py and test_crashing_agent.py.
in_full = pytest.mark.full
on_sqlite = pytest.mark.parametrize("ground", [SQLITE], indirect=True)
on_postgres = pytest.mark.parametrize("ground", [POSTGRES], indirect=True)


@pytest.fixture
def ground(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ground]:
    copying = request.getfixturevalue("copying_binaries") if request.param == POSTGRES else None
    with to_play_on(tmp_path, request.param, programs=copying) as made:
        yield made


@contextmanager
def to_play_on(
    folder: Path, store: str, moves_clock: bool = False, programs: Path | None = None
) -> Iterator[Ground]:
    """Provide a store; a missing one is skipped, in CI that is a failure."""
    try:
        with laid(folder, store, moves_clock, programs) as made:
            yield made
    except Skipped as reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"NOT TESTED: {reason}")


def expect(verdict: Verdict, **figures: float) -> None:
    assert not verdict.faults, "\n".join(verdict.faults)
    assert {name: verdict.figures[name] for name in figures} == figures


@on_sqlite
def test_a_process_killed_ten_times_loses_no_job_and_repeats_only_running_ones(
    ground: Ground,
) -> None:
    expect(kills(ground, SHORT), kills=10, lost=0, unexpected=0, duplicated=0)


@on_both
def test_a_restarted_process_reclaims_its_leases_before_it_claims(
    ground: Ground,
) -> None:
    expect(restart(ground, SHORT), recovered=10)


@on_both
def test_four_processes_on_one_store_share_the_work_its_caps_and_its_turns(ground: Ground) -> None:
    expect(crowd(ground, SHORT), duplicated=0, recovered=0, processes=4)


@on_sqlite
def test_a_poison_job_ends_dead_and_no_neighbour_fails(ground: Ground) -> None:
    expect(poison(ground, SHORT), dead=3, lost=0)


@on_sqlite
def test_an_orderly_stop_charges_no_attempt_and_does_nothing_twice(ground: Ground) -> None:
    expect(drain(ground, SHORT), duplicated=0, recovered=0)


@on_both
def test_a_worker_with_an_expired_lease_cannot_overwrite_its_successor(
    ground: Ground,
) -> None:
    expect(fence(ground, SHORT), late_results=4, recovered=4, duplicated=0)


@in_full
@on_both
def test_a_tool_that_must_happen_once_does_so_whenever_its_process_is_killed(
    ground: Ground,
) -> None:
    expect(tools(ground, replace(SHORT, kills=3)), accepted=18, duplicated=0)


@pytest.mark.parametrize("store", [SQLITE, pytest.param(POSTGRES, marks=pytest.mark.full)])
def test_a_moved_wall_clock_moves_no_lease_and_no_delay_only_appointments(
    tmp_path: Path, store: str
) -> None:
    with to_play_on(tmp_path, store, moves_clock=True) as ground:
        expect(clock(ground, SHORT), duplicated=0, recovered=0)


@on_postgres
def test_a_server_that_crashes_under_load_keeps_what_was_accepted(ground: Ground) -> None:
    expect(outages("immediate")(ground, SHORT), lost=0, duplicated=0, recovered=0, outages=2)


@on_postgres
def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_repeated(ground: Ground) -> None:
    expect(cut_commits(ground, SHORT), lost=0, unexpected=0, duplicated=0, recovered=0)


@on_postgres
def test_a_process_started_before_its_server_connects_when_the_server_starts(
    ground: Ground,
) -> None:
    expect(absent(ground, SHORT), accepted=60, lost=0, duplicated=0)


@on_both
def test_random_bytes_as_job_requests_and_notifications_end_dead_without_harm(
    ground: Ground,
) -> None:
    expect(garbled(ground, SHORT), accepted=150, garbled=50, duplicated=0)


@on_sqlite
def test_a_job_that_blocks_its_loop_is_named_and_keeps_its_lease(ground: Ground) -> None:
    expect(blocked(ground, SHORT), lost=0, duplicated=0, recovered=0)


@on_both
def test_a_process_out_of_file_descriptors_reports_it_and_recovers(ground: Ground) -> None:
    expect(descriptors(ground, SHORT), accepted=60, lost=0, duplicated=0)


@in_full
@on_sqlite
def test_a_farm_replaces_workers_that_were_killed_and_loses_none_of_their_jobs(
    ground: Ground,
) -> None:
    expect(farm_workers(ground, SHORT), kills=2, lost=0, unexpected=0, duplicated=0)


@in_full
@on_postgres
def test_workers_without_a_supervisor_hand_their_jobs_back_and_exit(ground: Ground) -> None:
    expect(farm_supervisor(ground, SHORT), lost=0, duplicated=0, crashes=0)


@in_full
@on_sqlite
def test_a_stopped_farm_charges_no_attempt_and_a_second_signal_ends_it_at_once(
    ground: Ground,
) -> None:
    expect(farm_term(ground, SHORT), lost=0, duplicated=0, recovered=0)


@in_full
@on_sqlite
def test_workers_that_are_replaced_under_load_do_everything_once(ground: Ground) -> None:
    verdict = farm_rolling(ground, SHORT, seconds=4.0)
    expect(verdict, accepted=5 * SHORT.jobs, lost=0, duplicated=0, recovered=0, workers=6)


@in_full
@on_sqlite
def test_stopping_a_farm_leaves_another_farm_running(ground: Ground) -> None:
    expect(farm_two(ground, SHORT), lost=0, duplicated=0, crashes=0)


@in_full
@on_sqlite
def test_a_poison_job_in_a_farm_ends_dead_and_no_neighbour_fails(ground: Ground) -> None:
    expect(farm_poison(ground, SHORT, good=30, poisons=2), accepted=32, dead=2, lost=0)


@in_full
@on_sqlite
def test_a_job_that_blocks_its_worker_is_named_and_harms_no_neighbour(ground: Ground) -> None:
    expect(farm_blocked(ground, SHORT), lost=0, duplicated=0, recovered=0)


@on_sqlite
def test_a_worker_killed_with_all_its_slots_busy_loses_no_job(ground: Ground) -> None:
    expect(farm_crash(ground, SHORT, many=20), lost=0, duplicated=0, recovered=20)


@in_full
@on_postgres
def test_a_worker_killed_with_200_jobs_running_loses_none(ground: Ground) -> None:
    expect(farm_crash(ground, SHORT), lost=0, duplicated=0, recovered=200)


@on_sqlite
@pytest.mark.parametrize("bug", ["starts-without-looking", "counts-late-results"])
def test_a_bug_planted_on_purpose_is_found(ground: Ground, bug: str) -> None:
    assert find(ground, SHORT, bug)


@on_sqlite
def test_a_process_that_exits_by_itself_is_reported(ground: Ground) -> None:
    with begin(ground, Plan((Item(0),))) as crew:
        broken = crew.start("broken", slots=-1)
        until("it has ended", lambda: not broken.alive)
        crew.start("sound", lanes=[0])
        crew.finish()
    (fault,) = check(ground.folder).faults
    assert fault.startswith("died: broken-0 ended by itself with 1: ")
    assert "slots=-1 is not allowed" in fault


def test_every_planted_bug_has_a_row_that_is_played_short() -> None:
    assert {bug.row for bug in PLANTED.values()} <= SHORT_ROWS.keys()


@on_sqlite
def test_a_service_that_is_killed_and_one_that_is_restarted_share_a_pool_and_lose_no_job(
    ground: Ground,
) -> None:
    verdict = share_store(ground, replace(SHORT, jobs=40), {"a": "shared", "b": "shared"})
    assert verdict.faults == []
    assert (verdict.figures["accepted"], verdict.figures["dead"]) == (400, 0)


@in_full
@on_both
def test_two_services_share_a_store_and_no_job_is_dead(ground: Ground) -> None:
    verdict = services(ground, replace(SHORT, jobs=40))
    assert verdict.faults == []
    assert (verdict.figures["accepted_one"], verdict.figures["dead_one"]) == (400, 0)
    assert (verdict.figures["accepted_two"], verdict.figures["dead_two"]) == (400, 0)
