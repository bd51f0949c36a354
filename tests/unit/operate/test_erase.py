"""Erasing a session: all its data is deleted, and nothing restores it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from poolhand import Session, Ticket, emit, step, tool, wait
from poolhand.app import App
from poolhand.contract import Put
from poolhand.durable.connection.connection import store_proxy
from poolhand.errors import SessionErased
from poolhand.operate.sessions import ErasedView, erase_session
from poolhand.rules.job import SESSION_ERASED
from poolhand.rules.streams import session_of, streams_of, streams_of_session
from poolhand.stores.sqlite.store import MemoryStore
from tests.contract.support import Clock, Hand, owner
from tests.unit.durable.conftest import url

__all__ = ["url"]

LIMIT = 30
MARKER = "the-secret-of-anna"


async def result(ticket: Ticket[Any]) -> Any:
    async with asyncio.timeout(LIMIT):
        return await ticket


def chatting(app: App) -> Any:
    """Return an agent that leaves its message in every place that stores data."""

    @tool
    async def look_up(what: str) -> str:
        return f"found {what}"

    @tool(scope="session", key_fields=["what"])
    async def remember(what: str) -> str:
        return f"remembered {what}"

    @app.agent(name="chat", on_busy="merge")
    async def chat(session: Session, message: str) -> str:
        session.state["messages"].append(message)
        await session.save()
        await emit(message)
        await step("think", lambda about: about * 2, message)
        await look_up(message)
        await remember(message)
        sys.stdout.write(message)
        return message

    return chat


async def test_all_that_a_session_has_left_is_erased(url: str) -> None:
    app = App(url)
    chat = chatting(app)
    async with app, app.worker(capture=True):
        door = chat.session("s", tenant="acme")
        tickets = [await door.submit(f"{MARKER} {number}") for number in range(3)]
        jobs = [(await wait(ticket, LIMIT)).id for ticket in tickets]
        other = await chat.session("s").submit("mine")
        await result(other)
        store = store_proxy(app.core)
        assert len(await store.scan("receipt/session/acme/")) > 0
        gone = await app.operator().erase_session("s", "anna", tenant="acme")
        assert gone is not None
        left = {tuple(key.split("/")[1:3]) for key in await store.scan("receipt/")}
        assert left == {("run", other.id), ("session", "")}
        names = [*streams_of_session("acme", "s"), *(one for id in jobs for one in streams_of(id))]
        assert [await store.read(name) for name in names] == [[]] * len(names)
        assert await store.scan("session/") == [session_of(None, "s")]
        assert await app.get(jobs[0]) is None


@pytest.mark.parametrize("size", [1, 300], ids=["small", "of many pages"])
async def test_no_erased_byte_is_left_in_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "jobs.db"
    app = App(f"sqlite:///{path}")
    chat = chatting(app)
    async with app, app.worker(capture=True):
        for name in ("s", "other"):
            door = chat.session(name)
            for number in range(4):
                said = MARKER if name == "s" else "nothing"
                await result(await door.submit(f"{said} {number} " * size))
        assert MARKER.encode() in raw(path)
        assert await app.operator().erase_session("s", "anna") is not None
        # While the store is open: its log is truncated at once.
        assert MARKER.encode() not in raw(path)
        assert path.with_name("jobs.db-wal").stat().st_size == 0
        assert b"nothing" in raw(path)


def raw(path: Path) -> bytes:
    return b"".join(one.read_bytes() for one in (path, path.with_name("jobs.db-wal")))


class Running:
    """A session with a turn that has begun and waits; then the session is erased."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.saved: list[str] = []

        @self.app.agent(name="chat")
        async def chat(session: Session, message: str) -> str:
            session.state["messages"].append(message)
            if message == "first":
                return message
            self.begun.set()
            await self.goes_on.wait()
            if message == "saves":
                try:
                    await session.save()
                except SessionErased as error:
                    self.saved.append(str(error))
                    raise
            return message

        self.door = chat.session("s")

    async def play(self, message: str) -> Any:
        await result(await self.door.submit("first"))
        ticket = await self.door.submit(message)
        await self.begun.wait()
        key = session_of(None, "s")
        store = store_proxy(self.app.core)
        assert await store.erase([], streams_of_session(None, "s"), "anna", [key]) == []
        self.goes_on.set()
        job = await wait(ticket, LIMIT)
        assert await self.door.record() is None
        assert await self.door.revisions() == []
        return job


async def test_a_turn_that_saves_after_its_session_was_erased_gets_an_error(url: str) -> None:
    running = Running(url)
    async with running.app as app, app.worker():
        job = await running.play("saves")
    assert (job.status, job.attempts) == ("failed", 1)
    assert job.error.type.endswith("SessionErased")
    assert "was erased while job" in running.saved[0]


async def test_a_turn_that_ends_after_its_session_was_erased_does_not_bring_it_back(
    url: str,
) -> None:
    running = Running(url)
    async with running.app as app, app.worker():
        job = await running.play("ends")
        assert (job.status, job.result) == ("completed", "ends")
        (stored,) = await store_proxy(app.core).get([job.id])
        assert stored is not None
        assert stored.job.marks == (SESSION_ERASED,)
        assert await running.door.history() == []
        # The next turn begins a new session.
        await result(await running.door.submit("first"))
        record = await running.door.record()
    assert record is not None
    assert record.state["messages"] == ["first"]


async def until_erased(store: MemoryStore) -> None:
    gone = asyncio.Event()

    def look(topic: str) -> None:
        gone.set()

    store.subscribe(look)
    while await store.get_document(session_of(None, "s")) is not None:
        store.publish("look")
        await gone.wait()
        gone.clear()


async def test_a_turn_whose_code_still_runs_is_erased_when_it_has_ended() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    await store.open()
    await store.enroll(owner("hand"))
    hand = Hand(store, clock)
    claim = await hand.start("turn", session="s")
    await store.put([Put(session_of(None, "s"), b"")])
    await hand.change(hand.ended(claim, stuck=True))
    async with asyncio.timeout(LIMIT):
        erasing = asyncio.create_task(erase_session(store, None, "s", "anna"))
        await until_erased(store)
        assert (await hand.get("turn")).job.id == "turn"
        await store.replace(released=[claim.token])
        assert await erasing == ErasedView("s", None, 1)
    assert await store.get(["turn"]) == [None]
    await store.close()
