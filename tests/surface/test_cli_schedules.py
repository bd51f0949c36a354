"""Schedules, on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from poolhand import App
from poolhand.cli.main import app


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("schema")
    return schema


def run(url: str, *words: str) -> Result:
    result = CliRunner().invoke(app, ["schedules", "list", *words, "--store", url])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


async def work(url: str, scheduled: bool) -> None:
    """Work until every schedule has been seen."""
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


def test_schedules_are_listed_with_what_is_next(url: str) -> None:
    asyncio.run(work(url, scheduled=False))
    assert "no schedules" in run(url).stderr
    asyncio.run(work(url, scheduled=True))
    cron, every = json.loads(run(url, "--json").stdout)
    assert (cron["task"], cron["when"]) == ("poll", "0 2 * * * Europe/Berlin")
    assert (cron["zone"], cron["missed"]) == ("Europe/Berlin", "skip")
    assert cron["last"] < cron["next"]
    assert cron["next"].endswith((":00:00Z", ":00:00+00:00"))
    assert (every["when"], every["zone"], every["missed"]) == ("every 1 s", None, "once")
    head, first, second = run(url).stdout.splitlines()
    assert head.split() == ["TASK", "WHEN", "MISSED", "LAST", "NEXT"]
    assert first.split()[:7] == ["poll", "0", "2", "*", "*", "*", "Europe/Berlin"]
    assert second.split()[:4] == ["poll", "every", "1", "s"]
