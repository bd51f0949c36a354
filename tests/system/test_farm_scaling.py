"""A farm has as many workers as its load needs, and scaling interrupts no job."""

from __future__ import annotations

from itertools import pairwise

import pytest

from poolhand.rules.job import Status
from tests.system.farmhouse import Farm, Yard, all_gone, until

pytestmark = pytest.mark.slow
EARLY = 0.03  # seconds by which a line may come early: clocks are rounded


def steps(farm: Farm) -> list[tuple[int, int]]:
    return [(int(line["before"]), int(line["after"])) for line in farm.lines("farm scaled")]


def expect_nothing_cut(yard: Yard, farm: Farm, jobs: int) -> None:
    """Check that each job ran once and none was handed back."""
    begun = [words[3] for words in yard.told("begin")]
    assert len(begun) == len(set(begun)) == jobs
    assert {line["handed_back"] for line in farm.lines("process ended")} == {"0"}


def test_a_backlog_starts_more_workers_and_idle_workers_are_retired(any_yard: Yard) -> None:
    yard = any_yard
    yard.submit("hold", *[str(yard.gate)] * 100)
    with yard.running("--min", "1", "--max", "4", scale_down_cooldown_s=0.4) as farm:
        farm.until_ready(4)
        yard.until_told("begin", count=40)
        assert steps(farm) == [(1, 3), (3, 4)]
        first, second = farm.lines("farm scaled")
        assert second.at - first.at > 0.1 - EARLY
        yard.open_gate()
        yard.until_done(100)
        farm.until_line("farm scaled", 5)
        assert steps(farm)[2:] == [(4, 3), (3, 2), (2, 1)]
        for one, next_one in pairwise(farm.lines("farm scaled")[2:]):
            assert next_one.at - one.at > 0.4 - EARLY
        farm.until_line("process ended", 3)
        assert farm.stop() == 0
    expect_nothing_cut(yard, farm, 100)


def test_a_surplus_worker_finishes_its_running_jobs(yard: Yard) -> None:
    with yard.running("--min", "2", "--max", "2", "-c", "1") as farm:
        farm.until_ready(2)
        yard.submit("hold", *[str(yard.gate)] * 2)
        yard.until_told("begin", count=2)
        told = farm.command("workers", "bounds", farm.id, "--min", "1", "--max", "1", "--by", "ann")
        assert told.returncode == 0, told.stderr
        farm.until_line("process leaving", why="fewer are enough")
        assert farm.lines("process ended") == []
        yard.open_gate()
        farm.until_line("process ended")
        yard.until_done(2)
        assert farm.stop() == 0
    expect_nothing_cut(yard, farm, 2)


def test_a_farm_without_workers_starts_one_on_demand_and_scales_back_to_zero(yard: Yard) -> None:
    with yard.running("--min", "0", scale_up_batch_size=1) as farm:
        assert until(yard.farms, "farm")[0].workers == ()
        yard.submit("note", 1)
        yard.until_done(1)
        farm.until_line("process ended")
        assert steps(farm) == [(0, 1), (1, 0)]
        assert farm.stop() == 0
        assert all_gone(farm.pids)


def test_workers_in_warm_up_do_not_count_as_busy(yard: Yard) -> None:
    yard.submit("note", 1)
    with yard.running(farm_warm_up="async", scale_up_wait_s=0) as farm:
        yard.until_told("warming")
        # During this command the load is checked many times.
        assert farm.command("workers", "snapshot", farm.id).returncode == 0
        assert steps(farm) == []
        yard.open_gate()
        yard.until_done(1)


def test_only_the_pools_that_are_named_are_run_and_counted(yard: Yard) -> None:
    yard.submit("note", *range(50))
    yard.submit("elsewhere", *range(5))
    with yard.running("--pool", "other", "-c", "2") as farm:
        until(
            lambda: [one for one in yard.farms() if (one.completed, one.demand) == (5, 0)],
            "farm that has done all it is for",
        )
        assert farm.stop() == 0
        assert max(after for _, after in [(0, 1), *steps(farm)]) <= 3
    assert yard.counts() == {Status.COMPLETED: 5, Status.QUEUED: 50}


def test_an_external_farm_keeps_the_minimum_and_publishes_the_wanted_worker_count(
    yard: Yard,
) -> None:
    yard.submit("hold", *[str(yard.gate)] * 35)
    with yard.running("--external", "--min", "1") as farm:
        yard.until_told("begin", count=10)
        until(lambda: [one for one in yard.farms() if one.wanted == 4], "4 workers wanted")
        told = farm.command("workers", "bounds", farm.id, "--min", "2", "--by", "ann")
        assert told.returncode == 0, told.stderr
        farm.until_ready(2)
        yard.open_gate()
        yard.until_done(35)
        until(lambda: [one for one in yard.farms() if one.wanted == 2], "2 workers wanted")
        assert len(farm.pids) == 2
        assert farm.stop() == 0


def test_a_profile_for_language_models_runs_one_job_in_a_worker(yard: Yard) -> None:
    yard.submit("hold", *[str(yard.gate)] * 2)
    with yard.running("--profile", "llm", "--max", "2", "--min", "2") as farm:
        yard.until_told("begin", count=2)
        assert len({pid for _, pid, *_ in yard.told("begin")}) == 2
        yard.open_gate()
        assert farm.stop() == 0


def test_two_farms_share_a_load_and_the_end_of_one_leaves_the_other(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--max", "1") as one, yard.running("--max", "1") as other:
        one.until_ready()
        other.until_ready()
        yard.submit("hold", *[str(yard.gate)] * 20)
        yard.until_told("begin", count=20)
        assert {int(pid) for _, pid, *_ in yard.told("begin")} == {*one.pids, *other.pids}
        assert {record.id for record in yard.farms()} == {one.id, other.id}
        yard.open_gate()
        assert one.stop() == 0, one.log.read_text(errors="replace")[-4000:]
        yard.submit("note", 1)
        yard.until_done(21)
        assert other.lines("process leaving") == []
        assert [record.id for record in yard.farms()] == [other.id]
        assert other.stop() == 0
