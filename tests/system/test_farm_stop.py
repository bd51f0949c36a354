"""A farm that is stopped lets its jobs finish within the grace, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time

import pytest

from poolhand.rules.job import Status
from tests.system.farmhouse import Farm, Yard, all_gone, children_of, until

pytestmark = pytest.mark.slow
LATE = 10.0  # seconds that a busy machine may add


def expect_nothing_left(yard: Yard, farm: Farm, *others: int) -> None:
    assert all_gone(farm.pids)
    # The farm does not wait for processes that its workers started; they end by themselves.
    until(lambda: all_gone(others), "end of what its workers had started", 5.0)
    assert yard.farms() == []
    assert farm.lines("farm stopped") != []


def insist(farm: Farm) -> None:
    """Send signals one after the other until the farm stops at once."""

    def look() -> bool:
        farm.signal(signal.SIGTERM)
        return bool(farm.lines("farm stopping", grace="^0$"))

    until(look, "fast stop")


def test_a_stop_finishes_running_jobs_and_starts_no_new_ones(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--min", "2", "--max", "2", "-c", "2") as farm:
        farm.until_ready(2)
        yard.submit("hold", *[str(yard.gate)] * 6)
        yard.until_told("begin", count=4)
        farm.signal(signal.SIGTERM)
        farm.until_line("process leaving", 2, why="the farm stops")
        yard.open_gate()
        assert farm.ended() == 0
        expect_nothing_left(yard, farm)
        assert yard.counts() == {Status.COMPLETED: 4, Status.QUEUED: 2}
        assert {line["handed_back"] for line in farm.lines("process ended")} == {"0"}
        assert farm.lines("farm trouble") == []


def test_a_second_signal_hands_running_jobs_back_uncharged(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        ids = yard.submit("hold", *[str(yard.gate)] * 3)
        ids += yard.submit("compute", str(yard.gate))
        ids += yard.submit("cling", str(yard.gate))
        yard.until_told("begin", count=5)
        children = children_of(pid)
        assert children
        farm.signal(signal.SIGTERM)
        farm.until_line("process leaving")
        insist(farm)
        told_at = time.monotonic()
        assert farm.ended() == 0
        assert time.monotonic() - told_at < LATE
        expect_nothing_left(yard, farm, *children)
    with yard.running("--max", "1") as other:
        yard.open_gate()
        yard.until_done(5)
        assert {(yard.job(id).attempts, yard.job(id).crashes) for id in ids} == {(1, 0)}
        assert other.stop() == 0


def test_ctrl_c_in_a_terminal_reaches_only_the_supervisor(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        yard.submit("hold", str(yard.gate))
        yard.until_told("begin")
        os.kill(pid, signal.SIGINT)
        os.killpg(farm.pid, signal.SIGINT)
        farm.until_line("process leaving", why="the farm stops")
        yard.open_gate()
        assert farm.ended() == 0
        expect_nothing_left(yard, farm)
        assert yard.counts() == {Status.COMPLETED: 1}


def test_a_stop_waits_for_no_job_longer_than_its_soft_timeout(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        ids = yard.submit("cling", str(yard.gate), soft_timeout=0.5, timeout=300)
        ids += yard.submit("hold", str(yard.gate), soft_timeout=1.0, timeout=300)
        yard.until_told("begin", count=2)
        farm.signal(signal.SIGTERM)
        told_at = time.monotonic()
        assert farm.ended() == 0
        assert time.monotonic() - told_at < LATE
        expect_nothing_left(yard, farm)


def test_running_jobs_are_handed_back_at_the_end_of_the_grace_period(yard: Yard) -> None:
    with yard.running("--max", "1", "--grace", "0.5") as farm:
        farm.until_ready()
        ids = yard.submit("hold", str(yard.gate))
        yard.until_told("begin")
        farm.signal(signal.SIGTERM)
        told_at = time.monotonic()
        assert farm.ended() == 0
        assert 0.5 < time.monotonic() - told_at < LATE
        expect_nothing_left(yard, farm)
        assert farm.lines("process ended")[0]["handed_back"] == "1"
    with yard.running("--max", "1") as other:
        yard.open_gate()
        yard.until_done(1)
        assert yard.job(ids[0]).attempts == 1
        assert other.stop() == 0


def test_after_a_drain_the_first_signal_still_gives_the_grace(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        yard.submit("hold", str(yard.gate))
        yard.until_told("begin")
        told = farm.command("workers", "drain", farm.id, "--yes", "--by", "ann")
        assert told.returncode == 0, told.stderr
        farm.signal(signal.SIGTERM)
        farm.until_line("farm stopping", grace="60")
        yard.open_gate()
        assert farm.ended() == 0, farm.text
        assert yard.counts() == {Status.COMPLETED: 1}


def test_a_worker_that_is_sent_sigterm_finishes_and_is_replaced(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        yard.submit("hold", str(yard.gate))
        yard.until_told("begin")
        os.kill(pid, signal.SIGTERM)
        farm.until_line("process leaving", why="SIGTERM")
        farm.until_ready(2)
        yard.open_gate()
        yard.until_done(1)
        until(lambda: all_gone([pid]), "end of it")
        assert farm.lines("farm trouble") == []
        assert farm.stop() == 0
