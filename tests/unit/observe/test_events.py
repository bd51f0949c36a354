"""Events: a closed list, sent to every subscriber, at no cost without one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from poolhand import Pool, Retry, UsageError, bounded, fail_fast, subscribe, wait
from poolhand.errors import NoFreeSlot
from poolhand.observe import events as listed
from poolhand.observe.events import (
    EVENTS,
    Events,
    JobEnded,
    JobStarted,
    JobSubmitted,
    PoolStarted,
    StatsTaken,
    SubmitRefused,
    SubmitterParked,
)
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Event, Job, Status
from tests.unit.pool.support import Heard, park, seeded

CLOSED_LIST = {
    "CallbackFailed",
    "DeadlockFound",
    "DrainSlow",
    "DrainStarted",
    "JobEnded",
    "JobJoined",
    "JobMarked",
    "JobRetried",
    "JobStarted",
    "JobSubmitted",
    "PoolDrained",
    "PoolPaused",
    "PoolResized",
    "PoolResumed",
    "PoolStarted",
    "SlotFreed",
    "SlotStuck",
    "StatsTaken",
    "SubmitRefused",
    "SubmitterParked",
}
# These report problems; the tests of check-ups, the watchdog, processes and the farm
# cover them.
FINDINGS = {
    "ExecutorSmall",
    "JobSetAside",
    "LeaseLost",
    "LoopBlocked",
    "OwnerReaped",
    "PoisonSuspected",
    "QueueHigh",
    "SessionFreed",
    "StoreTrouble",
    "WorkerBound",
    "WorkerVanished",
}


class Unwanted(Events):
    """Fails on every event: without a subscriber none may be built."""

    __slots__ = ()

    def emit(self, event: Event) -> None:
        raise AssertionError(f"told without a listener: {event!r}")


async def everything(pool: Pool) -> None:
    """Causes every event of a pool with one slot, a queue of two and a retry policy."""
    gate = asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async def broken() -> None:
        raise LookupError

    async def self_locked() -> None:
        await pool.run(asyncio.sleep, 0)

    once = pool.with_options(idempotency_key="once")
    await wait([await once.submit(broken), await once.submit(broken)])
    await wait([await pool.submit(self_locked)])
    pool.pause()
    pool.resume()
    running = await pool.with_options(timeout=0.1, retry=None).submit(stubborn)
    for _ in range(2):
        await pool.submit(asyncio.Event().wait)
    parked = await park(pool, pool, asyncio.sleep, 60)
    with pytest.raises(asyncio.QueueFull):
        pool.submit_nowait(asyncio.sleep, 0)
    await wait(running)
    gate.set()
    await pool.resize(3)
    await parked
    await pool.drain(20)


def a_pool(runtime: SeededRuntime, events: Events) -> Pool:
    def on_dead(job: Job) -> None:
        raise OSError

    return Pool(
        "all",
        backpressure=bounded(2),
        retry=Retry(attempts=2, first=1),
        on_dead=on_dead,
        runtime=runtime,
        events=events,
    )


# The list

OF_A_FARM = {
    "FarmScaled",
    "FarmStarted",
    "FarmStopped",
    "FarmStopping",
    "FarmTrouble",
    "ProcessEnded",
    "ProcessLeaving",
    "ProcessReady",
    "ProcessStarted",
}


def test_the_list_of_events_is_closed() -> None:
    names = {
        name
        for name, value in vars(listed).items()
        if isinstance(value, type) and issubclass(value, Event) and value is not Event
    }
    assert names == CLOSED_LIST | FINDINGS | OF_A_FARM


@seeded
async def test_every_listed_event_is_emitted_and_names_its_pool(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with a_pool(runtime, heard.events) as pool:
        await everything(pool)
    assert {type(event).__name__ for event in heard.all} == CLOSED_LIST
    assert {event.pool for event in heard.all} == {"all"}


@seeded
async def test_events_are_immutable(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events) as pool:
        await pool.run(asyncio.sleep, 0)
    for event in heard.all:
        with pytest.raises(AttributeError):
            event.pool = "mine"  # type: ignore[misc]


# Their content


@seeded
async def test_a_job_emits_events_from_submit_to_end(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool("reviews", runtime=runtime, events=heard.events) as pool:
        ticket = await pool.submit(asyncio.sleep, 1, result="done")
        await ticket
    about = [
        event for event in heard.all if isinstance(event, JobSubmitted | JobStarted | JobEnded)
    ]
    assert [type(event) for event in about] == [JobSubmitted, JobStarted, JobEnded]
    assert {event.job.id for event in about} == {ticket.id}
    assert [event.job.status.value for event in about][1:] == ["running", "completed"]
    assert about[-1].job == ticket.snapshot()


@seeded
async def test_a_pool_emits_its_settings(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(
        "reviews",
        max_concurrent=3,
        queue="fifo",
        backpressure=bounded(5),
        runtime=runtime,
        events=heard.events,
    ) as pool:
        (event,) = heard.of(PoolStarted)
        assert (event.pool, event.pool_id, event.max_concurrent) == ("reviews", pool.id, 3)
        assert "fifo" in event.queue
        assert "bounded(5" in event.backpressure


@seeded
async def test_statistics_are_emitted_every_ten_seconds_while_the_pool_runs(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    async with Pool(max_concurrent=2, runtime=runtime, events=heard.events) as pool:
        for _ in range(3):
            await pool.submit(asyncio.sleep, 14)
        await asyncio.sleep(35)
        figures = heard.of(StatsTaken)
        assert len(figures) == 3
        first = figures[0]
        assert (first.submitted, first.in_flight, first.queue_depth) == (3, 2, 1)
        assert (figures[2].completed, figures[2].in_flight) == (3, 0)
    count = len(heard.of(StatsTaken))
    await asyncio.sleep(100)
    assert len(heard.of(StatsTaken)) == count


@seeded
async def test_a_refusal_is_emitted_with_its_code_and_policy(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(backpressure=fail_fast(), runtime=runtime, events=heard.events) as pool:
        await pool.submit(asyncio.sleep, 1)
        with pytest.raises(NoFreeSlot):
            await pool.submit(asyncio.sleep, 1)
        (event,) = heard.of(SubmitRefused)
        assert (event.code, event.policy) == ("PH-POL-002", "fail_fast")


@seeded
async def test_a_blocked_submitter_emits_blocked_and_submitted_before_it_starts(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    async with Pool(backpressure=bounded(1), runtime=runtime, events=heard.events) as pool:
        for _ in range(2):
            await pool.submit(asyncio.sleep, 5)
        parked = await park(pool, pool, asyncio.sleep, 5)
        (waiting,) = heard.of(SubmitterParked)
        assert waiting.blocked_submitters == 1
        await pool.resize(3)
        ticket = await parked
        assert waiting.job.id == ticket.id
        names = [
            type(event).__name__
            for event in heard.all
            if isinstance(event, JobSubmitted | JobStarted) and event.job.id == ticket.id
        ]
        assert names == ["JobSubmitted", "JobStarted"]


# Subscribers


@seeded
async def test_without_subscribers_nothing_is_emitted(runtime: SeededRuntime) -> None:
    async with a_pool(runtime, Unwanted()) as pool:
        await everything(pool)
        assert pool.stats().submitted > 0


@seeded
async def test_an_unsubscribed_function_gets_no_more_events(runtime: SeededRuntime) -> None:
    events = Events()
    early, late = list[Event](), list[Event]()
    stop_early, stop_late = events.subscribe(early.append), events.subscribe(late.append)
    async with Pool(runtime=runtime, events=events) as pool:
        stop_early()
        stop_early()
        heard = len(early)
        await pool.run(asyncio.sleep, 0)
        assert len(early) == heard
        assert len(late) > heard
        assert events.live
        stop_late()
        assert not events.live
        await pool.run(asyncio.sleep, 0)


def test_each_subscription_ends_independently() -> None:
    events = Events()
    heard: list[Event] = []

    def hear(event: Event) -> None:
        heard.append(event)

    stop_first, stop_second = events.subscribe(hear), events.subscribe(hear)
    stop_first()
    events.emit(listed.PoolPaused("one"))
    assert len(heard) == 1
    stop_second()
    events.emit(listed.PoolPaused("one"))
    assert len(heard) == 1


def test_a_subscriber_may_unsubscribe_while_it_is_called() -> None:
    events = Events()
    heard: list[str] = []
    ends: list[Callable[[], None]] = []

    def once(event: Event) -> None:
        heard.append("once")
        ends[0]()

    ends.append(events.subscribe(once))
    events.subscribe(lambda event: heard.append("always"))
    for _ in range(2):
        events.emit(listed.PoolPaused("one"))
    assert heard == ["once", "always", "always"]


@seeded
async def test_subscribe_receives_events_of_every_pool_of_the_process(
    runtime: SeededRuntime,
) -> None:
    heard: list[Event] = []
    unsubscribe = subscribe(heard.append)
    try:
        async with Pool("a", runtime=runtime) as one, Pool("b", runtime=runtime) as other:
            await one.run(asyncio.sleep, 0)
            await other.run(asyncio.sleep, 0)
    finally:
        unsubscribe()
    assert {event.pool for event in heard} == {"a", "b"}
    assert not EVENTS.live


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
def test_a_subscriber_that_fails_does_not_affect_others(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise error("a broken listener")

    async def main(runtime: SeededRuntime) -> None:
        events = Events()
        async with Pool("harmed", max_concurrent=2, runtime=runtime, events=events) as pool:
            events.subscribe(broken)
            events.subscribe(heard.append)
            tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(5)]
            assert {job.status for job in await wait(tickets)} == {Status.COMPLETED}

    with caplog.at_level(logging.ERROR, "poolhand"):
        for seed in range(5):
            run_seeded(main, seed, max_steps=2_000)
    assert len([event for event in heard if isinstance(event, JobEnded)]) == 25
    assert "a subscriber failed" in caplog.text


@seeded
async def test_a_subscriber_may_use_the_pool(runtime: SeededRuntime) -> None:
    heard = Heard()
    followed: list[str] = []

    def follow(event: Event) -> None:
        if isinstance(event, JobEnded) and len(followed) < 5:
            followed.append(pool.submit_nowait(asyncio.sleep, 0).id)

    heard.events.subscribe(follow)
    async with Pool(runtime=runtime, events=heard.events) as pool:
        await pool.run(asyncio.sleep, 0)
        await asyncio.sleep(1)
        assert pool.stats().completed == 6
    assert [event.job.id for event in heard.of(JobEnded)][1:] == followed


class Fatal(BaseException):
    pass


@seeded
async def test_a_subscriber_that_raises_any_exception_does_not_affect_others(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    events = Events()

    def break_down(event: Event) -> None:
        raise Fatal if isinstance(event, JobEnded) else SystemExit(3)

    events.subscribe(break_down)
    async with Pool(runtime=runtime, events=events) as pool:
        assert await pool.run(asyncio.sleep, 0, "done") == "done"
        report = await pool.drain(1)
    assert report.completed == 1
    assert caplog.records


@pytest.mark.parametrize("subscriber", [5, "print", None, asyncio.sleep])
def test_a_subscriber_is_a_plain_function(subscriber: Any) -> None:
    with pytest.raises(UsageError, match="plain function"):
        Events().subscribe(subscriber)
