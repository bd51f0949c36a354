"""Faults that only a store in a file can have: batches, partial writes, counts, restarts."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from poolhand.contract import Change, ClaimRequest, Filter, JobBatch, JobRequest, Refusal
from poolhand.rules import lifecycle
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import (
    OnFull,
    Policy,
    bounded,
    fail_fast,
    ring_buffer,
    unbounded,
)
from poolhand.rules.queue.ready import MOST_RESTING
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from poolhand.stores.sql.migrations import steps
from poolhand.stores.sqlite.store import SqliteStore
from poolhand.stores.sqlite.tables import MANY as LOT
from tests.contract.support import Clock, Hand, entries, ids, order, over, owner, spec
from tests.unit.stores.tables import faults

MANY = 2 * LOT + 7
TABLES = ("jobs", "waits", "claims", "ends", "lanes", "sessions", "keys", "pools", "log")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def hand(path: Path, clock: Clock) -> AsyncIterator[Hand]:
    store = SqliteStore(path, clock)
    await store.open()
    await store.enroll(owner("hand"))
    yield Hand(store, clock)
    await store.close()


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    asked = {table: f"SELECT * FROM poolhand_{table}" for table in TABLES}  # noqa: S608
    found = {table: connection.execute(text).fetchall() for table, text in asked.items()}
    connection.close()
    return found


def names(count: int) -> list[str]:
    return [f"job-{number:04}" for number in range(count)]


@pytest.mark.parametrize("queue", [fifo(), fair_round_robin()], ids=str)
async def test_batches_larger_than_one_statement_are_supported(hand: Hand, queue: Strategy) -> None:
    await hand.store.declare(spec(queue=queue))
    orders = [order(name, key=name[-1]) for name in names(MANY)]
    answer = await hand.add(*orders)
    assert entries(answer) == ["accepted"] * MANY
    claims = await hand.claim(MANY)
    assert sorted(ids(claims)) == names(MANY)
    assert [claim.token for claim in claims] == list(range(1, MANY + 1))
    told = await hand.store.extend("hand", [claim.token for claim in claims])
    assert (told.alive, told.lost, told.cancel_requested) == (True, (), ())
    await hand.finish(*claims)
    found = await hand.store.get([*names(MANY), "none"])
    assert found[-1] is None
    assert [one.job.id for one in found if one is not None] == names(MANY)
    assert await hand.store.count(Filter()) == {Status.COMPLETED: MANY}


async def test_a_change_named_twice_in_one_lot_is_made_once(hand: Hand) -> None:
    claim = await hand.start("a")
    change = hand.ended(claim)
    assert await hand.change(change, change) == (True, False)


@pytest.mark.parametrize("policy", [fail_fast(), bounded(3, OnFull.FAIL_SUBMITTER)], ids=str)
async def test_a_refused_batch_leaves_nothing_in_any_table(
    hand: Hand, path: Path, policy: Policy
) -> None:
    await hand.store.declare(spec(queue=fair_round_robin(), backpressure=policy, slots=2))
    await hand.take_in("a", key="k", idempotency_key="once")
    before = contents(path)
    batch = [order(f"b{n}", key=f"new-{n}", session="s", idempotency_key=f"{n}") for n in range(6)]
    answer = await hand.add(*batch)
    assert isinstance(answer, Refusal)
    assert contents(path) == before
    await hand.take_in("c", key="new-1", session="s", idempotency_key="1")
    assert ids(await hand.claim()) == ["a", "c"]


async def test_batches_around_a_refused_one_are_not_touched_by_it(hand: Hand, path: Path) -> None:
    await hand.store.declare(spec(backpressure=fail_fast(), slots=3))
    batches = [
        JobBatch((order("a"),)),
        JobBatch(tuple(order(f"b{n}") for n in range(3))),
        JobBatch((order("c"), order("d"))),
        JobBatch((order("e"),)),
    ]
    answers = await hand.store.add(batches)
    assert [isinstance(answer, Refusal) for answer in answers] == [False, True, False, True]
    assert ids(await hand.claim()) == ["a", "c", "d"]
    assert await hand.audited("submit") == ["submit a", "submit c", "submit d"]
    assert list(faults(path)) == []


async def test_a_reopened_store_continues_where_it_stopped(
    hand: Hand, path: Path, clock: Clock
) -> None:
    await hand.store.declare(spec(queue=fair_round_robin(), max_per_key=1))
    await hand.take_in("a", "b", key="k", session="s")
    await hand.take_in("c", key="l", idempotency_key="once")
    (claim, _) = await hand.claim(2)
    seen = await hand.store.get(["a", "b", "c"])
    await hand.store.close()

    again = SqliteStore(path, clock)
    await again.open()
    hand = Hand(again, clock)
    assert await again.get(["a", "b", "c"]) == seen
    await hand.finish(claim)
    assert entries(await hand.add(order("d", idempotency_key="once"))) == ["joined"]
    (heir,) = await hand.claim()
    assert (heir.job.id, heir.token) == ("b", 3)
    await again.close()
    assert list(faults(path)) == []


async def test_a_payload_is_written_once(hand: Hand, path: Path) -> None:
    large = bytes(500_000)
    await hand.store.add([JobBatch((JobRequest(order("a").job, large),))])
    size = path.with_name("jobs.db-wal").stat().st_size
    (claim,) = await hand.claim()
    assert await hand.retry(claim)
    (claim,) = await hand.claim()
    await hand.finish(claim)
    assert path.with_name("jobs.db-wal").stat().st_size - size < len(large) // 2
    assert await hand.call_record("a") == claim.call_record == large


async def test_lanes_of_keys_that_are_never_used_again_do_not_fill_the_file(
    hand: Hand, path: Path
) -> None:
    await hand.store.declare(spec(queue=fair_round_robin()))
    await hand.take_in("a", key="k")
    await hand.claim()
    connection = sqlite3.connect(path)
    lanes = [(f"old-{number}", number, number) for number in range(1, MOST_RESTING + 10)]
    with connection:
        connection.executemany("INSERT INTO poolhand_lanes VALUES (1, ?, 1000000 + ?, ?, 0)", lanes)
    await hand.store.prune(over(0.0))
    (count,) = connection.execute("SELECT count(*) FROM poolhand_lanes").fetchone()
    assert count == MOST_RESTING
    connection.close()


RULES = [
    (strategy, policy, cap)
    for strategy in (fifo(), lifo(), priority(2.0), fair_round_robin())
    for policy in (unbounded(), ring_buffer(4), bounded(3), bounded(4, OnFull.DROP_NEWEST))
    for cap in (None, 2)
]


@pytest.mark.parametrize(("queue", "policy", "cap"), RULES, ids=str)
async def test_the_counters_match_the_rows_whatever_happens(
    hand: Hand, path: Path, queue: Strategy, policy: Policy, cap: int | None
) -> None:
    random = Random(f"{queue} {policy} {cap}")
    await hand.store.declare(spec(queue=queue, backpressure=policy, slots=3, max_per_key=cap))
    claims = []
    for number in range(60):
        options: dict[str, Any] = {
            "key": random.choice("ABC"),
            "priority": random.randint(0, 2),
            "session": random.choice([None, None, "s"]),
            "delay": random.choice([None, None, 1.0]),
            "expires": random.choice([None, None, 3.0]),
            "idempotency_key": random.choice([None, None, "k"]),
        }
        match random.randrange(6):
            case 0 | 1 | 2:
                await hand.submit(f"job-{number}", **options)
            case 3:
                claims += await hand.claim(random.randint(1, 3))
            case 4 if claims:
                claim = claims.pop(random.randrange(len(claims)))
                job = random.choice([hand.ended(claim).job, lifecycle.hand_back(claim.job)])
                change = Change(job, claim.token, random.choice([None, 0.5]), random.random() < 0.2)
                claims += (await hand.store.replace([change], ClaimRequest("hand", (0,)))).claims
            case _:
                hand.clock.wait(random.choice([0.5, 1.0]))
                await hand.store.promote()
                await hand.store.cancel([f"job-{random.randrange(60)}"], "me")
        assert list(faults(path)) == []


def test_counters_that_do_not_match_are_found(path: Path) -> None:
    connection = sqlite3.connect(path)
    for step in steps():
        connection.executescript(step.text)
    with connection:
        connection.execute(
            "INSERT INTO poolhand_pools (name, spec, queued) VALUES ('pool', x'', 1)"
        )
        connection.execute(
            "INSERT INTO poolhand_waits (seq, pool, place, since) VALUES (7, 1, 5, 0)"
        )
    connection.close()
    assert [fault.rpartition(": ")[0] for fault in faults(path)] == [
        "a place is held by a job that is not there",
        "a job is between two places",
        "a pool does not know who waits",
    ]


async def test_jobs_without_a_key_blocked_by_an_older_version_are_unblocked(
    hand: Hand, path: Path
) -> None:
    await hand.store.declare(spec(max_per_key=1))
    claim = await hand.start("a")
    await hand.take_in("b", "c")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE poolhand_waits SET place = 3, gate = ''")
        connection.execute("UPDATE poolhand_claims SET gate = ''")
        connection.execute("UPDATE poolhand_pools SET queued = 0")
    connection.close()
    assert await hand.statuses("b", "c") == "blocked blocked"
    assert await hand.claim() == []
    await hand.finish(claim)
    assert await hand.serve() == ["b", "c"]
    assert list(faults(path)) == []
