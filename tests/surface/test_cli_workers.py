"""Farms and their workers on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from poolhand.contract import Owner, Put
from poolhand.farm.records import (
    FARMS,
    KEEP,
    ControlAnswer,
    ControlRequest,
    FarmRecord,
    FarmState,
    FinishedJob,
    RunningJob,
    Snapshot,
    Trouble,
    WorkerState,
    write,
)
from poolhand.operate import farms
from poolhand.rules.job import Fault, Status
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import SqliteStore
from tests.surface.test_cli import HOSTILE, SPELLED, Desk, run
from tests.unit.operate.test_farms import DONE, FARM, WORKER, a_farm, a_worker, farming, write_down
from tests.unit.operate.world import START, World

SECONDS = 50
LATER = START + timedelta(hours=26, minutes=5)
BUSY = a_farm(
    FARM,
    a_worker(1, 200, heard=0.04, memory=0, started_at=LATER - timedelta(seconds=65)),
    a_worker(2, 201, state=WorkerState.LEAVING, active=0),
    written_at=LATER,
    wanted=2,
)
IDLE = a_farm("ash-00000f", host="ash/7", state=FarmState.STARTING, written_at=LATER)
LONE = Owner("owner-1", "elm/9", "b", 300, "1", works=True)
JOBS = Snapshot(
    FARM,
    None,
    (RunningJob("j-1", "fetch", "web", START, "soft_timeout"),),
    (
        FinishedJob(
            *("j-0", HOSTILE, "web", Status.FAILED, 3, START, 1.5, WORKER),
            Fault("ValueError", HOSTILE, ""),
        ),
    ),
    after=1,
)


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(f"sqlite:///{tmp_path}/agents.db")
    run("migrate", "--store", desk.url)
    return desk


def put_down(desk: Desk, *records: FarmRecord) -> None:
    desk.do(lambda world: write_down(world.store, *records))


@pytest.fixture
def supervised(desk: Desk, tmp_path: Path) -> Callable[..., Any]:
    """Return a farm that answers requests beside the commands of the test, from its own store."""

    @contextmanager
    def farm(
        answer: ControlAnswer = DONE, record: FarmRecord = BUSY
    ) -> Iterator[list[ControlRequest]]:
        wishes: list[ControlRequest] = []
        ready, over = threading.Event(), threading.Event()

        async def supervise() -> None:
            store = SqliteStore(tmp_path / "agents.db", Runtime())
            await store.open()
            try:
                await write_down(store, record)
                async with farming(store, answer) as found:
                    ready.set()
                    await asyncio.to_thread(over.wait)
                    wishes.extend(found)
            finally:
                await store.close()

        thread = threading.Thread(target=asyncio.run, args=(supervise(),))
        thread.start()
        try:
            assert ready.wait(SECONDS)
            yield wishes
        finally:
            over.set()
            thread.join()

    return farm


# Help


def test_help_names_every_command_in_one_line_and_shows_an_example() -> None:
    listed = run("workers", "--help").stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == [
        "list", "snapshot", "drain", "restart", "bounds",
    ]  # fmt: skip
    for line in listed:
        assert line.endswith(".")
        assert not line.endswith("...")
        name = line.split()[0]
        help = run("workers", name, "--help").stdout
        assert f"  Examples:\n    $ poolhand workers {name} " in help
        assert "--json" in help


# Views


def test_workers_are_listed_including_empty_farms_and_workers_without_a_farm(desk: Desk) -> None:
    put_down(desk, BUSY, IDLE)
    desk.do(lambda world: world.enroll(LONE))
    result = desk.run("workers", "list")
    head, *rows = (line.split("  ") for line in result.stdout.splitlines())
    assert [word.strip() for word in head if word] == [
        "ID", "FARM", "HOST", "PID", "STATE", "ACTIVE", "OK", "FAILED", "UPTIME", "MEMORY",
        "SIGNAL",
    ]  # fmt: skip
    words = [[word.strip() for word in row if word] for row in rows]
    heard = [float(row.pop().removesuffix(" s ago")) for row in words[1:3]]
    # As `top` shows them: the age of a record that is not overdue is not added.
    assert heard[0] < heard[1] < SECONDS
    assert words == [
        ["-", "ash-00000f", "ash", "100", "starting", "-", "40", "2", "1d02h", "-", "-"],
        [f"{FARM}.1", FARM, "box", "200", "ready", "3/10", "40", "2", "1m05s", "-"],
        [WORKER, FARM, "box", "201", "leaving", "0/10", "40", "2", "1d02h", "50 MB"],
        ["owner-1", "-", "elm", "300", "alone", "0", "-", "-", "-", "-", "-"],
    ]
    assert result.stderr.splitlines() == [
        "farm ash-00000f (shop:app): starting, 1 worker wanted (1 to 10); "
        "3 jobs for 10 slots, 0 of them queued",
        f"farm {FARM} (shop:app): running, 2 workers wanted (1 to 10); "
        "3 jobs for 10 slots, 0 of them queued",
    ]


def test_a_silent_supervisor_is_listed_with_the_age_of_its_last_heartbeat(desk: Desk) -> None:
    put = Put(f"{FARMS}{FARM}", write(BUSY), ttl=KEEP)
    empty = Put(f"{FARMS}{IDLE.id}", write(IDLE), ttl=1_000.0)

    def age(world: World) -> Awaitable[object]:
        # As if it had been written ten seconds ago.
        return world.store.put([replace(put, ttl=KEEP - 10.0), empty])

    desk.do(age)
    result = desk.run("workers", "list")
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[4] for row in rows] == ["starting", "unknown", "unknown"]
    assert all(float(row[-3]) >= 10.0 for row in rows[1:])
    starting, silent = result.stderr.splitlines()
    assert starting.startswith("farm ash-00000f (shop:app): starting, ")
    assert re.fullmatch(
        rf"farm {FARM} \(shop:app\): no message from the supervisor \(process 100 on box\) for "
        "1[0-9] s: it was killed, hangs or cannot reach the store; the state of its workers is "
        "older than that. If it has died, start it again: `poolhand work shop:app`",
        silent,
    )
    assert desk.json("workers", "list")["farms"][1]["age"] >= 10.0


def test_workers_list_as_json_contains_everything_farms_report(desk: Desk) -> None:
    put_down(desk, BUSY)
    desk.do(lambda world: world.enroll(LONE))
    found = desk.json("workers", "list")
    assert found["alone"] == [{"id": "owner-1", "host": "elm/9", "pid": 300, "holds": 0}]
    (farm,) = found["farms"]
    assert (farm["id"], farm["minimum"], farm["maximum"]) == (FARM, 1, 10)
    assert [worker["state"] for worker in farm["workers"]] == ["ready", "leaving"]


def test_a_leaving_worker_is_listed_with_how_long_and_why_others_wait_for_it(desk: Desk) -> None:
    leaving = a_worker(
        1, state=WorkerState.LEAVING, leaving_at=LATER - timedelta(seconds=125), leaving_why="x"
    )
    put_down(desk, a_farm(FARM, leaving, written_at=LATER, maximum=1, surge=0, held=1))
    result = desk.run("workers", "list")
    assert "  leaving 2m05s  " in result.stdout
    assert (
        "; 1 worker waits to start: at most 1 process at once (maximum 1 + surge 0), "
        "1 of them is leaving"
    ) in result.stderr
    (worker,) = desk.json("workers", "list")["farms"][0]["workers"]
    assert worker["leaving_why"] == "x"


def test_without_workers_the_list_explains_how_to_start_some(desk: Desk) -> None:
    result = desk.run("workers", "list")
    assert len(result.stdout.splitlines()) == 1
    assert "start some with `poolhand work module:app`" in result.stderr


def test_a_snapshot_shows_running_and_failed_jobs(
    desk: Desk, supervised: Callable[..., Any]
) -> None:
    trouble = (Trouble(START, HOSTILE, WORKER),)
    record = a_farm(troubles=trouble, written_at=START + timedelta(hours=2, minutes=5))
    with supervised(ControlAnswer(True, "", JOBS), record) as wishes:
        result = desk.run("workers", "snapshot", FARM, "--after", "3", "--limit", "1")
        found = desk.json("workers", "snapshot", WORKER)
        listed = desk.run("workers", "list")
    assert [(one.worker, one.after, one.limit) for one in wishes] == [
        (None, 3, 1),
        (WORKER, 0, 100),
    ]
    head, running, failed = result.stdout.splitlines()
    assert head.split() == [
        "JOB", "POOL", "NAME", "STATUS", "TRIES", "AT", "RAN", "WORKER", "NOTE",
    ]  # fmt: skip
    assert running.split()[:4] == ["j-1", "web", "fetch", "running"]
    assert running.endswith("soft_timeout")
    assert failed.startswith(f"j-0  web   {SPELLED}  failed")
    assert failed.endswith(f"ValueError: {SPELLED}")
    assert result.stderr.splitlines() == [
        f"trouble at 2030-01-01 00:00:00Z: {WORKER}: {SPELLED}",
        "there are more: --after 1",
    ]
    assert found["snapshot"]["finished"][0]["error"]["message"] == HOSTILE
    assert f"; last trouble, 2h05m ago: {SPELLED}\n" in listed.stderr


# Control


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (("drain", FARM, "--yes"), "farm_drain", f"farm {FARM}"),
        (("drain", WORKER), "farm_drain", f"worker {WORKER}"),
        (("restart", FARM), "farm_restart", f"farm {FARM}"),
        (("bounds", FARM, "--min", "2"), "farm_bounds", f"farm {FARM}: at least 2 workers"),
    ],
    ids=["drain farm", "drain worker", "restart", "bounds"],
)
def test_a_farm_handles_a_control_request_and_the_audit_log_names_the_actor(
    desk: Desk, supervised: Callable[..., Any], words: tuple[str, ...], kind: str, text: str
) -> None:
    with supervised(ControlAnswer(True, f"as you like {HOSTILE}")) as wishes:
        result = desk.run("workers", *words, "--by", "anna")
        found = desk.json("workers", *words)
    assert result.stdout == f"as you like {SPELLED}\n"
    assert found["done"] is True
    assert wishes[0].by == "anna"
    line = desk.run("audit", "--kind", kind).stdout.splitlines()[1]
    assert line.split()[3:] == [kind, "-", "-", "anna", *text.split()]


def test_a_control_request_refused_by_the_farm_exits_with_its_reason(
    desk: Desk, supervised: Callable[..., Any]
) -> None:
    with supervised(ControlAnswer(False, f"there is no worker {WORKER}")):
        result = desk.run("workers", "drain", WORKER, code=4)
        assert desk.json("workers", "snapshot", WORKER, code=4)["done"] is False
        shown = desk.run("workers", "snapshot", WORKER, code=4)
    assert result.stderr == shown.stderr == f"poolhand: there is no worker {WORKER}\n"
    assert result.stdout == shown.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ("snapshot", FARM),
        ("drain", WORKER),
        ("drain", FARM, "--yes"),
        ("drain", "nonsense"),
        ("restart", WORKER),
        ("bounds", FARM, "--max", "3"),
    ],
)
def test_an_unknown_farm_is_not_found(desk: Desk, words: tuple[str, ...]) -> None:
    told = desk.run("workers", *words, code=3).stderr
    assert (
        told == f"poolhand: there is no farm or worker {words[1]!r}; see `poolhand workers list`\n"
    )


def test_a_farm_that_does_not_answer_cannot_be_used(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farms, "ANSWER_WITHIN", 0.05)
    put_down(desk, BUSY)
    told = desk.run("workers", "restart", FARM, code=5).stderr
    assert "did not answer" in told
    assert "[PH-STO-001]" in told


def test_invalid_bounds_are_a_usage_error(desk: Desk) -> None:
    put_down(desk, BUSY)
    assert "give --min, --max or both" in desk.run("workers", "bounds", FARM, code=2).stderr
    told = desk.run("workers", "bounds", FARM, "--min", "11", code=2).stderr
    assert "minimum must be an int from 0" in told


def test_a_whole_farm_is_drained_only_with_confirmation(desk: Desk) -> None:
    put_down(desk, BUSY)
    told = desk.run("workers", "drain", FARM, code=2).stderr
    assert told == "poolhand: this stops a whole farm; give --yes to do it\n"
    assert desk.json("audit", "--kind", "farm")["lines"] == []


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("n", 4)])
def test_on_a_terminal_draining_a_whole_farm_asks_for_confirmation(
    desk: Desk, supervised: Callable[..., Any], typed: str, code: int
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "poolhand", "workers", "drain", FARM, "--json"]
    try:
        with supervised() as wishes:
            os.write(ours, f"{typed}\n".encode())
            done = subprocess.run(
                [*command, "--store", desk.url],
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=theirs,
                timeout=SECONDS,
                check=False,
            )
    finally:
        os.close(theirs)
        asked = _all_of(ours)
    assert done.returncode == code, asked
    assert f"farm {FARM} (shop:app): running" in asked
    assert "Stop it after its running jobs have finished? [y/N]" in asked
    if code == 0:
        assert json.loads(done.stdout) == {"done": True, "text": DONE.text, "snapshot": None}
        assert len(wishes) == 1
    else:
        assert "nothing was done" in asked
        assert wishes == []


def _all_of(terminal: int) -> str:
    """Read the output of a terminal whose other end is closed, and close it."""
    with open(terminal, "rb", buffering=0) as file, suppress(OSError):
        written = b""
        while part := file.read(10_000):
            written += part
    return written.decode()
