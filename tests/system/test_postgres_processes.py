"""Four processes on one schema: guarantees of one process hold over all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from poolhand.contract import Filter
from poolhand.rules.job import Status
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from tests import warm
from tests.private_servers.postgres_server import PostgresServer
from tests.system.postgres_crew import COUNTER, PER_KEY, SLOTS, STREAM, pools, take_part
from tests.unit.stores.tables import postgres_faults

T = TypeVar("T")

HANDS = 4
ROUNDS = 120
LIMIT = 55  # seconds after which a wait gives up

pytestmark = pytest.mark.slow


async def ask(url: str, verb: Callable[[PostgresStore], Awaitable[T]]) -> T:
    store = PostgresStore(url, Runtime())
    await store.open()
    try:
        return await verb(store)
    finally:
        await store.close()


async def declare_all(store: PostgresStore) -> None:
    for one in pools():
        await store.declare(one)


def work(url: str, story: Path, seed: int) -> list[list[str]]:
    """Let all processes do their share and return their reports."""
    crew = [
        warm.start_call(take_part, url, story, f"hand-{n}", seed * 10 + n, ROUNDS)
        for n in range(HANDS)
    ]
    try:
        assert [one.wait(LIMIT) for one in crew] == [0] * HANDS
    finally:
        for one in crew:
            one.kill()
    return [line.split(" ") for line in story.read_text().splitlines()]


def most_at_once(story: list[list[str]], alike: Callable[[list[str]], str]) -> Counter[str]:
    """Return the largest number of runs at once among those with the same label."""
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for words in story:
        if words[0] in ("begin", "end"):
            which = alike(words)
            now[which] += 1 if words[0] == "begin" else -1
            most[which] = max(most[which], now[which])
    return most


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_everything_at_once_from_many_processes_holds(
    postgres: PostgresServer, database: str, tmp_path: Path, seed: int
) -> None:
    asyncio.run(ask(database, declare_all))
    story = work(database, tmp_path / "story", seed)
    assert asyncio.run(postgres_faults(database)) == []
    # One owner at a time for each job, one turn at a time for each session, and the caps.
    assert max(most_at_once(story, lambda words: words[1]).values()) == 1
    sessions = most_at_once(story, lambda words: f"{words[3]} {words[5]}")
    assert {many for name, many in sessions.items() if not name.endswith(" -")} == {1}
    of_pool = most_at_once(story, lambda words: words[3])
    assert of_pool["capped"] <= SLOTS
    assert of_pool["tight"] <= 2
    of_key = most_at_once(story, lambda words: f"{words[3]} {words[4]}")
    assert max(many for name, many in of_key.items() if name.startswith("fair ")) <= PER_KEY
    expect_one_job_for_a_key(story)
    expect_all_over(database, story)
    name = urlsplit(database).path[1:]
    text = f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{name}'"  # noqa: S608
    # A deadlock is survived but costs a second, so there must be hardly any.
    assert int(postgres.query(text)) <= 2


def expect_one_job_for_a_key(story: list[list[str]]) -> None:
    """A submit that joined got a job that was accepted."""
    added = [words for words in story if words[0] == "added"]
    taken = {words[1] for words in added if words[2] == "accepted"}
    joined = [words for words in added if words[2] == "joined"]
    assert len(taken) == len([words for words in added if words[2] == "accepted"])
    assert joined
    assert {words[1] for words in joined} <= taken


def expect_all_over(url: str, story: list[list[str]]) -> None:
    """Every accepted job is over, with what was written at its end."""
    taken = {words[1] for words in story if words[0] == "added" and words[2] == "accepted"}

    async def look(store: PostgresStore) -> None:
        counts = await store.count(Filter())
        assert sum(counts.values()) == len(taken)
        assert set(counts) <= {Status.COMPLETED, Status.CANCELLED}
        found = await store.get_document(COUNTER)
        assert found is not None
        assert int(found[0]) == found[1] == len([1 for words in story if words[0] == "counted"])
        lines = await store.read(STREAM, limit=100_000)
        assert len(lines) == counts[Status.COMPLETED]
        assert [line.number for line in lines] == list(range(1, len(lines) + 1))

    asyncio.run(ask(url, look))
