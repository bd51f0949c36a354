"""Signals: hints that something may have changed, sent after the change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from poolhand.contract import ClaimRequest
from poolhand.rules.queue.backpressure import bounded
from poolhand.stores.sql.tables import EXPIRED_AT_ONCE
from tests.contract.support import Another, Hand, order, spec


class Ear:
    """Records the signals of a store; a test waits for a signal, never for time."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, topic: str) -> None:
        self.heard.append(topic)
        self._news.set()

    async def wait_for(self, topic: str) -> None:
        async with asyncio.timeout(10):
            while topic not in self.heard:
                self._news.clear()
                await self._news.wait()

    async def hear(self, topic: str) -> None:
        """Wait for a signal, then forget all signals so far."""
        await self.wait_for(topic)
        self.heard.clear()


async def heard_after(hand: Hand, topic: str, act: Callable[[], Awaitable[object]]) -> None:
    ear = Ear()
    end = hand.store.subscribe(ear)
    await act()
    await ear.hear(topic)
    end()


async def test_a_claim_that_stops_expiring_early_publishes_ready_again(
    hand: Hand,
) -> None:
    count = EXPIRED_AT_ONCE + 1
    await hand.add(*[order(f"old-{number}", expires=5.0) for number in range(count)])
    await hand.store.pools()
    hand.clock.wait(5)
    await heard_after(hand, "ready", hand.claim)


async def test_a_claimable_job_publishes_ready(hand: Hand) -> None:
    await heard_after(hand, "ready", lambda: hand.take_in("a"))
    await hand.serve()
    claim = await hand.start("b", session="s")
    await hand.take_in("c", session="s")
    await heard_after(hand, "ready", lambda: hand.finish(claim))
    (again,) = await hand.claim()
    await heard_after(hand, "ready", lambda: hand.retry(again))


async def test_a_job_that_becomes_due_publishes_ready(hand: Hand) -> None:
    await hand.take_in("a", delay=5.0)
    hand.clock.wait(5)
    await heard_after(hand, "ready", hand.store.promote)


async def test_a_free_slot_for_a_queued_job_publishes_ready(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    claim = await hand.start("a")
    await hand.take_in("b")
    await heard_after(hand, "ready", lambda: hand.finish(claim))
    await hand.store.set_pool("pool", "me", paused=True)
    await heard_after(hand, "ready", lambda: hand.store.set_pool("pool", "me", paused=False))


async def test_a_declaration_that_lets_a_job_run_publishes_ready(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    await hand.start("a")
    await hand.take_in("b")
    await hand.take_in("later", delay=5.0)
    await heard_after(hand, "ready", lambda: hand.store.declare(spec(slots=2)))
    await hand.claim()
    hand.clock.wait(5)
    await heard_after(hand, "ready", hand.store.promote)


async def test_calls_that_change_nothing_publish_nothing(hand: Hand) -> None:
    await hand.finish(await hand.start("a"))
    ear = Ear()
    hand.store.subscribe(ear)
    hand.store.publish("begin")
    await ear.hear("begin")
    await hand.store.add([])
    await hand.store.promote()
    await hand.claim()
    await hand.store.cancel(["a", "none"], "me")
    hand.store.publish("end")
    await ear.wait_for("end")
    assert set(ear.heard) <= {"begin", "end"}


async def test_the_end_of_a_job_publishes_over(hand: Hand) -> None:
    claim = await hand.start("a")
    await heard_after(hand, "over", lambda: hand.finish(claim))
    await hand.take_in("b")
    await heard_after(hand, "over", lambda: hand.store.cancel(["b"], "me"))
    await hand.take_in("c", expires=1.0)
    hand.clock.wait(1)
    await heard_after(hand, "over", hand.store.promote)


async def test_an_admitted_blocked_submitter_publishes_entered(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1, backpressure=bounded(1)))
    await hand.start("a")
    await hand.take_in("b")
    await hand.submit("c")
    await heard_after(hand, "entered", lambda: hand.store.cancel(["b"], "me"))


async def test_a_cancel_request_is_published(hand: Hand) -> None:
    await hand.start("a")
    await heard_after(hand, "wish", lambda: hand.store.cancel(["a"], "me"))


async def test_every_subscriber_of_every_store_gets_every_topic(
    hand: Hand, another: Another
) -> None:
    other = await another()
    ears = [Ear(), Ear(), Ear()]
    ends = [
        store.subscribe(ear) for store, ear in zip([hand.store, other, other], ears, strict=True)
    ]
    await hand.take_in("a")
    for ear in ears:
        await ear.hear("ready")
    other.publish("hello")
    for ear in ears:
        await ear.hear("hello")
    await other.replace((), ClaimRequest("hand", (0,)))
    for end in ends:
        end()


async def test_a_removed_subscriber_gets_nothing_more(hand: Hand) -> None:
    gone, there = Ear(), Ear()
    end = hand.store.subscribe(gone)
    hand.store.subscribe(there)
    hand.store.publish("word")
    end()
    end()
    await there.hear("word")
    assert gone.heard == []


async def test_a_subscriber_that_raises_does_not_affect_the_others(hand: Hand) -> None:
    # Keep the error out of the log: a logged error would fail this test.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)

    def bad(topic: str) -> None:
        raise LookupError(topic)

    hand.store.subscribe(bad)
    ear = Ear()
    hand.store.subscribe(ear)
    await hand.take_in("a")
    await ear.hear("ready")
    assert await hand.status("a") == "queued"


async def test_publishing_on_a_closed_store_does_nothing(hand: Hand) -> None:
    hand.store.subscribe(Ear())
    await hand.store.close()
    hand.store.publish("word")
