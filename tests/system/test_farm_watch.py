"""Hung workers are replaced, workers without a supervisor end, and their jobs continue."""

from __future__ import annotations

import os
import signal
import time

import pytest

from poolhand.rules.job import Status
from tests.system.farmhouse import Yard, all_gone, children_of, state_of, until

pytestmark = pytest.mark.slow
INTERVAL = 0.2
LATE = 10.0  # seconds that a busy machine may add


def is_over(pid: int) -> bool:
    """Return whether a process has ended, even if it was not waited for yet."""
    return state_of(pid) in ("", "Z")


def test_a_stopped_worker_is_killed_and_its_jobs_run_again(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--max", "1", heartbeat_interval_s=INTERVAL) as farm:
        (pid,) = farm.until_ready()
        (id,) = yard.submit("hold", str(yard.gate))
        yard.until_told("begin")
        os.kill(pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        until(lambda: is_over(pid), "end of it")
        took = time.monotonic() - stopped_at
        # Its last heartbeat may already be an interval old.
        assert 8 * INTERVAL - 0.05 < took < 9 * INTERVAL + LATE
        (hung,) = farm.until_line("farm trouble", text="is replaced: silent for")
        (dead,) = farm.until_line("farm trouble", text="was killed by SIGKILL")
        assert dead.at - hung.at > 2 * INTERVAL - 0.05
        yard.open_gate()
        yard.until_done(1)
        assert [words[1] for words in yard.told("begin")] == [str(pid) for pid in farm.pids]
        assert yard.job(id).crashes == 1
        assert farm.stop() == 0


def test_a_job_that_blocks_the_loop_is_named_and_its_worker_stays(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        (id,) = yard.submit("block", str(yard.gate))
        trouble = farm.until_line("farm trouble", text="loop blocked")[0]
        assert "farm_app.block" in trouble["text"]
        assert id in trouble["text"] + trouble["job_id"]
        yard.open_gate()
        yard.until_done(1)
        assert farm.stop() == 0
        assert len(farm.pids) == 1


def test_a_worker_that_sends_undecodable_messages_is_replaced(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        yard.submit("babble")
        farm.until_line("farm trouble", text="it sent a message that cannot be decoded")
        yard.until_done(1)
        assert farm.stop() == 0
        assert len(farm.pids) == 2


def test_a_worker_whose_loop_is_blocked_for_too_long_is_replaced(yard: Yard) -> None:
    with yard.running("--max", "1", loop_blocked_limit_s=0.5) as farm:
        farm.until_ready()
        yard.submit("block", str(yard.gate))
        farm.until_line("farm trouble", text="is replaced: its event loop has been blocked")
        until(lambda: is_over(farm.pids[0]), "end of it")
        yard.open_gate()
        yard.until_done(1)
        assert farm.stop() == 0


def test_a_worker_whose_gil_is_held_is_replaced(yard: Yard) -> None:
    with yard.running("--max", "1", heartbeat_interval_s=INTERVAL) as farm:
        farm.until_ready()
        yard.submit("hold_interpreter")
        farm.until_line("farm trouble", text="is replaced: silent for")
        yard.until_done(1)
        assert is_over(farm.pids[0])
        assert farm.stop() == 0


def test_a_killed_worker_is_replaced_and_its_jobs_are_soon_done(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        yard.submit("hold", *[str(yard.gate)] * 10)
        yard.until_told("begin", count=10)
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        yard.open_gate()
        yard.until_done(10)
        assert time.monotonic() - killed_at < LATE
        assert farm.stop() == 0


def test_workers_of_a_suspended_supervisor_leave_and_are_replaced(
    server_yard: Yard,
) -> None:
    yard = server_yard
    with yard.running("--min", "2", "--max", "2", heartbeat_interval_s=INTERVAL) as farm:
        pids = farm.until_ready(2)
        (id,) = yard.submit("nap", 0.5)
        yard.until_told("begin")
        farm.signal(signal.SIGSTOP)
        until(lambda: all(map(is_over, pids)), "end of all")
        # The running job was finished first.
        assert yard.job(id).status is Status.COMPLETED
        farm.signal(signal.SIGCONT)
        farm.until_ready(4)
        yard.submit("note", 1)
        yard.until_done(2)
        assert farm.stop() == 0


def test_workers_of_a_killed_supervisor_exit_and_hand_their_jobs_back(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        ids = yard.submit("hold", str(yard.gate), str(yard.gate))
        process = yard.submit("compute", str(yard.gate))
        yard.until_told("begin", count=3)
        children = children_of(pid)
        assert children
        farm.signal(signal.SIGKILL)
        until(lambda: all(map(is_over, [pid, *children])), "end of its workers")
    assert [yard.job(id).status for id in ids] == [Status.QUEUED] * 2
    with yard.running("--max", "1") as other:
        yard.open_gate()
        yard.until_done(3)
        assert {yard.job(id).attempts for id in [*ids, *process]} == {1}
        assert {yard.job(id).crashes for id in [*ids, *process]} == {0}
        assert other.stop() == 0


def test_a_process_forked_by_a_job_does_not_hide_the_death_of_its_worker(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        yard.submit("keep_company", str(yard.gate))
        ((_, _, company),) = yard.until_told("forked")
        os.kill(pid, signal.SIGKILL)
        farm.until_line("farm trouble", text="was killed by SIGKILL")
        yard.open_gate()
        yard.until_done(1)
        assert state_of(int(company)) != ""
        assert farm.stop() == 0
        assert all_gone(farm.pids)
