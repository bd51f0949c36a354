"""Rules that await nothing are suspended while a query of theirs runs."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from poolhand.stores.postgres.tables import run, wait

word: ContextVar[str] = ContextVar("word", default="")


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def test_wait_returns_a_value_in_the_middle_of_a_sync_call() -> None:
    def ask() -> list[int]:
        return [wait(double(number)) for number in range(3)]

    assert await run(ask) == [0, 2, 4]


async def test_a_call_that_waits_for_nothing_is_only_called() -> None:
    assert await run(lambda: 7) == 7


async def test_an_error_is_raised_at_its_wait() -> None:
    async def fail() -> None:
        raise LookupError("not there")

    def ask() -> str:
        try:
            wait(fail())
        except LookupError as error:
            return f"met {error}, {wait(double(2))}"
        return "met nothing"

    assert await run(ask) == "met not there, 4"
    with pytest.raises(LookupError):
        await run(lambda: wait(fail()))


async def test_an_error_of_the_call_is_raised_to_its_caller() -> None:
    def ask() -> None:
        wait(double(1))
        raise KeyError("own")

    with pytest.raises(KeyError):
        await run(ask)


async def test_a_cancellation_is_raised_inside_the_call() -> None:
    seen, waits = [], asyncio.Event()

    async def never() -> None:
        waits.set()
        await asyncio.Event().wait()

    def ask() -> None:
        try:
            wait(never())
        finally:
            seen.append("left")

    task = asyncio.create_task(run(ask))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["left"]


async def test_many_calls_wait_concurrently() -> None:
    both = asyncio.Barrier(2)

    async def meet(number: int) -> int:
        await both.wait()
        return number

    def ask(number: int) -> list[int]:
        return [wait(meet(number)) for _ in range(3)]

    async with asyncio.timeout(10):
        one, two = await asyncio.gather(run(lambda: ask(1)), run(lambda: ask(2)))
    assert (one, two) == ([1] * 3, [2] * 3)


async def test_a_call_sees_the_context_of_its_caller() -> None:
    word.set("here")
    assert await run(word.get) == "here"
