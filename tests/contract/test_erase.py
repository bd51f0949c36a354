"""Erasing: what is over goes at once, with all that belongs to it."""

from __future__ import annotations

from poolhand.contract import Line
from poolhand.rules.job import Status
from poolhand.rules.streams import streams_of
from tests.contract.support import Hand


async def erase(hand: Hand, *ids: str, streams: tuple[str, ...] = ()) -> list[str]:
    return await hand.store.erase(ids, streams, "anna")


async def test_a_job_that_is_over_goes_with_its_streams_and_its_key(hand: Hand) -> None:
    claim = await hand.start("a", idempotency_key="k", session="s")
    await hand.store.append([Line(stream, "kind", b"secret") for stream in streams_of("a")])
    await hand.finish(claim)
    await hand.finish(await hand.start("b", idempotency_key="other"))
    assert await erase(hand, "a", "a", "nobody", "x\ud800") == ["a"]
    assert await hand.store.get(["a", "b"]) == [None, await hand.get("b")]
    assert [await hand.store.read(stream) for stream in streams_of("a")] == [[], [], []]
    assert await hand.count() == {Status.COMPLETED: 1}
    # Its key stands for nobody, and is free.
    await hand.take_in("c", idempotency_key="k")
    assert await hand.status("c") == "queued"
    assert await hand.audited("erase") == ["erase a"]
    assert await erase(hand, "a") == []


async def test_what_is_not_over_stays(hand: Hand) -> None:
    claim = await hand.start("running")
    await hand.take_in("waiting", delay=5.0)
    stuck = await hand.start("stuck")
    await hand.change(hand.ended(stuck, stuck=True))
    assert await erase(hand, "running", "waiting", "stuck") == []
    await hand.finish(claim)
    await hand.store.release([stuck.token])
    assert await erase(hand, "running", "waiting", "stuck") == ["running", "stuck"]
    assert await hand.count() == {Status.SCHEDULED: 1}


async def test_other_streams_go_too(hand: Hand) -> None:
    await hand.store.append([Line("s", "kind", b""), Line("t", "kind", b"")])
    assert await erase(hand, streams=("s", "nobody", "x\ud800")) == []
    assert await hand.store.read("s") == []
    assert len(await hand.store.read("t")) == 1


async def test_pruning_goes_on_beside_what_was_erased(hand: Hand) -> None:
    for id in "abc":
        await hand.finish(await hand.start(id))
    assert await erase(hand, "b") == ["b"]
    assert await hand.store.prune(0.0) == 2
    assert await hand.count() == {}
