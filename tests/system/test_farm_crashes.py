"""Jobs that lose their process, and jobs that must not start a second time."""

from __future__ import annotations

import os
import signal

import pytest

from poolhand.rules.job import Status
from tests.system.farmhouse import Farm, Yard, children_of, until
from tests.system.test_farm_stop import insist

pytestmark = pytest.mark.slow


def expect_failed_unrepeated(yard: Yard, ids: list[str]) -> None:
    """Run a second farm; check that no job has begun twice and all have failed."""
    with yard.running("--max", "1") as other:
        other.until_ready()
        yard.until_done(len(ids), Status.FAILED)
        assert other.stop() == 0
    for id in ids:
        job = yard.job(id)
        assert job.error is not None
        assert "on_crash='fail'" in job.error.message
        assert len([line for line in yard.told("begin") if line[3] == id]) == 1


def test_a_job_with_one_attempt_is_rerun_alone_once_and_a_second_crash_is_final(
    any_yard: Yard,
) -> None:
    yard = any_yard
    (id,) = yard.submit("crash_once")
    with yard.running("--min", "1", "--max", "1") as farm:
        yard.until_done(1, Status.FAILED)
        begun = yard.told("begin", "crash")
        assert len(begun) == 2
        first, second = (int(line[1]) for line in begun)
        assert first in farm.pids
        assert second not in farm.pids, "it ran alone, in a child of a worker"
        assert farm.stop() == 0
    job = yard.job(id)
    assert (job.attempts, job.crashes) == (2, 2)


def test_a_non_repeatable_job_fails_when_its_worker_is_killed(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        ids = yard.submit("hold", str(yard.gate), on_crash="fail")
        yard.until_told("begin")
        os.kill(pid, signal.SIGKILL)
        farm.until_ready(2)
        yard.until_done(1, Status.FAILED)
        assert farm.stop() == 0
    expect_failed_unrepeated(yard, ids)


def test_a_non_repeatable_job_fails_when_its_child_process_dies(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        (id,) = yard.submit("compute", str(yard.gate), on_crash="fail")
        (begun,) = yard.until_told("begin")
        os.kill(int(begun[1]), signal.SIGKILL)
        yard.until_done(1, Status.FAILED)
        assert farm.stop() == 0
    assert len(yard.told("begin")) == 1
    assert yard.job(id).attempts == 1


def test_a_non_repeatable_job_fails_when_a_stop_interrupts_it(any_yard: Yard) -> None:
    """Also in a thread that cannot be stopped, and in a process."""
    yard = any_yard
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        ids = [
            id
            for task in ("hold", "occupy", "compute", "cling")
            for id in yard.submit(task, str(yard.gate), on_crash="fail")
        ]
        yard.until_told("begin", count=4)
        farm.signal(signal.SIGTERM)
        farm.until_line("process leaving")
        insist(farm)
        assert farm.ended() == 0
    expect_failed_unrepeated(yard, ids)


def test_a_non_repeatable_job_fails_when_the_supervisor_is_killed(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        ids = yard.submit("hold", str(yard.gate), on_crash="fail")
        yard.until_told("begin")
        expect_gone(farm, pid)
    expect_failed_unrepeated(yard, ids)


def expect_gone(farm: Farm, worker: int) -> None:
    farm.signal(signal.SIGKILL)
    farm.process.wait()
    until(lambda: not os.path.exists(f"/proc/{worker}"), "end of the worker", 20.0)
    assert children_of(worker) == []
