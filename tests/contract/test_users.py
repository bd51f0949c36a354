"""Users: a session belongs to the user of its first accepted turn."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from poolhand.contract import JobBatch, Put, Refusal
from poolhand.rules.queue.backpressure import OnFull, bounded
from poolhand.rules.streams import session_of, streams_of_session
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.support import Another, Clock, Hand, entries, order, over, owner, refused, spec

S = session_of(None, "s")
LIMIT = 30


async def users(hand: Hand, *keys: str) -> dict[str, str | None]:
    return dict(await hand.store.users_of(keys or (S,)))


@pytest.mark.parametrize(
    ("first", "second"), [("ana", "bob"), ("ana", None), (None, "ana")], ids=str
)
async def test_a_turn_of_another_user_is_refused_and_leaves_no_trace(
    hand: Hand, first: str | None, second: str | None
) -> None:
    assert await users(hand) == {}
    await hand.take_in("a", session="s", user=first)
    assert await users(hand) == {S: first}
    before = await hand.audited()
    answer = refused(await hand.submit("b", session="s", user=second))
    assert (answer.reason, answer.pool) == ("user", "pool")
    # In whatever pool it is submitted, and whatever job it would have joined.
    refused(await hand.submit("b", "other", session="s", user=second))
    refused(await hand.submit("b", session="s", user=second, idempotency_key="k", delay=5.0))
    assert await hand.store.get(["b"]) == [None]
    assert await hand.audited() == before
    await hand.take_in("c", session="s", user=first)
    # Another session, and the same name under another tenant, are other sessions.
    await hand.take_in("d", session="t", user=second)
    await hand.take_in("e", session="s", tenant="x", user=second)
    assert await users(hand, S, session_of("x", "s")) == {S: first, session_of("x", "s"): second}


async def test_the_first_of_concurrent_batches_owns_the_session(hand: Hand) -> None:
    batches = [JobBatch((order(id, session="s", user=user),)) for id, user in ("aX", "bY", "cX")]
    answers = await hand.store.add(batches)
    assert [isinstance(answer, Refusal) for answer in answers] == [False, True, False]
    mixed = (order("d", session="t", user="X"), order("e", session="t", user="Y"))
    assert refused(await hand.add(*mixed)).reason == "user"
    assert await hand.store.get(["d"]) == [None]
    assert await users(hand, S, session_of(None, "t")) == {S: "X"}


async def test_a_refused_turn_does_not_start_a_session(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, on_full=OnFull.FAIL_SUBMITTER)))
    await hand.take_in("full")
    refused(await hand.submit("a", session="s", user="ana"))
    both = [order("b", "other", session="s", user="ana"), order("c", session="s", user="ana")]
    refused(await hand.add(*both))
    await hand.store.declare(spec("drops", backpressure=bounded(1, on_full=OnFull.DROP_NEWEST)))
    await hand.take_in("in", pool="drops")
    assert entries(await hand.add(order("d", "drops", session="s", user="ana"))) == ["rejected"]
    assert await users(hand) == {}
    await hand.take_in("e", pool="other", session="s", user="bob")
    assert await users(hand) == {S: "bob"}


async def test_a_blocked_submitter_owns_the_session_until_it_withdraws(hand: Hand) -> None:
    policy = bounded(1, on_full=OnFull.BLOCK_SUBMITTER)
    await hand.store.declare(spec(backpressure=policy))
    await hand.take_in("full")
    assert entries(await hand.add(order("a", session="s", user="ana"))) == ["blocked_submitter"]
    assert refused(await hand.submit("b", "other", session="s", user="bob")).reason == "user"
    await hand.withdraw("a")
    assert await users(hand) == {}
    await hand.take_in("c", pool="other", session="s", user="bob")


async def test_a_transaction_is_refused_a_session_of_another_user(hand: Hand) -> None:
    await hand.take_in("a", session="s", user="ana")
    transaction = await hand.store.begin()
    answer = await transaction.add(JobBatch((order("b", session="s", user="bob"),)))
    assert refused(answer).reason == "user"
    assert entries(await transaction.add(JobBatch((order("c", session="t", user="bob"),))))
    await transaction.roll_back()
    assert await users(hand, S, session_of(None, "t")) == {S: "ana"}


async def test_a_dead_turn_is_run_again_for_its_user(hand: Hand, clock: Clock) -> None:
    claim = await hand.start("a", session="s", user="ana")
    await hand.finish(claim, status=claim.job.status.FAILED)
    again = order("b", session="s", user="ana", revives="a", continues="a")
    assert entries(await hand.add(again)) == ["accepted"]


# How long the owner is remembered


async def test_a_session_without_state_is_deleted_with_its_last_job(
    hand: Hand, clock: Clock
) -> None:
    for id in "ab":
        await hand.finish(await hand.start(id, session="s", user="ana"))
        clock.wait(10.0)
    assert await hand.store.prune(over(15.0)) == 1
    assert await users(hand) == {S: "ana"}
    assert await hand.store.prune(over(5.0)) == 1
    assert await users(hand) == {}


async def test_a_session_is_deleted_when_its_state_expires(hand: Hand, clock: Clock) -> None:
    await hand.store.put([Put(S, b"{}", ttl=100.0)])
    await hand.finish(await hand.start("a", session="s", user="ana"))
    clock.wait(50.0)
    assert await hand.store.prune(over(5.0)) == 1
    assert await users(hand) == {S: "ana"}
    assert refused(await hand.submit("b", session="s", user="bob")).reason == "user"
    clock.wait(60.0)
    await hand.store.prune(over(5.0))
    assert await users(hand) == {}


async def test_an_erased_session_can_be_started_by_any_user(hand: Hand) -> None:
    await hand.store.put([Put(S, b"{}")])
    for id, session in (("a", "s"), ("b", "t")):
        await hand.finish(await hand.start(id, session=session, user="ana"))
    await hand.store.erase(["a"], streams_of_session(None, "s"), "op", [S])
    assert await users(hand, S, session_of(None, "t")) == {session_of(None, "t"): "ana"}
    await hand.store.erase(["b"], (), "op")
    assert await users(hand, session_of(None, "t")) == {}
    await hand.take_in("c", session="s", user="bob")


# Concurrent first turns


async def test_one_user_of_concurrent_first_turns_owns_the_session(
    another: Another, clock: Clock
) -> None:
    stores = [await another() for _ in range(3)]
    await stores[0].enroll(owner("hand"))
    sessions = [f"s-{number}" for number in range(20)]
    people = ("ana", "bob", "eve")
    asked = [
        store.add([JobBatch(tuple(order(user + one, user, session=one, user=user) for one in two))])
        for first, second in zip(sessions[::2], sessions[1::2], strict=True)
        for store, user in zip(stores, people, strict=True)
        for two in [(first, second) if user == "ana" else (second, first)]
    ]
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*asked)
    owners = await stores[0].users_of([session_of(None, name) for name in sessions])
    assert len(owners) == len(sessions)
    for name in sessions:
        found = await stores[0].get([user + name for user in people])
        kept = [one.job.user for one in found if one is not None]
        assert kept == [owners[session_of(None, name)]]


@pytest.mark.slow
async def test_a_session_is_not_deleted_while_a_turn_is_being_added(store_schema: str) -> None:
    store = PostgresStore(store_schema, Runtime())
    await store.open()
    await store.enroll(owner("hand"))
    hand = Hand(store, Clock())
    await hand.finish(await hand.start("a", session="s", user="ana"))
    looker = await asyncpg.connect(store_schema.partition("?")[0])
    try:
        transaction = await store.begin()
        await transaction.add(JobBatch((order("b", session="s", user="ana"),)))
        pruned = asyncio.create_task(store.prune(over(0.0)))
        async with asyncio.timeout(LIMIT):
            while not await looker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                assert not pruned.done()
        await transaction.commit()
        assert await pruned == 1
        assert await users(hand) == {S: "ana"}
    finally:
        await looker.close()
        await store.close()


async def test_the_second_user_of_a_session_waits_for_the_first_commit_and_is_refused(
    store_schema: str,
) -> None:
    store = PostgresStore(store_schema, Runtime())
    await store.open()
    url, _, name = store_schema.partition("?schema=")
    path = {"search_path": name}
    first = await asyncpg.connect(url, server_settings=path)
    looker = await asyncpg.connect(url)
    try:
        transaction = first.transaction()
        await transaction.start()
        await first.execute("INSERT INTO poolhand_session_users VALUES ($1, 'ana')", S)
        second = asyncio.create_task(store.add([JobBatch((order("a", session="s", user="bob"),))]))
        async with asyncio.timeout(LIMIT):
            while not await looker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                assert not second.done()
        await transaction.commit()
        (answer,) = await second
        assert refused(answer).reason == "user"
        assert await store.get(["a"]) == [None]
    finally:
        await first.close()
        await looker.close()
        await store.close()
