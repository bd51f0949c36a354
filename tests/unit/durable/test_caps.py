"""Caps, keys and sessions hold over all workers of a store."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from poolhand import Retry, wait
from poolhand.app import App
from poolhand.observe.events import SlotFreed, SlotStuck
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Heard, SharedStore, StoreApp, seeded


class Crowd:
    """Counts running jobs by name, and the maximum of each."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def stay(self, name: str, seconds: float, runtime: SeededRuntime) -> None:
        self.inside[name] += 1
        self.most[name] = max(self.most[name], self.inside[name])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.inside[name] -= 1


@seeded
async def test_a_pool_is_capped_over_two_workers(runtime: SeededRuntime) -> None:
    store, crowd = SharedStore(runtime), Crowd()
    one, two = StoreApp(store, runtime), StoreApp(store, runtime)
    for app in (one, two):
        app.pool("chat", max_concurrent=3)

    async def call() -> None:
        await crowd.stay("all", 1, runtime)

    task = one.task(pool="chat", name="call")(call)
    two.task(pool="chat", name="call")(call)
    async with one, two, one.worker(5), two.worker(5):
        began = runtime.monotonic()
        await wait(await task.submit_many([()] * 12))
        assert runtime.monotonic() - began <= 6
    assert crowd.most["all"] == 3


@seeded
async def test_a_worker_can_be_limited_to_some_pools(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[str] = []

    @app.task(name="first", pool="one")
    async def first() -> None:
        ran.append("one")

    @app.task(name="second", pool="two")
    async def second() -> None:
        ran.append("two")

    async with app:
        tickets = [await first.submit(), await second.submit()]
        async with app.worker(pools=["two"]):
            await tickets[1]
            await asyncio.sleep(5)
            assert ran == ["two"]
        async with app.worker(pools=["one", "two"]):
            await tickets[0]


@seeded
async def test_a_key_is_capped_over_two_workers(runtime: SeededRuntime) -> None:
    store, crowd = SharedStore(runtime), Crowd()
    one, two = StoreApp(store, runtime), StoreApp(store, runtime)
    for app in (one, two):
        app.pool("chat", max_concurrent=100, max_per_key=2)

    async def call(key: str) -> None:
        await crowd.stay(key, 1, runtime)

    task = one.task(pool="chat", name="call")(call)
    two.task(pool="chat", name="call")(call)
    async with one, two, one.worker(8), two.worker(8):
        tickets = [
            await task.with_options(key=key).submit(key) for _ in range(6) for key in ("a", "b")
        ]
        await wait(tickets)
    assert crowd.most == {"a": 2, "b": 2}


@seeded
async def test_the_turns_of_a_session_run_one_at_a_time_in_order(
    runtime: SeededRuntime,
) -> None:
    store, crowd = SharedStore(runtime), Crowd()
    one, two = StoreApp(store, runtime), StoreApp(store, runtime)
    said: list[int] = []

    async def turn(number: int) -> None:
        await crowd.stay("s", 0.5, runtime)
        said.append(number)

    task = one.task(name="turn")(turn)
    two.task(name="turn")(turn)
    async with one, two, one.worker(8), two.worker(8):
        tickets = []
        for number in range(10):
            view = task.with_options(session="s", priority=number)
            tickets.append(await view.submit(number))
        await wait(tickets)
    assert crowd.most["s"] == 1
    assert said == list(range(10))


@seeded
async def test_a_session_is_held_while_its_turn_waits_for_a_retry(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    said: list[str] = []

    @app.task(name="turn", retry=Retry(attempts=2, first=10, jitter=0.0))
    async def turn(name: str) -> None:
        said.append(name)
        if said == ["first"]:
            raise OSError

    async with app, app.worker(3):
        view = turn.with_options(session="s", retry=Retry(attempts=2, first=10))
        tickets = [await view.submit("first"), await view.submit("second")]
        await asyncio.sleep(3)
        assert (await tickets[1].refresh()).status is Status.BLOCKED
        await wait(tickets)
    assert said == ["first", "first", "second"]


@seeded
async def test_code_that_does_not_stop_counts_until_it_ends(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    app.pool("one", max_concurrent=1)
    inside = Crowd()

    @app.task(name="stubborn", pool="one", timeout=2, retry=Retry(attempts=1))
    async def stubborn() -> None:
        inside.inside["x"] += 1
        end = runtime.monotonic() + 20
        while runtime.monotonic() < end:
            try:
                await asyncio.sleep(end - runtime.monotonic())
            except asyncio.CancelledError:
                continue
        inside.inside["x"] -= 1

    @app.task(name="polite", pool="one")
    async def polite() -> float:
        assert inside.inside["x"] == 0
        return runtime.monotonic()

    async with app, app.worker(3):
        began = runtime.monotonic()
        first, second = await stubborn.submit(), await polite.submit()
        job = await wait(first)
        assert job.status is Status.FAILED
        assert "hard_timeout" in job.marks
        assert 2 <= runtime.monotonic() - began <= 3
        assert await second - began >= 20
    assert len(heard.of(SlotStuck)) == len(heard.of(SlotFreed)) == 1


@seeded
async def test_a_soft_timeout_asks_and_a_hard_one_does_not(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    asked: list[float] = []

    @app.task(name="tidy", retry=Retry(attempts=1))
    async def tidy() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            asked.append(runtime.monotonic())
            return "half"
        return "whole"

    @app.task(name="slow", timeout=5, retry=Retry(attempts=2, first=1.0, jitter=0.0))
    async def slow() -> None:
        await asyncio.sleep(100)

    async with app, app.worker(2):
        began = runtime.monotonic()
        assert await (await tidy.with_options(soft_timeout=3, timeout=9).submit()) == "half"
        assert asked[0] - began == pytest.approx(3, abs=0.2)
        began = runtime.monotonic()
        job = await wait(await slow.submit())
        assert (job.status, job.attempts) == (Status.FAILED, 2)
        assert job.error is not None
        assert job.error.type == "poolhand.errors.JobTimedOut"
        assert 11 <= runtime.monotonic() - began <= 13.5
