"""Jobs that take too long in a farm: asked to stop, stopped, and the effect on other jobs."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from poolhand import Retry
from poolhand.rules.job import Status
from tests.extent import times
from tests.system.farmhouse import Yard, all_gone, children_of, until

pytestmark = pytest.mark.slow
ROUNDS = times(1, 3)  # of workers that are killed


def test_timeouts_of_the_settings_hold_for_jobs_without_any(yard: Yard) -> None:
    with yard.running("--max", "1", soft_timeout_s=0.3, hard_timeout_s=30) as farm:
        farm.until_ready()
        (soft,) = yard.submit("hold", str(yard.gate), retry=Retry(attempts=1))
        yard.until_done(1, Status.FAILED)
        error = yard.job(soft).error
        assert error is not None
        assert "soft" in error.message
        (own,) = yard.submit("nap", 0.6, timeout=20)
        yard.until_done(1)
        assert yard.job(own).attempts == 1
        assert farm.stop() == 0


@pytest.mark.parametrize("task", ["occupy", pytest.param("cling", marks=pytest.mark.full)])
def test_a_job_that_cannot_be_stopped_ends_its_worker_when_the_others_are_done(
    yard: Yard, task: str
) -> None:
    with yard.running("-c", "2", "--max", "1", hard_timeout_s=0.4) as farm:
        (pid,) = farm.until_ready()
        (neighbour,) = yard.submit("hold", str(yard.gate), timeout=60)
        yard.until_told("begin", "hold")
        (late,) = yard.submit(task, str(yard.folder / "never"))
        farm.until_line("process leaving", why="did not stop at its hard timeout")
        yard.until_done(1, Status.FAILED)
        # It claims no more jobs: its replacement runs this one.
        farm.until_ready(2)
        yard.submit("note", 1)
        yard.until_done(1)
        assert yard.told("begin", "note")[0][1] == str(farm.pids[1])
        assert not all_gone([pid])
        yard.open_gate()
        yard.until_done(2)
        until(lambda: all_gone([pid]), "end of the worker")
        assert yard.job(late).dead
        assert (yard.job(neighbour).attempts, yard.job(neighbour).crashes) == (1, 0)
        assert farm.stop() == 0


def test_neighbours_of_an_unstoppable_job_are_handed_back_after_a_limit(yard: Yard) -> None:
    with yard.running("-c", "2", "--max", "1", hard_exit_after_s=0.3) as farm:
        (pid,) = farm.until_ready()
        (neighbour,) = yard.submit("hold", str(yard.gate))
        yard.until_told("begin", "hold")
        again = Retry(attempts=2, first=600)
        (late,) = yard.submit("cling", str(yard.gate), timeout=0.3, retry=again)
        until(lambda: all_gone([pid]), "end of the worker")
        yard.open_gate()
        yard.until_done(1)
        assert (yard.job(neighbour).attempts, yard.job(neighbour).crashes) == (1, 0)
        assert [words[1] for words in yard.told("begin", "hold")] == [str(id) for id in farm.pids]
        assert (yard.job(late).attempts, yard.job(late).status) == (1, Status.SCHEDULED)
        assert farm.stop() == 0


def test_a_process_job_is_killed_without_its_neighbours(yard: Yard) -> None:
    with yard.running("-c", "2", "--max", "1") as farm:
        (pid,) = farm.until_ready()
        yard.submit("hold", str(yard.gate))
        # A short job first: the next one finds a started child and has its whole timeout there.
        yard.submit("compute", str(yard.folder))
        yard.until_done(1)
        yard.submit("compute", str(yard.gate), timeout=1.5)
        (_, child, *_), again = yard.until_told("begin", "compute", count=2)
        assert again[1] == child
        assert int(child) in children_of(pid)
        yard.until_done(1, Status.FAILED)
        until(lambda: all_gone([int(child)]), "end of it")
        yard.open_gate()
        yard.until_done(2)
        assert farm.lines("process leaving") == []
        assert farm.stop() == 0


@pytest.mark.parametrize(("slots", "quota"), [(10, 4), pytest.param(2, 5, marks=pytest.mark.full)])
def test_a_worker_is_replaced_after_exactly_max_jobs_per_worker_jobs(
    yard: Yard, slots: int, quota: int
) -> None:
    yard.submit("note", *range(3 * quota - 1))
    with yard.running("-c", str(slots), "--max", "1", max_jobs_per_worker=quota) as farm:
        yard.until_done(3 * quota - 1)
        farm.until_ready(3)
        ran = [words[1] for words in yard.told("begin")]
        assert [ran.count(str(pid)) for pid in farm.pids] == [quota, quota, quota - 1]
        yard.submit("note", 99)
        farm.until_ready(4)
        assert farm.stop() == 0
        assert {line["handed_back"] for line in farm.lines("process ended")} == {"0"}


def test_a_worker_that_has_too_much_memory_is_replaced(yard: Yard) -> None:
    with yard.running("--max", "1", max_memory_mb_per_worker=120) as farm:
        (pid,) = farm.until_ready()
        yard.submit("hold", str(yard.gate))
        yard.submit("eat", 100)
        farm.until_line("process leaving", why="more than 120 MB")
        farm.until_ready(2)
        assert not all_gone([pid])
        yard.open_gate()
        yard.until_done(2)
        until(lambda: all_gone([pid]), "end of it")
        begun = [words[3] for words in yard.told("begin")]
        assert len(begun) == len(set(begun)) == 2
        assert farm.stop() == 0


def test_a_bound_on_memory_that_no_worker_can_keep_is_reported(yard: Yard) -> None:
    with yard.running("--max", "1", max_memory_mb_per_worker=1) as farm:
        farm.until_line(
            "farm trouble", text="ended without running a job: more than 1 MB of memory"
        )
        assert farm.stop() == 0


def test_memory_limits_process_jobs_and_kills_together_lose_nothing(yard: Yard) -> None:
    flags = ("-c", "2", "--min", "2", "--max", "2")
    with yard.running(*flags, max_memory_mb_per_worker=120) as farm:
        farm.until_ready(2)
        for round_ in range(ROUNDS):
            yard.submit("eat", 100)
            yard.submit("compute", *[str(yard.folder)] * 4, retry=Retry(attempts=9, first=0.1))
            yard.until_told("begin", "compute", count=4 * round_ + 1)
            victim = [pid for pid in farm.pids if not all_gone([pid])][-1]
            os.kill(victim, signal.SIGKILL)
            until(partial(all_gone, [victim]), "end of a worker")
        yard.until_done(5 * ROUNDS)
        assert farm.stop() == 0
    children = [int(words[1]) for words in yard.told("begin", "compute")]
    until(lambda: all_gone(children), "end of the processes of their jobs")
