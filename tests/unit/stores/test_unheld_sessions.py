"""Sessions that are closed although no job holds them: found, and freed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from poolhand import App, subscribe
from poolhand.contract import Store
from poolhand.observe.events import Event, SessionFreed
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import Level
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from poolhand.stores.postgres.connections import address_of
from tests.contract.support import Clock, Hand, owner, spec

# The result of a transaction that read an older state than its locks protect.
DAMAGE = {
    "the holder is over": "UPDATE poolhand_sessions SET holder = 1",
    "the holder was never there": "UPDATE poolhand_sessions SET holder = 99",
    "nobody is written down": "DELETE FROM poolhand_sessions",
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("store_schema"))


@pytest.fixture
async def hand(url: str) -> AsyncIterator[Hand]:
    store = store_of(url, Runtime())
    await store.open()
    await store.enroll(owner("hand"))
    yield Hand(store, Clock())
    await store.close()


async def damage(url: str, text: str) -> None:
    """Change a table directly in the database."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(text)
        connection.close()
        return
    address = address_of(url)
    outside: Any = await asyncpg.connect(address.dsn)
    await outside.execute(f'SET search_path TO "{address.schema}"; {text}')
    await outside.close()


async def close_session(hand: Hand, url: str, how: str, waiting: int = 2) -> None:
    """Complete one turn and leave others waiting for a session that no job holds."""
    await hand.finish(await hand.start("first", session="s"))
    claim = await hand.start("second", session="s")
    await hand.take_in(*[f"turn {number}" for number in range(waiting)], session="s")
    await hand.take_in("other", session="t")
    await hand.store.cancel(["other"], "me")
    await hand.finish(claim)
    (running,) = await hand.claim(1)
    assert running.job.id == "turn 0"
    await damage(url, DAMAGE[how])
    await hand.finish(running)


@pytest.mark.parametrize("how", DAMAGE)
async def test_a_session_that_no_job_holds_is_found_and_freed(
    hand: Hand, url: str, how: str
) -> None:
    await close_session(hand, url, how, waiting=4)
    assert await hand.status("turn 1") == "blocked"
    assert await hand.claim(5) == []
    assert await hand.store.unheld() == [("pool", "s")]
    assert await hand.store.unheld(free=True) == [("pool", "s")]
    assert await hand.store.unheld(free=True) == []
    assert await hand.serve() == ["turn 1", "turn 2", "turn 3"]


async def test_a_held_session_is_left_alone(hand: Hand) -> None:
    await hand.store.declare(spec("capped", max_per_key=1, slots=1))
    for pool in ("pool", "capped"):
        claim = await hand.start(f"{pool} a", pool, session="s")
        await hand.take_in(f"{pool} b", pool=pool, session="s")
        assert await hand.store.unheld(free=True) == []
        # A turn that waits for its next attempt, or for its key, keeps its session.
        assert await hand.retry(claim, wait=3600.0)
        assert await hand.store.unheld(free=True) == []
        await hand.take_in(f"{pool} c", f"{pool} d", pool=pool, session="t", delay=3600.0)
        assert await hand.store.unheld(free=True) == []
        assert await hand.status(f"{pool} b") == "blocked"


async def test_a_job_that_is_stuck_has_left_its_session(hand: Hand) -> None:
    claim = await hand.start("a", session="s")
    await hand.take_in("b", session="s")
    await hand.change(hand.ended(claim, stuck=True))
    assert await hand.store.unheld(free=True) == []
    assert await hand.serve() == ["b"]


async def test_doctor_finds_a_session_that_no_job_holds(hand: Hand, url: str) -> None:
    await close_session(hand, url, "nobody is written down")
    store: Store = store_of(url, Runtime())
    found = {one.check: one for one in await examine(store, Runtime())}
    assert found["sessions"].level is Level.WRONG
    assert "1 session ('s' in pool 'pool')" in found["sessions"].text
    assert "start a worker" in (found["sessions"].fix or "")


@pytest.mark.parametrize("how", DAMAGE)
async def test_the_leader_frees_a_session_without_a_holder_and_reports_it(
    hand: Hand, url: str, how: str
) -> None:
    await close_session(hand, url, how)
    freed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear(event: Event) -> None:
        if isinstance(event, SessionFreed):
            loop.call_soon_threadsafe(freed.put_nowait, (event.pool, event.session))

    end = subscribe(hear)
    try:
        async with App(url) as app, asyncio.timeout(50):
            await app.core.connection()
            assert await freed.get() == ("pool", "s")
    finally:
        end()
    assert await hand.serve() == ["turn 1"]
