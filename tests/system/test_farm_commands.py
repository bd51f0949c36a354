"""Running farms, seen and controlled from other processes, and what they log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from poolhand import Retry
from poolhand.farm.records import ANSWERS, FARMS, REQUESTS
from poolhand.operate.actions import Operator
from poolhand.rules.job import Status
from poolhand.rules.streams import StreamKind
from tests.extent import times
from tests.system.farmhouse import Farm, Yard, all_gone, children_of, state_of, until

pytestmark = pytest.mark.slow
MANY = times(6, 30)  # workers that are replaced


def until_shown(farm: Farm, id: str) -> dict[str, Any]:
    """Return a snapshot that shows a running job: workers report theirs with the next heartbeat."""
    words = ("workers", "snapshot", id, "--limit", "3", "--json")
    pages: list[dict[str, Any]] = []

    def shows() -> bool:
        pages.append(json.loads(told(farm, *words))["snapshot"])
        return bool(pages[-1]["running"])

    until(shows, "a job that runs is shown")
    return pages[-1]


def told(farm: Farm, *words: str) -> str:
    """Run a command that must succeed; return its output."""
    by = () if words[1] == "snapshot" else ("--by", "ann")
    done = farm.command(*words, *by)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(yard: Yard, *words: str, **settings: Any) -> str:
    """Start a farm that cannot start; return its error line."""
    with yard.running(*words, **settings) as farm:
        assert farm.ended() == 2
        assert farm.pids == []
        return farm.text


# Control


def test_all_workers_are_replaced_under_load_and_no_job_is_lost_or_repeated(any_yard: Yard) -> None:
    yard = any_yard
    with yard.running("--min", "2", "--max", "2") as farm:
        before = farm.until_ready(2)
        yard.submit("nap", *[0.05] * 200)
        assert "replaced" in told(farm, "workers", "restart", farm.id)
        farm.until_line("process leaving", 2, why="it was replaced by a new worker")
        yard.until_done(200)
        until(lambda: all_gone(before), "end of those before")
        begun = [words[3] for words in yard.told("begin")]
        assert len(begun) == len(set(begun)) == 200
        assert farm.lines("farm trouble") == []
        assert farm.stop() == 0
    assert yard.counts() == {Status.COMPLETED: 200}


def test_one_worker_is_drained_and_another_takes_its_place(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        yard.submit("hold", str(yard.gate))
        yard.until_told("begin")
        assert "ends when its running jobs have ended" in told(
            farm, "workers", "drain", f"{farm.id}.1"
        )
        farm.until_ready(2)
        assert farm.lines("process ended") == []
        yard.open_gate()
        farm.until_line("process ended", handed_back="0")
        gone = farm.command("workers", "drain", f"{farm.id}.1", "--by", "ann")
        assert f"there is no worker {farm.id}.1" in gone.stderr
        assert farm.stop() == 0


@pytest.mark.parametrize("least", ["0", "1"])
def test_a_farm_is_drained_by_a_command(yard: Yard, least: str) -> None:
    with yard.running("--min", least) as farm:
        farm.until_line("farm started")
        until(yard.farms, "farm")
        assert "ends when" in told(farm, "workers", "drain", farm.id, "--yes")
        assert farm.ended() == 0
    assert leftovers(yard) == []


def leftovers(yard: Yard) -> list[str]:
    """Return the keys of all documents of farms."""

    async def look(operator: Operator) -> list[str]:
        store = operator._store
        return [
            key for kind in (FARMS, REQUESTS, ANSWERS) for key in await store.scan(kind, "", 100)
        ]

    return yard.ask(look)


def test_new_bounds_apply_at_once(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        assert "2 to 3 workers" in told(
            farm, "workers", "bounds", farm.id, "--min", "2", "--max", "3"
        )
        farm.until_ready(2)
        told(farm, "workers", "bounds", farm.id, "--min", "1", "--max", "1")
        farm.until_line("process ended")
        until(
            lambda: [one for one in yard.farms() if (one.minimum, one.maximum) == (1, 1)],
            "farm that tells it",
        )
        assert farm.stop() == 0


def test_a_snapshot_lists_running_and_finished_jobs_page_by_page(yard: Yard) -> None:
    with yard.running("--max", "1", "-c", "1", task_history_max=5) as farm:
        farm.until_ready()
        yard.submit("note", *range(7))
        never = str(yard.folder / "never")
        yard.submit("hold", never, retry=Retry(attempts=1), timeout=0.2)
        yard.until_done(7)
        yard.until_done(1, Status.FAILED)
        (runs,) = yard.submit("hold", str(yard.gate))
        yard.until_told("begin", "hold", count=2)
        for id in (farm.id, f"{farm.id}.1"):
            page = until_shown(farm, id)
            assert [job["id"] for job in page["running"]] == [runs]
            assert [job["status"] for job in page["finished"]] == ["failed", *["completed"] * 2]
            assert page["finished"][0]["error"]["type"].endswith("JobTimedOut")
            after = str(page["after"])
            rest = told(farm, "workers", "snapshot", id, "--after", after, "--json")
            assert len(json.loads(rest)["snapshot"]["finished"]) == 2
        yard.open_gate()
        assert farm.stop() == 0


# Farms that cannot start


def test_a_farm_over_the_memory_of_one_process_is_refused(yard: Yard) -> None:
    yard.url = "memory://"
    assert "lives inside one process" in refused(yard)


def test_an_unknown_app_is_refused(yard: Yard) -> None:
    assert "has no 'shop'" in refused(yard, app="tests.system.farm_app:shop")
    assert "No module named 'shop'" in refused(yard, app="shop:app")


def test_all_invalid_settings_are_refused_at_once(yard: Yard) -> None:
    text = refused(yard, "--min", "5", "--max", "2", heartbeat_interval_s=0)
    assert "min_workers" in text
    assert "heartbeat_interval_s" in text


# Output and logs


def test_output_of_jobs_is_stored_with_them_and_shown_in_the_farm_output(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        ids = yard.submit("shout", "ann", "bob")
        yard.until_done(2)
        until(lambda: "bob printed" in farm.text, "line of a job while its worker lives")
        assert farm.stop() == 0
        for id, who in zip(ids, ("ann", "bob"), strict=True):
            kept = yard.ask(partial(texts, id))
            words = ("printed", "written", "complained", "logged", "again")
            assert sorted(kept) == sorted(f"{who} {word}" for word in words)
            for word in words:
                assert f"{who} {word}" in farm.text


@pytest.mark.parametrize("task", ["paint", "paint_apart"])
def test_output_of_jobs_is_escaped_and_labelled_with_its_job(yard: Yard, task: str) -> None:
    with yard.running("--max", "1") as farm:
        (id,) = yard.submit(task, "ann")
        yard.until_done(1)
        name = yard.job(id).name
        until(lambda: "without an end" in farm.text, "line that had no end")
        assert farm.stop() == 0
        worker = farm.lines("process ready")[0]["worker"]
        (stopped,) = farm.lines("farm stopped")
        assert stopped["farm"] != "forged"
    lines = farm.text.split("\n")
    assert all(line.isprintable() for line in lines)
    own = [line.removeprefix(f"{worker} | {name} {id} | ") for line in lines if id in line]
    for text in (
        r"\x1b[2Jann printed",
        "2026-01-01 00:00:00,000 INFO farm stopped farm=forged",
        r"\x1b[3Jann in bytes",
        "in two lines",
        "ann without an end",
    ):
        assert text in own
    assert [line for line in own if line.endswith(r"WARNING shop: \x1b[4Jann logged")] != []
    # Output that bypasses Python's streams shows only its worker.
    assert rf"{worker} | \x1b[5Jann below" in lines
    assert rf"{worker} | \x1b[6Jann beside" in lines
    long = [line for line in own if line.rstrip("x") in ("", "ann long ")]
    assert sum(line.count("x") for line in long) == 40_000
    assert len(long) == 3


def test_output_written_after_the_supervisor_has_died_fails_no_job(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        (id,) = yard.submit("shout_when", str(yard.gate))
        yard.until_told("begin")
        farm.signal(signal.SIGKILL)
        farm.process.wait()
        yard.open_gate()
        until(lambda: all_gone([pid]), "end of the worker")
    job = yard.job(id)
    assert job.error is None or "BrokenPipe" not in job.error.message
    assert job.status in (Status.COMPLETED, Status.QUEUED)


async def texts(id: str, operator: Operator) -> list[str]:
    """Return what a job has written."""
    return [
        event.data["text"] async for event in operator.follow(id) if event.kind is StreamKind.LOG
    ]


def test_no_password_is_seen_in_lists_of_processes_or_in_the_log(
    tmp_path: Path, schema: str
) -> None:
    user, _, rest = schema.partition("@")
    yard = Yard(tmp_path, f"{user}:hush-1234@{rest}")
    with yard.running("--loglevel", "debug", "--verbose", "--max", "1") as farm:
        (pid,) = farm.until_ready()
        yard.submit("note", 1)
        yard.until_done(1)
        os.kill(pid, 9)
        farm.until_ready(2)
        lists = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True)
        assert farm.id in lists.stdout
        assert "hush-1234" not in lists.stdout
        assert farm.stop() == 0
        assert "hush-1234" not in farm.text
    with yard.running(app="tests.system.farm_app:nothing") as farm:
        assert farm.ended() == 2
        assert "hush-1234" not in farm.text


def test_many_replacements_leave_no_process_and_no_open_file_behind(yard: Yard) -> None:
    def open_files(farm: Farm) -> int:
        return len(list(Path(f"/proc/{farm.pid}/fd").iterdir()))

    def at_rest(farm: Farm, count: int) -> bool:
        """Return whether all workers but the last are gone."""
        return len(children_of(farm.pid)) == 3 and len(farm.lines("process ready")) == count

    with yard.running("--min", "3", "--max", "3", "-c", "1", max_jobs_per_worker=1) as farm:
        until(lambda: at_rest(farm, 3), "3 workers")
        before = open_files(farm)
        yard.submit("note", *range(MANY))
        yard.until_done(MANY)
        until(lambda: at_rest(farm, 3 + MANY), f"{MANY} replacements")
        assert open_files(farm) <= before + 1
        # Any three of the workers may have found no job.
        gone = set(farm.pids) - set(children_of(farm.pid))
        assert len(gone) == MANY
        assert {state_of(pid) for pid in gone} == {""}
        assert len(yard.told("begin")) == MANY
        assert farm.stop() == 0
        assert all_gone(farm.pids)
