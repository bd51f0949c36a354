"""Schedules, on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from poolhand import App
from poolhand.cli.main import app
from tests.extent import ALSO_POSTGRES


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("store_schema")
    return schema


def run(url: str, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["schedules", *words, "--store", url])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


async def work(url: str, scheduled: bool) -> None:
    """Run a worker until every schedule has been seen."""
    made = App(url)
    ran = asyncio.Event()

    @made.task(name="poll")
    async def poll() -> None:
        ran.set()

    if scheduled:
        made.cron("0 2 * * *", tz="Europe/Berlin", missed="skip")(poll)
        made.every(1)(poll)
    else:
        await poll.submit()
    async with made, made.worker():
        await ran.wait()


def test_schedules_are_listed_with_their_next_run(url: str) -> None:
    asyncio.run(work(url, scheduled=False))
    assert "no schedules" in run(url, "list").stderr
    asyncio.run(work(url, scheduled=True))
    cron, every = json.loads(run(url, "list", "--json").stdout)
    assert (cron["task"], cron["when"]) == ("poll", "0 2 * * * Europe/Berlin")
    assert (cron["zone"], cron["missed"]) == ("Europe/Berlin", "skip")
    assert cron["last"] < cron["next"]
    assert cron["next"].endswith((":00:00Z", ":00:00+00:00"))
    assert (every["when"], every["zone"], every["missed"]) == ("every 1 s", None, "once")
    assert [one["note"] for one in (cron, every)] == ["no worker is connected"] * 2
    head, first, second = run(url, "list").stdout.splitlines()
    assert head.split() == ["TASK", "WHEN", "ARGUMENTS", "STATE", "MISSED", "LAST", "NEXT", "NOTE"]
    assert first.endswith(" no worker is connected")
    assert first.split()[:7] == ["poll", "0", "2", "*", "*", "*", "Europe/Berlin"]
    assert second.split()[:4] == ["poll", "every", "1", "s"]


async def work_once(url: str, *ids: str) -> list[str]:
    """Run a worker until these jobs are over; return the arguments of their calls."""
    made = App(url)
    ran: list[str] = []

    @made.cron("@daily", args=("acme",))
    @made.task(name="reports.send")
    async def send(tenant: str) -> None:
        ran.append(tenant)

    async with made, made.worker():
        for id in ids:
            ticket = await made.get(id)
            assert ticket is not None
            await ticket
        while not await made.operator().schedules():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
    return ran


def test_a_schedule_is_paused_triggered_and_resumed_from_a_shell(url: str) -> None:
    asyncio.run(work_once(url))
    paused = run(url, "pause", "reports.send", "--by", "anna").stdout.splitlines()[1]
    when = ["0", "0", "*", "*", "*", "UTC"]
    assert paused.split()[:9] == ["reports.send", *when, "'acme'", "paused"]
    (seen,) = json.loads(run(url, "list", "--json").stdout)
    assert (seen["paused"], seen["next"], seen["arguments"]) == (True, None, "'acme'")
    triggered = run(url, "trigger", "reports.send", "--by", "bert")
    (id,) = triggered.stdout.split()
    assert triggered.stderr == ""
    assert asyncio.run(work_once(url, id)) == ["acme"]
    answer = json.loads(run(url, "trigger", seen["id"], "--json").stdout)
    assert (answer["done"], answer["reason"], answer["id"]) == (True, "submitted", seen["id"])
    assert answer["new_id"] != id
    resumed = json.loads(run(url, "resume", "reports.send", "--json").stdout)
    assert resumed["paused"] is False
    lines = CliRunner().invoke(app, ["audit", "--kind", "schedule_", "--json", "--store", url])
    told = [(one["kind"], one["by"], one["text"]) for one in json.loads(lines.stdout)["lines"]]
    assert told[:2] == [
        ("schedule_pause", "anna", seen["id"]),
        ("schedule_trigger", "bert", seen["id"]),
    ]
    assert [kind for kind, *_ in told] == [
        "schedule_pause", "schedule_trigger", "schedule_trigger", "schedule_resume",
    ]  # fmt: skip


@pytest.mark.parametrize("act", ["pause", "resume", "trigger"])
def test_an_unknown_schedule_is_not_found(url: str, act: str) -> None:
    asyncio.run(work_once(url))
    near = run(url, act, "reports.sned", code=3)
    assert near.stderr == (
        "poolhand: there is no schedule 'reports.sned'; did you mean 'reports.send'?\n"
    )
    far = run(url, act, "zzz", code=3).stderr
    assert far == "poolhand: there is no schedule 'zzz'; see `poolhand schedules list`\n"
