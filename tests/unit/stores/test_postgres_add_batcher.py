"""Batched calls: each caller gets its own answers and its own errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from poolhand.errors import Conflict, Unavailable
from poolhand.stores.postgres.transaction import MOST, AddBatcher


class Slow:
    """Answers with the double of every number, a batch at a time, when released."""

    def __init__(self) -> None:
        self.lots: list[list[int]] = []
        self.begun, self.let = asyncio.Event(), asyncio.Event()
        self.let.set()
        self.together = AddBatcher(self.act)

    async def act(self, things: Sequence[int]) -> Sequence[int]:
        self.lots.append(list(things))
        self.begun.set()
        await self.let.wait()
        if -1 in things:
            raise ValueError("one of them")
        if -2 in things:
            raise Conflict("an id is that of another job")
        if -3 in things:
            raise Unavailable("nobody answers")
        return [2 * thing for thing in things]

    async def ask(self, *lots: Sequence[int]) -> list[object]:
        """Ask for batches: one is in flight while the others arrive."""
        return await asyncio.gather(*map(self.together.ask, lots), return_exceptions=True)


async def test_calls_made_while_a_batch_is_in_flight_share_the_next() -> None:
    slow = Slow()
    slow.let.clear()
    first = asyncio.create_task(slow.together.ask([1]))
    await slow.begun.wait()
    others = [asyncio.create_task(slow.together.ask(lot)) for lot in ([2, 3], [], [4])]
    await asyncio.sleep(0)
    slow.let.set()
    assert await first == [2]
    assert [await other for other in others] == [[4, 6], [], [8]]
    assert slow.lots == [[1], [2, 3, 4]]


async def test_a_batch_never_exceeds_its_limit() -> None:
    slow = Slow()
    lots = [[number] * 1000 for number in range(12)]
    answers = await slow.ask(*lots)
    assert answers == [[2 * number] * 1000 for number in range(12)]
    assert max(map(len, slow.lots)) <= MOST


@pytest.mark.parametrize(("bad", "kind"), [(-1, ValueError), (-2, Conflict)])
async def test_the_error_of_one_call_does_not_affect_others_of_its_batch(
    bad: int, kind: type[Exception]
) -> None:
    slow = Slow()
    one, two, three = await slow.ask([1], [2, bad], [3])
    assert (one, three) == ([2], [6])
    assert isinstance(two, kind)


async def test_unavailable_is_raised_to_the_whole_batch_without_a_retry() -> None:
    slow = Slow()
    answers = await slow.ask([1], [-3], [3])
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert len(slow.lots) == 1
    assert await slow.ask([5]) == [[10]]


async def test_a_call_cancelled_before_its_batch_is_sent_is_removed() -> None:
    slow = Slow()
    slow.let.clear()
    first = asyncio.create_task(slow.together.ask([1]))
    await slow.begun.wait()
    leaving = asyncio.create_task(slow.together.ask([2]))
    staying = asyncio.create_task(slow.together.ask([3]))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    slow.let.set()
    assert await first == [2]
    assert await staying == [6]
    assert slow.lots == [[1], [3]]


async def test_a_call_cancelled_in_flight_does_not_affect_others() -> None:
    slow = Slow()
    slow.let.clear()
    callers = [asyncio.create_task(slow.together.ask([number])) for number in range(3)]
    await slow.begun.wait()
    callers[1].cancel()
    await asyncio.gather(callers[1], return_exceptions=True)
    slow.let.set()
    assert await callers[0] == [0]
    assert await callers[2] == [4]


def test_a_batcher_can_be_used_on_one_loop_after_another() -> None:
    slow: list[Slow] = []

    async def main() -> list[int]:
        slow.append(slow[0] if slow else Slow())
        return list(await slow[0].together.ask([1]))

    assert asyncio.run(main()) == asyncio.run(main()) == [2]
