"""Sessions and events of jobs on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from poolhand import App, Session, emit, progress, wait
from poolhand.cli.main import app
from tests.extent import ALSO_POSTGRES

HOSTILE = "\x1b[31mred\x07"
SPELLED = "\\x1b[31mred\\x07"


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("store_schema")
    return schema


@pytest.fixture
def job(url: str) -> str:
    """Run turns of three sessions; return the id of the last turn."""
    made = App(url)

    @made.agent(name="chat", retry=None)
    async def chat(session: Session, message: str) -> str:
        await progress("thinking", about=message)
        await emit(HOSTILE)
        session.state["messages"].append(message)
        if message == "fail":
            raise ValueError(HOSTILE)
        return message.upper()

    async def talk() -> str:
        async with made, made.worker():
            for tenant, name in (("acme", "s-1"), ("acme", "s-2"), (None, "s/1")):
                await (await chat.session(name, tenant=tenant, user="ann").submit("hi"))
            session = chat.session("s-1", tenant="acme", user="ann")
            failed = await session.submit("fail")
            await wait(failed)
            return failed.id

    return asyncio.run(talk())


def run(url: str, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*words, "--store", url], prog_name="poolhand")
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    assert "Traceback" not in result.stderr
    return result


def read(url: str, *words: str) -> Any:
    return json.loads(run(url, *words, "--json").stdout)


def test_sessions_are_listed_page_by_page(url: str, job: str) -> None:
    found = read(url, "sessions", "list")
    assert [(one["tenant"], one["id"]) for one in found["sessions"]] == [
        (None, "s/1"),
        ("acme", "s-1"),
        ("acme", "s-2"),
    ]
    assert found["after"] is None
    first = read(url, "sessions", "list", "--tenant", "acme", "--limit", "1")
    second = read(url, "sessions", "list", "--tenant", "acme", "--after", first["after"])
    assert [one["id"] for one in first["sessions"] + second["sessions"]] == ["s-1", "s-2"]
    shown = run(url, "sessions", "list").stdout.splitlines()
    assert shown[0].split() == ["ID", "TENANT", "USER", "REVISION", "SCHEMA", "BYTES", "TURN"]
    assert shown[2].split()[:4] == ["s-1", "acme", "ann", "1"]
    assert "no such sessions" in run(url, "sessions", "list", "--tenant", "x").stderr


def test_a_session_is_shown_with_its_state(url: str, job: str) -> None:
    found = read(url, "sessions", "show", "s-1", "--tenant", "acme")
    assert found["state"]["messages"] == ["hi"]
    assert (found["user"], found["revision"]) == ("ann", 1)
    assert '"messages": [' in run(url, "sessions", "show", "s-1", "--tenant", "acme").stdout


def test_an_unknown_session_gets_a_hint_if_another_tenant_has_it(url: str, job: str) -> None:
    for words in (("show",), ("history",), ("erase", "--by", "anna")):
        told = run(url, "sessions", words[0], "s-1", *words[1:], code=3).stderr
        assert told == (
            "poolhand: there is no session 's-1' without a tenant; give --tenant acme for the one "
            "of 'acme'\n"
        )
        told = run(url, "sessions", words[0], "s/1", "--tenant", "acme", *words[1:], code=3).stderr
        assert told == (
            "poolhand: there is no session 's/1' of the tenant 'acme'; leave out --tenant for the "
            "one without\n"
        )
    told = run(url, "sessions", "show", "nobody", code=3).stderr
    assert told == (
        "poolhand: there is no session 'nobody' without a tenant; see `poolhand sessions list`\n"
    )


def test_the_turns_of_a_session_are_shown(url: str, job: str) -> None:
    found = read(url, "sessions", "history", "s-1", "--tenant", "acme")
    assert [(one["message"], one["status"], one["result"]) for one in found] == [
        ("hi", "completed", "HI"),
        ("fail", "failed", ""),
    ]
    shown = run(url, "sessions", "history", "s-1", "--tenant", "acme").stdout
    assert SPELLED in shown
    assert HOSTILE not in shown
    run(url, "sessions", "history", "nobody", code=3)
    assert run(url, "sessions", "history", "nobody", "--json", code=3).stdout == ""


def test_the_events_of_a_job_are_followed_to_its_end(url: str, job: str) -> None:
    lines = run(url, "jobs", "show", job, "--follow").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert lines[0].endswith('progress   {"message":"thinking","about":"fail"}')
    assert lines[1].endswith(f"chunk      {SPELLED}")
    assert lines[2].endswith("state      failed")
    out = run(url, "jobs", "show", job, "--follow", "--after", "1", "--json").stdout
    events = [json.loads(line) for line in out.splitlines()]
    assert [(one["number"], one["kind"], one["data"]) for one in events] == [
        (2, "chunk", HOSTILE),
        (3, "state", "failed"),
    ]
    run(url, "jobs", "show", "nobody", "--follow", code=3)


def test_a_session_is_erased_with_its_turns(url: str, job: str) -> None:
    shown = run(url, "sessions", "erase", "s-1", "--tenant", "acme", "--by", "anna").stdout
    assert shown == "s-1: erased, with 2 turns\n"
    run(url, "jobs", "show", job, code=3)
    run(url, "sessions", "erase", "s-1", "--tenant", "acme", code=3)
    run(url, "sessions", "history", "s-1", "--tenant", "acme", code=3)
    left = read(url, "sessions", "list")["sessions"]
    assert [(one["tenant"], one["id"]) for one in left] == [(None, "s/1"), ("acme", "s-2")]
    assert len(read(url, "jobs", "list")["jobs"]) == 2
    audit = read(url, "audit", "--kind", "pool_erase")["lines"]
    assert [line["by"] for line in audit] == ["anna", "anna"]


def test_all_sessions_of_a_tenant_are_erased_only_when_confirmed(url: str, job: str) -> None:
    for words in ((), ("--all",), ("--all", "--tenant", "acme"), ("s-1", "--all", "--yes")):
        run(url, "sessions", "erase", *words, code=2)
    erased = read(url, "sessions", "erase", "--all", "--tenant", "acme", "--yes")
    assert [(one["id"], one["turns"]) for one in erased] == [("s-1", 2), ("s-2", 1)]
    assert [one["id"] for one in read(url, "sessions", "list")["sessions"]] == ["s/1"]
    run(url, "sessions", "erase", "s/1")
    assert read(url, "jobs", "list")["jobs"] == []
