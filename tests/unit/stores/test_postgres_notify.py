"""Hints over PostgreSQL: between processes, through restarts, without blocking other work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from poolhand.runtime import Runtime
from poolhand.stores.postgres import notify as postgres_signals
from poolhand.stores.postgres.connections import address_of
from poolhand.stores.postgres.notify import ANYTHING, LONGEST, PostgresSignals
from tests.contract.test_signals import Ear
from tests.faults.proxy import Proxy
from tests.private_servers.postgres_server import PostgresServer

LIMIT = 40  # seconds after which a wait gives up
NOTICED_WITHIN = 35  # seconds, promised


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[PostgresSignals, Ear]]:
    """Return open signals, and a listener."""
    signals, ear = PostgresSignals(address_of(url), Runtime()), Ear()
    signals.subscribe(ear)
    await signals.open()
    try:
        yield signals, ear
    finally:
        await signals.close()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", postgres.port, watches=True) as one:
        yield one


async def hear(ear: Ear, topic: str) -> None:
    async with asyncio.timeout(LIMIT):
        while topic not in ear.heard:
            ear._news.clear()
            await ear._news.wait()


async def test_a_published_topic_reaches_every_subscriber_once(database: str) -> None:
    async with opened(database) as (one, own), opened(database) as (_, other):
        one.publish("word")
        await hear(other, "word")
        one.publish("last")
        await hear(other, "last")
        assert own.heard == ["word", "last"]


async def test_notifications_are_received_from_open_on(database: str) -> None:
    async with opened(database) as (_, ear):
        outside: Any = await asyncpg.connect(database)
        signals = PostgresSignals(address_of(database), Runtime())
        await outside.execute(f"NOTIFY {signals.channel}, E'somebody\\nword'")
        await hear(ear, "word")
        await outside.close()


async def test_schemas_of_one_database_do_not_receive_topics_of_each_other(database: str) -> None:
    async with (
        opened(f"{database}?schema=one") as (one, _),
        opened(f"{database}?schema=two") as (two, other),
        opened(f"{database}?schema=two") as (_, third),
    ):
        one.publish("secret")
        two.publish("word")
        await hear(third, "word")
        one.publish("secret")
        two.publish("last")
        await hear(third, "last")
        assert other.heard == third.heard == ["word", "last"]


async def test_every_topic_is_delivered_however_many_there_are(database: str) -> None:
    topics = [f"{number:05}".ljust(200, "é") for number in range(100)]
    async with opened(database) as (one, _), opened(database) as (_, other):
        for topic in topics:
            one.publish(topic)
        await hear(other, topics[-1])
        assert other.heard == topics


async def test_a_topic_that_no_message_can_carry_is_dropped_or_cleaned(database: str) -> None:
    async with opened(database) as (one, own), opened(database) as (_, other):
        for topic in ("x" * (LONGEST + 1), "nul\0", "\ud800", ""):
            one.publish(topic)
        one.publish("word")
        await hear(other, "word")
        assert other.heard == ["nul", "?", "word"]
        assert len(own.heard) == 5


@pytest.mark.parametrize("message", ["", "x", "\\n\\n", "y\\nmark", "{}", "\\n"])
async def test_foreign_notifications_are_harmless(database: str, message: str) -> None:
    async with opened(database) as (signals, ear), opened(database) as (other, _):
        outside: Any = await asyncpg.connect(database)
        await outside.execute(f"NOTIFY {signals.channel}, E'{message}'")
        await outside.close()
        other.publish("word")
        await hear(ear, "word")
        assert set(ear.heard) <= {"mark", "word"}


async def test_a_lost_connection_is_reopened_and_publishes_every_topic(
    database: str,
) -> None:
    async with opened(database) as (signals, ear):
        outside: Any = await asyncpg.connect(database)
        assert await end_others(outside) == 1
        await hear(ear, ANYTHING[-1])
        assert tuple(ear.heard) == ANYTHING
        await outside.execute(f"NOTIFY {signals.channel}, E'somebody\\nword'")
        await hear(ear, "word")
        await outside.close()


async def end_others(outside: Any) -> int:
    found: int = await outside.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return found


@pytest.mark.slow
async def test_after_a_server_restart_every_subscriber_receives_again(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.url
    async with opened(url) as (one, ear), opened(url) as (_, other):
        await asyncio.to_thread(own_postgres.restart)
        for each in (ear, other):
            await hear(each, "due")
        one.publish("word")
        await hear(other, "word")


@pytest.mark.slow
async def test_a_silently_dead_connection_is_detected(
    database: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert postgres_signals.PING_EVERY + postgres_signals.PING_SECONDS < NOTICED_WITHIN
    monkeypatch.setattr(postgres_signals, "PING_EVERY", 1.0)
    monkeypatch.setattr(postgres_signals, "PING_SECONDS", 1.0)
    async with opened(proxy.through(database)) as (_, ear), opened(database) as (one, _):
        proxy.half_open()
        # New connections are accepted, so the client has to give up the old one.
        await hear(ear, ANYTHING[-1])
        one.publish("word")
        await hear(ear, "word")
        proxy.mend()


async def test_publishing_without_a_server_neither_blocks_nor_raises(
    database: str, proxy: Proxy
) -> None:
    async with opened(proxy.through(database)) as (signals, ear):
        proxy.refuse()
        proxy.cut()
        for number in range(1000):
            signals.publish(f"word {number}")
        await hear(ear, "word 999")
        assert len([topic for topic in ear.heard if topic.startswith("word")]) == 1000


async def test_an_unreachable_server_does_not_prevent_opening(database: str, proxy: Proxy) -> None:
    proxy.refuse()
    async with opened(proxy.through(database)) as (_, ear):
        proxy.mend()
        await hear(ear, ANYTHING[-1])


@pytest.mark.slow
async def test_a_server_that_does_not_answer_does_not_prevent_opening(
    database: str, proxy: Proxy
) -> None:
    proxy.half_open(new=True)
    async with asyncio.timeout(LIMIT), opened(proxy.through(database)) as (_, ear):
        proxy.mend()
        await hear(ear, ANYTHING[-1])


async def test_opening_twice_listens_once_and_closing_twice_is_harmless(database: str) -> None:
    async with opened(database) as (signals, _), opened(database) as (other, ear):
        await signals.open()
        signals.publish("word")
        await hear(ear, "word")
        assert ear.heard == ["word"]
        await other.close()
        await other.close()


def test_signals_can_be_opened_by_one_loop_after_the_other(database: str) -> None:
    signals = PostgresSignals(address_of(database), Runtime())
    heard = []

    async def main(word: str) -> None:
        ear = Ear()
        end = signals.subscribe(ear)
        await signals.open()
        async with opened(database) as (other, _):
            other.publish(word)
            await hear(ear, word)
        await signals.close()
        end()
        heard.extend(ear.heard)

    asyncio.run(main("first"))
    signals.publish("to nobody")
    asyncio.run(main("second"))
    assert heard == ["first", "second"]


async def test_through_a_pooler_topics_are_sent_but_received_only_past_it(database: str) -> None:
    pooled = f"{database}?pooler=transaction"
    async with (
        opened(pooled) as (told, deaf),
        opened(database) as (direct, ear),
        opened(f"{pooled}&listen={database}") as (past, other),
    ):
        told.publish("word")
        await hear(ear, "word")
        await hear(other, "word")
        direct.publish("answer")
        await hear(other, "answer")
        past.publish("last")
        await hear(ear, "last")
        assert deaf.heard == ["word"]
