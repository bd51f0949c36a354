"""The HTTP example: in process, and as a server of its own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest

from poolhand import AgentPool, list_pools
from poolhand.observe.events import Events, JobStarted, JobSubmitted

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_api.py"
RUN, HEALTH = "/api/agent/run", "/api/agent/health"
SECONDS = 50

Answer = httpx2.Response


class Door:
    """Holds agents until it is opened, and the pool they are in."""

    def __init__(self, workers: int, queue: int) -> None:
        self.open = asyncio.Event()
        self.started = self.submitted = 0
        self._news = asyncio.Event()
        events = Events()
        events.subscribe(self._note)
        self.pool = AgentPool(workers, queue, self._agent, events=events)

    async def _agent(self) -> Door:
        return self

    async def run(self, *, session_id: str, payload: dict[str, str]) -> str:
        await self.open.wait()
        if payload["query"] == "fail":
            raise ConnectionError("postgres://agent:secret@db")
        return f"{session_id} asked {payload['query']}"

    def _note(self, event: object) -> None:
        self.started += isinstance(event, JobStarted)
        self.submitted += isinstance(event, JobSubmitted)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, pool: AgentPool, **lifespan: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the application, which is started and stopped as by a server."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    app = import_module("agent_api").create_app(pool, **lifespan)
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://agents") as client,
    ):
        yield client


def asked(session: str, query: str) -> dict[str, str]:
    return {"session_id": session, "query": query}


async def test_a_question_may_be_in_the_query_string_the_body_or_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Door(2, 4)
    door.open.set()
    async with serving(monkeypatch, door.pool) as client:
        answers = [
            await client.post(RUN, params=asked("s1", "why")),
            await client.post(RUN, json=asked("s1", "why")),
            await client.post(RUN, params={"session_id": "s1"}, json={"query": " why "}),
            await client.post(RUN, params=asked("s1", "why"), json=asked("s1", "why")),
        ]
    assert [answer.status_code for answer in answers] == [200] * 4
    wanted = {"status": "success", "result": "s1 asked why"}
    assert [answer.json() for answer in answers] == [wanted] * 4


async def test_a_failing_agent_is_an_answer_that_gives_no_secrets_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Door(1, 1)
    door.open.set()
    async with serving(monkeypatch, door.pool) as client:
        answer = await client.post(RUN, params=asked("s1", "fail"))
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "error", "error": "ConnectionError"},
    )


async def test_a_full_pool_refuses_at_once_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(2, 1)
    async with serving(monkeypatch, door.pool) as client:
        held = [
            asyncio.create_task(client.post(RUN, params=asked(f"s{number}", "wait")))
            for number in range(3)
        ]
        await door.until(lambda: door.submitted == 3)
        for _ in range(5):
            refused = await client.post(RUN, params=asked("s9", "hello"))
            assert refused.status_code == 503
            assert refused.json() == {"detail": "Agent pool at capacity. Retry later."}
            assert int(refused.headers["retry-after"]) >= 1
        health = (await client.get(HEALTH)).json()
        assert (health["queue_size"], health["utilization"]) == (1, 1.0)
        door.open.set()
        answers = await asyncio.gather(*held)
        assert [answer.json()["status"] for answer in answers] == ["success"] * 3
        assert (await client.post(RUN, params=asked("s9", "hello"))).status_code == 200


async def test_many_callers_are_served_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(20, 80)
    async with serving(monkeypatch, door.pool) as client:
        calls = [
            asyncio.create_task(client.post(RUN, json=asked(f"s{number}", str(number))))
            for number in range(100)
        ]
        await door.until(lambda: door.started == 20 and door.submitted == 100)
        door.open.set()
        answers = await asyncio.gather(*calls)
    results = [answer.json().get("result") for answer in answers]
    assert results == [f"s{number} asked {number}" for number in range(100)]


async def test_a_draining_pool_finishes_running_jobs_and_accepts_no_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Door(1, 5)
    async with serving(monkeypatch, door.pool) as client:
        held = asyncio.create_task(client.post(RUN, params=asked("s1", "wait")))
        await door.until(lambda: door.started == 1)
        draining = asyncio.create_task(door.pool.drain())
        await asyncio.sleep(0)
        refused = await client.post(RUN, params=asked("s2", "hello"))
        assert refused.status_code == 503
        assert refused.json() == {"detail": "Agent pool is stopping. Retry later."}
        assert int(refused.headers["retry-after"]) >= 1
        door.open.set()
        assert (await held).json() == {"status": "success", "result": "s1 asked wait"}
        assert (await draining).completed == 1


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, "session_id"),
        ({}, "query"),
        ({"params": {"query": "q"}}, "session_id"),
        ({"params": {"session_id": "s"}}, "query"),
        ({"params": {"session_id": "  ", "query": "q"}}, "session_id"),
        ({"params": {"session_id": "s", "query": ""}}, "query"),
        ({"json": {"session_id": "s", "query": " \n"}}, "query"),
        ({"json": {"session_id": 5, "query": "q"}}, "session_id"),
        ({"json": {"session_id": ["s"], "query": "q"}}, "session_id"),
        ({"json": {"session_id": "s", "query": None}}, "query"),
        ({"json": {"session_id": "s", "query": "q", "colour": "blue"}}, "colour"),
        ({"params": {"session_id": "s"}, "json": {"session_id": "t", "query": "q"}}, "session_id"),
        ({"content": r'{"session_id": "\ud800", "query": "q"}'}, "session_id"),
    ],
)
async def test_a_question_that_cannot_be_understood_is_refused_by_its_field(
    monkeypatch: pytest.MonkeyPatch, sent: dict[str, Any], field: str
) -> None:
    door = Door(1, 1)
    headers = {"content-type": "application/json"} if "content" in sent else {}
    async with serving(monkeypatch, door.pool) as client:
        answer = await client.post(RUN, headers=headers, **sent)
        assert door.submitted == 0
    assert answer.status_code == 422
    assert field in [fault["loc"][-1] for fault in json.loads(answer.content)["detail"]]


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (b'{"session_id": "s",', {422}),
        (b"[1, 2]", {422}),
        (b'"text"', {422}),
        (b"5", {422}),
        (rb'{"session_id": "s", "query": "q", "\ud800": 1}', {422}),
        (b'{"session_id": "\xff", "query": "q"}', {400, 422}),
        (b"[" * 100_000, {400, 422}),
    ],
)
async def test_a_body_that_is_no_question_is_refused(
    monkeypatch: pytest.MonkeyPatch, content: bytes, codes: set[int]
) -> None:
    headers = {"content-type": "application/json"}
    async with serving(monkeypatch, Door(1, 1).pool) as client:
        answer = await client.post(RUN, content=content, headers=headers)
    assert answer.status_code in codes
    assert "Traceback" not in answer.text


async def test_an_application_leaves_no_task_behind_and_can_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Door(3, 3)
    door.open.set()
    before = asyncio.all_tasks()
    for _ in range(3):
        async with serving(monkeypatch, door.pool) as client:
            calls = [client.post(RUN, params=asked(f"s{number}", "why")) for number in range(6)]
            assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
            assert (await client.get(HEALTH)).json()["pool_size"] == 3
        assert asyncio.all_tasks() == before
        assert list_pools() == []


class Server:
    """The example as a process, with its output."""

    def __init__(self, process: Process, address: str) -> None:
        self.process = process
        self.client = httpx2.AsyncClient(base_url=address, timeout=SECONDS)

    async def busy(self) -> None:
        """Wait until an agent is running."""
        health: dict[str, Any] = {}
        while not health.get("utilization"):
            health = (await self.client.get(HEALTH)).json()

    async def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        rest = await self.process.stderr.read()
        return await self.process.wait(), rest.decode()


async def address(process: Process) -> str:
    """Wait until the server prints its address."""
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
            return found[1]
    pytest.fail("the server ended without saying where it listens")


@asynccontextmanager
async def server(*flags: str) -> AsyncIterator[Server]:
    command = [sys.executable, str(EXAMPLE), "--port", "0", *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        one = Server(process, await address(process))
        async with one.client:
            yield one
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.slow
async def test_a_server_that_is_full_refuses_and_recovers() -> None:
    async with server("--workers", "1", "--queue", "1", "--think", "1") as one:
        calls = [one.client.post(RUN, json=asked(f"s{number}", "why")) for number in range(12)]
        answers = await asyncio.gather(*calls)
        taken = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 503]
        assert len(taken) >= 2
        assert refused
        assert len(taken) + len(refused) == 12
        assert {answer.json()["result"] for answer in taken} == {"You asked: why"}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        again = await one.client.post(RUN, params=asked("s1", "now"))
        assert again.json() == {"status": "success", "result": "You asked: now"}
        assert (await one.client.get(HEALTH)).json()["queue_size"] == 0
        assert (await one.stop())[0] == 0


@pytest.mark.slow
async def test_a_stopped_server_answers_its_open_requests_and_exits_cleanly() -> None:
    async with server("--workers", "1", "--think", "2") as one:
        calls = [
            asyncio.create_task(one.client.post(RUN, params=asked(f"s{number}", "why")))
            for number in range(2)
        ]
        await one.busy()
        code, output = await one.stop()
        for answer in await asyncio.gather(*calls):
            assert answer.json() == {"status": "success", "result": "You asked: why"}
    assert code == 0
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fastapi", "uvicorn"])
def test_a_missing_dependency_is_named(name: str) -> None:
    code = (
        f"import runpy, sys; sys.modules[{name!r}] = None; "
        f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"needs {name}" in line
    assert "pip install" in line
