"""The ticker: repeats a call until it is stopped."""

from __future__ import annotations

import asyncio

import pytest

from poolhand.pool.slots.attempt import Ticker
from poolhand.testing import SeededRuntime
from tests.unit.pool.support import seeded


def timers(runtime: SeededRuntime) -> int:
    """Return how many timers are still pending."""
    return sum(not handle.dead for _, _, handle in runtime.loop._timers)


@seeded
async def test_a_ticker_ticks_at_every_interval(runtime: SeededRuntime) -> None:
    began = runtime.monotonic()
    ticks: list[float] = []
    ticker = Ticker(runtime.loop, 10, lambda: ticks.append(runtime.monotonic() - began))
    await asyncio.sleep(35)
    assert ticks == [10, 20, 30]
    ticker.stop()
    await asyncio.sleep(100)
    assert ticks == [10, 20, 30]


@seeded
async def test_a_stopped_one_leaves_no_timer_and_may_be_stopped_again(
    runtime: SeededRuntime,
) -> None:
    before = timers(runtime)
    ticker = Ticker(runtime.loop, 1, lambda: None)
    assert timers(runtime) == before + 1
    await asyncio.sleep(2.5)
    assert timers(runtime) == before + 1
    ticker.stop()
    ticker.stop()
    assert timers(runtime) == before


@seeded
async def test_a_tick_may_stop_its_own_ticker(runtime: SeededRuntime) -> None:
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 3:
            ticker.stop()

    ticker = Ticker(runtime.loop, 1, tick)
    await asyncio.sleep(100)
    assert ticks == [0, 1, 2]
    assert timers(runtime) == 0


@seeded
async def test_a_ticker_stopped_when_it_is_due_does_not_tick_again(runtime: SeededRuntime) -> None:
    ticks: list[float] = []
    until_then: list[float] = []

    def stop() -> None:
        ticker.stop()
        until_then.extend(ticks)

    ticker = Ticker(runtime.loop, 1, lambda: ticks.append(runtime.monotonic()))
    runtime.loop.call_later(1, stop)
    await asyncio.sleep(10)
    assert ticks == until_then


@seeded
async def test_a_ticker_needs_no_task(runtime: SeededRuntime) -> None:
    before = runtime.loop.pending_tasks()
    ticker = Ticker(runtime.loop, 1, lambda: None)
    await asyncio.sleep(3)
    assert runtime.loop.pending_tasks() == before
    ticker.stop()


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
async def test_a_ticker_continues_after_a_tick_that_raises(error: type[BaseException]) -> None:
    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    thrice = asyncio.Event()
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            thrice.set()
        raise error

    ticker = Ticker(loop, 0.001, tick)
    await thrice.wait()
    ticker.stop()
    assert {type(one) for one in told} == {error}
