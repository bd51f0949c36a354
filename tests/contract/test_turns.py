"""Turns that find their session busy: each `on_busy` is decided with the add."""

from __future__ import annotations

import pytest

from poolhand.contract import Added
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import fail_fast
from poolhand.rules.queue.gates import OnBusy
from poolhand.rules.streams import inbox_of, rollbacks_of
from tests.contract.support import Hand, entries, order, refused, spec


async def test_a_turn_in_a_free_session_is_accepted_with_every_on_busy(hand: Hand) -> None:
    for way in OnBusy:
        mine, other = f"{way} s", f"{way} t"
        assert await enter(hand, f"{way} a", way, mine) == ["accepted"]
        (claim,) = await hand.claim(1, (way,))
        assert claim.job.id == f"{way} a"
        await hand.finish(claim)
        assert await enter(hand, f"{way} b", way, mine) == ["accepted"]
        # Another session, and the same of another tenant, are others.
        assert await enter(hand, f"{way} c", way, other) == ["accepted"]
        assert await enter(hand, f"{way} d", way, mine, tenant="x") == ["accepted"]
        assert await hand.statuses(f"{way} b", f"{way} c", f"{way} d") == "queued queued queued"


async def enter(hand: Hand, id: str, way: OnBusy, session: str, **options: str) -> list[str]:
    """Bring a turn in, in a pool of its way, and return how it entered."""
    return entries(await hand.add(order(id, way, session=session, on_busy=way, **options)))


async def test_a_turn_that_may_not_wait_is_refused_and_leaves_no_trace(hand: Hand) -> None:
    await hand.start("a", session="s")
    before = await hand.audited()
    answer = refused(await hand.add(order("b", session="s", on_busy=OnBusy.REJECT)))
    assert (answer.reason, answer.pool) == ("busy", "pool")
    assert await hand.store.get(["b"]) == [None]
    assert await hand.audited() == before


@pytest.mark.parametrize("way", [OnBusy.INTERRUPT, OnBusy.ROLLBACK], ids=str)
async def test_an_interrupting_turn_cancels_the_running_one(hand: Hand, way: OnBusy) -> None:
    claim = await hand.start("a", session="s")
    assert entries(await hand.add(order("b", session="s", on_busy=way))) == ["accepted"]
    assert (await hand.get("a")).cancel_requested
    assert await hand.statuses("a", "b") == "running blocked"
    assert await rolled_back(hand) == ([b"a"] if way is OnBusy.ROLLBACK else [])
    await hand.finish(claim, status=Status.CANCELLED)
    assert [one.job.id for one in await hand.claim(2)] == ["b"]
    assert "cancel a" in await hand.audited("cancel")


@pytest.mark.parametrize("way", [OnBusy.INTERRUPT, OnBusy.ROLLBACK], ids=str)
async def test_an_interrupting_turn_cancels_the_waiting_one(hand: Hand, way: OnBusy) -> None:
    await hand.take_in("a", session="s")
    assert entries(await hand.add(order("b", session="s", on_busy=way))) == ["accepted"]
    assert await hand.statuses("a", "b") == "cancelled queued"
    assert await rolled_back(hand) == ([b"a"] if way is OnBusy.ROLLBACK else [])


async def rolled_back(hand: Hand) -> list[bytes]:
    return [line.body for line in await hand.store.read(rollbacks_of(None, "s"))]


async def test_a_refused_interrupting_turn_cancels_nothing(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=fail_fast(), slots=1))
    await hand.start("a", session="s")
    refused(await hand.add(order("b", session="s", on_busy=OnBusy.INTERRUPT)))
    assert not (await hand.get("a")).cancel_requested


async def test_a_turn_joins_the_last_waiting_one_or_waits_itself(hand: Hand) -> None:
    claim = await hand.start("a", session="s")
    merge = OnBusy.MERGE
    assert entries(await hand.add(order("b", session="s", on_busy=merge))) == ["accepted"]
    joined = await hand.add(order("c", session="s", on_busy=merge))
    assert isinstance(joined, tuple)
    assert [(one.job.id, one.entry.value) for one in joined] == [("b", "joined")]
    await hand.take_in("d", session="s")
    await hand.add(order("e", session="s", on_busy=merge))
    # A turn of another task is not merged.
    assert entries(await hand.add(order("f", session="s", name="other", on_busy=merge))) == [
        "accepted"
    ]
    assert await hand.store.get(["c", "e"]) == [None, None]
    assert [one.body for one in await hand.store.read(inbox_of("b"))] == [b"brief of c"]
    assert [one.body for one in await hand.store.read(inbox_of("d"))] == [b"brief of e"]
    await hand.finish(claim)
    assert await hand.statuses("b", "d", "f") == "queued blocked blocked"


async def test_a_turn_that_has_started_is_not_joined(hand: Hand) -> None:
    claim = await hand.start("a", session="s")
    await hand.retry(claim)
    (added,) = await taken(hand, "b")
    assert added.entry.value == "accepted"
    assert await hand.store.read(inbox_of("a")) == []


async def test_a_turn_that_waits_for_its_first_start_is_joined(hand: Hand) -> None:
    await hand.take_in("a", session="s")
    (added,) = await taken(hand, "b")
    assert (added.job.id, added.entry.value) == ("a", "joined")


async def taken(hand: Hand, id: str) -> tuple[Added, ...]:
    answer = await hand.add(order(id, session="s", on_busy=OnBusy.MERGE))
    assert isinstance(answer, tuple)
    return answer


async def test_an_idempotency_key_is_checked_before_the_session(hand: Hand) -> None:
    await hand.start("a", session="s", idempotency_key="k")
    for way in OnBusy:
        answer = await hand.add(order("b", session="s", idempotency_key="k", on_busy=way))
        assert entries(answer) == ["joined"]
    assert not (await hand.get("a")).cancel_requested
