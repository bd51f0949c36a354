"""Many turns of one session at once, from several processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from poolhand import App
from poolhand.agents.session import SessionRecord, read
from poolhand.rules.audit import STREAM
from poolhand.rules.streams import session_of
from tests import warm
from tests.extent import times

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PROCESSES, EACH = 4, times(8, 25)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("schema")
    return schema


async def found(url: str) -> tuple[SessionRecord, list[str], list[str]]:
    """Return the session, and the turns in the order of submit and of end."""
    async with App(url) as app:
        connection = await app.core.connection()
        store = connection.store
        document = await connection.thread.ask(lambda: store.get_document(session_of(None, "one")))
        assert document is not None
        lines = await connection.thread.ask(lambda: store.read(STREAM, limit=10_000))
    told = [
        (line.kind, json.loads(line.body)["task_id"]) for line in lines if b"task_id" in line.body
    ]
    submitted = [id for kind, id in told if kind == "pool_submit"]
    return read(document[0]), submitted, [id for kind, id in told if kind == "pool_outcome"]


def test_many_turns_from_four_processes_lose_nothing_and_keep_their_order(url: str) -> None:
    command = ["-m", "tests.system.session_crowd", url]
    crowd = [warm.start([*command, str(number), str(EACH)]) for number in range(PROCESSES)]
    try:
        assert [process.wait(150) for process in crowd] == [0] * PROCESSES
    finally:
        for process in crowd:
            process.kill()
            process.wait()
    record, submitted, ended = asyncio.run(found(url))
    messages = record.state["messages"]
    assert sorted(messages) == sorted(f"{p}-{n}" for p in range(PROCESSES) for n in range(EACH))
    assert submitted == ended
    for number in range(PROCESSES):
        own = [one for one in messages if one.startswith(f"{number}-")]
        assert own == [f"{number}-{turn}" for turn in range(EACH)]
