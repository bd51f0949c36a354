"""A farm never has more worker processes than its maximum and its surge, leaving ones included."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.farmhouse import Farm, Yard, all_gone, children_of, until

pytestmark = pytest.mark.slow


def most_at_once(farm: Farm) -> int:
    """Return the largest number of worker processes at once, from the log of the farm."""
    now = most = 0
    for line in farm.lines():
        if line.title == "process started":
            now += 1
        elif line.title == "process ended" or "(process " in line["text"]:
            now -= 1
        most = max(most, now)
    return most


def steer(farm: Farm, *words: str) -> None:
    done = farm.command("workers", *words, "--by", "ann")
    assert done.returncode == 0, done.stderr


def until_held(yard: Yard, held: int) -> None:
    until(lambda: [one for one in yard.farms() if one.held == held], f"{held} held back")


def test_a_rolling_restart_waits_for_workers_that_finish_long_jobs(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--min", "2", "--max", "2", "-c", "1") as farm:
        before = farm.until_ready(2)
        yard.submit("hold", *[str(yard.gate)] * 2)
        yard.until_told("begin", count=2)
        steer(farm, "restart", farm.id)
        why = "1 worker waits to start: at most 3 processes at once .maximum 2 . surge 1., 1 of "
        farm.until_line("farm waiting", missing="1", why=why)
        until_held(yard, 1)
        listed = farm.command("workers", "list")
        assert "1 worker waits to start: at most 3 processes at once" in listed.stderr
        leaving = [line for line in listed.stdout.splitlines() if " leaving " in line]
        assert len(leaving) == 1
        assert len(children_of(farm.pid)) == 3
        yard.open_gate()
        farm.until_ready(4)
        until(lambda: all_gone(before), "end of those before")
        until_held(yard, 0)
        assert farm.stop() == 0
    assert most_at_once(farm) == 3
    begun = [words[3] for words in yard.told("begin")]
    assert len(begun) == len(set(begun)) == 2


def test_without_a_surge_each_worker_ends_before_its_replacement_starts(yard: Yard) -> None:
    with yard.running("--min", "2", "--max", "2", "-c", "1", "--surge", "0") as farm:
        farm.until_ready(2)
        yard.submit("hold", *[str(yard.gate)] * 2)
        yard.until_told("begin", count=2)
        steer(farm, "restart", farm.id)
        farm.until_line("process leaving", why="its process is needed for a new worker")
        until_held(yard, 1)
        assert len(children_of(farm.pid)) == 2
        yard.open_gate()
        farm.until_ready(4)
        farm.until_line("process ended", 2)
        # One after the other: the first replacement is ready before the second worker leaves.
        told = [line.title for line in farm.lines("process") if "started" not in line.title]
        assert told[2:] == ["process leaving", "process ended", "process ready"] * 2
        assert farm.stop() == 0
    assert most_at_once(farm) == 2


def test_a_scale_up_waits_for_workers_that_are_still_leaving(yard: Yard) -> None:
    with yard.running("--min", "2", "--max", "2", "-c", "1", "--surge", "0") as farm:
        farm.until_ready(2)
        yard.submit("hold", *[str(yard.gate)] * 2)
        yard.until_told("begin", count=2)
        steer(farm, "bounds", farm.id, "--min", "1", "--max", "1")
        farm.until_line("process leaving", why="fewer are enough")
        steer(farm, "bounds", farm.id, "--min", "2", "--max", "2")
        farm.until_line("farm waiting", missing="1")
        assert len(farm.pids) == 2
        yard.open_gate()
        farm.until_ready(3)
        assert farm.stop() == 0
    assert most_at_once(farm) == 2


def test_recycled_and_hung_workers_keep_to_the_limit_as_well(yard: Yard) -> None:
    settings = {"max_jobs_per_worker": 2, "heartbeat_interval_s": 0.2}
    with yard.running("--max", "1", "-c", "1", "--surge", "0", **settings) as farm:
        farm.until_ready()
        yard.submit("note", *range(4))
        yard.until_done(4)
        farm.until_ready(3)
        os.kill(farm.pids[-1], signal.SIGSTOP)
        farm.until_line("farm trouble", text="is replaced: silent for")
        farm.until_ready(4)
        assert farm.stop() == 0
    assert most_at_once(farm) == 1
