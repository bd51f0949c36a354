"""A farm seen from outside: figures, heartbeats and warnings."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from poolhand import App
from poolhand.views import Status
from tests.system.farmhouse import Farm, Yard, until

pytestmark = pytest.mark.slow


def listed(farm: Farm) -> list[dict[str, Any]]:
    """Return what `poolhand workers list` shows of farms."""
    found: list[dict[str, Any]] = json.loads(farm.command("workers", "list", "--json").stdout)[
        "farms"
    ]
    return found


def test_a_job_whose_result_cannot_be_stored_counts_as_failed_in_every_counter(
    yard: Yard,
) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        yard.submit("spill")
        yard.submit("note", 1)
        yard.until_done(1)
        yard.until_done(1, Status.FAILED)
        until(lambda: [one for one in yard.farms() if one.failed + one.completed == 2], "figures")
        (seen,) = listed(farm)
        assert (seen["completed"], seen["failed"]) == (1, 1)
        (worker,) = seen["workers"]
        assert (worker["completed"], worker["failed"]) == (1, 1)
        assert farm.stop() == 0
    (ended,) = farm.lines("process ended")
    assert (ended["completed"], ended["failed"]) == ("1", "1")
    (stopped,) = farm.lines("farm stopped")
    assert (stopped["completed"], stopped["failed"]) == ("1", "1")


def test_a_killed_supervisor_is_reported_with_the_growing_age_of_its_heartbeat(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        until(lambda: [one for one in yard.farms() if one.workers], "worker on record")
        farm.signal(signal.SIGKILL)
        farm.process.wait()
        (before,) = yard.farms()
        older = until(
            lambda: [one for one in yard.farms() if one.age > before.age + 1.0], "older record"
        )
        assert older[0].workers[0].heard > before.workers[0].heard + 1.0
        until(lambda: [one for one in yard.farms() if one.is_silent], "silent supervisor")
        result = farm.command("workers", "list")
    assert f"no message from the supervisor (process {farm.pid} on " in result.stderr
    assert result.stdout.splitlines()[1].split()[4] == "unknown"


def test_two_services_on_one_pool_log_no_warning_but_a_task_that_none_has_is_one(
    yard: Yard,
) -> None:
    services = [f"tests.system.two_services:{name}" for name in ("first", "second")]
    with yard.running("-c", "1", app=services[0]) as one, yard.running(app=services[1]) as two:
        one.until_ready()
        two.until_ready()

        async def submit(app: App, _: dict[str, Any]) -> None:
            for number in range(20):
                for task in ("bill", "ship"):
                    await app.submit(task, number)

        yard.do(submit)
        yard.until_done(40)
        text = one.text + two.text
        assert " WARNING " not in text
        yard.submit("note", 1)
        until(lambda: "does not have the task" in one.text + two.text, "warning")
        for farm in (one, two):
            assert farm.stop() == 0
    lines = [line for farm in (one, two) for line in farm.text.splitlines()]
    assert [line for line in lines if " WARNING " in line and "farm_app.note" not in line] == []


@pytest.mark.parametrize("task", ["block", pytest.param("occupy", marks=pytest.mark.full)])
def test_a_farm_stopped_with_running_jobs_logs_that_it_hands_them_back(
    yard: Yard, task: str
) -> None:
    with yard.running("--max", "1", "--grace", "0.2") as farm:
        farm.until_ready()
        never = str(yard.folder / "never")
        (held,) = yard.submit("hold", never)
        yard.until_told("begin", "hold")
        (kept,) = yard.submit(task, never)
        yard.until_told("begin", task)
        until(
            lambda: [one for one in yard.farms() if [w.active for w in one.workers] == [2]], "both"
        )
        assert farm.stop() == 0
    (line,) = farm.lines("farm trouble", text="still running when the worker had to end")
    assert line["text"].startswith("2 jobs were still running when the worker had to end; handed ")
    for id, name in ((held, "hold"), (kept, task)):
        assert f"job {id} of task 'tests.system.farm_app.{name}" in line["text"]
        assert id in farm.lines("farm stopped")[0]["handed_back"]
        assert (yard.job(id).status, yard.job(id).attempts) == (Status.QUEUED, 0)
    assert farm.lines("process ended")[0]["handed_back"] == "2"
