"""Workers claim jobs when they are ready; if none gets ready, the farm reports why and waits."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import pytest

from poolhand import Retry
from poolhand.rules.job import Status
from tests.system.farmhouse import Farm, Yard, all_gone, until

pytestmark = pytest.mark.slow


def troubles(yard: Yard) -> str:
    return "; ".join(trouble.text for farm in yard.farms() for trouble in farm.troubles)


def pauses(farm: Farm) -> list[float]:
    """Return the time from each start of a process to the next."""
    return [later.at - sooner.at for sooner, later in pairwise(farm.lines("process started"))]


@pytest.mark.parametrize("kind", ["plain", pytest.param("async", marks=pytest.mark.full)])
def test_no_job_starts_before_the_warm_up_has_finished(yard: Yard, kind: str) -> None:
    yard.submit("note", *range(5))
    # A warm-up may block the event loop for longer than any job may.
    limit = {"loop_blocked_limit_s": 0.1, "farm_warm_up": kind}
    with yard.running("--max", "1", **limit) as farm:
        yard.until_told("warming")
        (record,) = until(lambda: [one for one in yard.farms() if one.workers], "farm")
        assert (record.workers[0].state, record.capacity) == ("starting", 0)
        assert yard.told("begin") == []
        yard.open_gate()
        yard.until_done(5)
        assert [line.split()[0] for line in yard.story.read_text().splitlines()][:2] == [
            "warming",
            "warm",
        ]
        assert farm.stop() == 0
        assert len(farm.pids) == 1


def test_a_failed_warm_up_is_reported_and_retried_with_backoff(yard: Yard) -> None:
    yard.submit("note", 1)
    with yard.running("--max", "1", farm_warm_up="failing") as farm:
        farm.until_line("process started", 3)
        first, second = pauses(farm)[:2]
        assert first > 0.5
        assert second > 1.0
        assert "LookupError: the larder is empty" in troubles(yard)
        assert farm.lines("process ready") == []
        yard.open_gate()
        yard.until_done(1)
        assert farm.stop() == 0


def test_when_no_worker_starts_one_at_a_time_is_tried(yard: Yard) -> None:
    with yard.running("--min", "3", farm_warm_up="dying") as farm:
        fourth = farm.until_line("farm trouble", 4, text="ended with exit code 9")[3]
        # The first three starts count as one failure; then one process is tried at a time.
        assert [pause > 0.5 for pause in pauses(farm)[:3]] == [False, False, True]
        assert [line.at < fourth.at for line in farm.lines("process started")][:5].count(True) == 4
        yard.open_gate()
        farm.until_ready(3)
        assert farm.stop() == 0


def test_an_app_that_workers_cannot_import_is_reported_until_it_is_fixed(yard: Yard) -> None:
    part = yard.folder / "part"
    part.touch()
    with yard.running("--min", "0", farm_import=part) as farm:
        farm.until_line("farm started")
        part.unlink()
        yard.submit("note", 1)
        farm.until_line("farm trouble", text="a part of the shop is missing")
        part.touch()
        yard.until_done(1)
        assert farm.stop() == 0


def test_a_worker_killed_before_it_is_ready_is_followed_by_another(yard: Yard) -> None:
    with yard.running(farm_warm_up="async") as farm:
        ((_, pid, *_),) = yard.until_told("warming")
        os.kill(int(pid), signal.SIGKILL)
        farm.until_line("farm trouble", text="was killed by SIGKILL")
        yard.open_gate()
        farm.until_ready()
        assert pauses(farm)[0] > 0.5
        assert farm.stop() == 0


def test_a_job_that_kills_its_worker_again_and_again_does_not_kill_the_farm(yard: Yard) -> None:
    yard.submit("crash", retry=Retry(attempts=2))
    yard.submit("note", *range(3))
    with yard.running("--max", "1") as farm:
        yard.until_done(3)
        farm.until_line("farm trouble", text="ended with exit code 7")
        yard.until_done(1, Status.FAILED)
        yard.submit("note", 3)
        yard.until_done(4)
        assert farm.stop() == 0
        assert all_gone(farm.pids)


def test_a_farm_is_stopped_while_its_workers_start(yard: Yard) -> None:
    with yard.running("--min", "2", farm_warm_up="async") as farm:
        yard.until_told("warming", count=2)
        farm.signal(signal.SIGTERM)
        assert farm.ended(5) == 0
        assert all_gone(farm.pids)
        assert farm.lines("farm trouble") == []
    assert yard.farms() == []
