"""Map: one job per item, in order, within a window, without leftovers however it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from poolhand import (
    Pool,
    Retry,
    RetryLater,
    Ticket,
    UsageError,
    bounded,
    bounded_map,
    fail_fast,
    fair_round_robin,
    lifo,
    list_pools,
    ring_buffer,
    unbounded,
    wait,
)
from poolhand.errors import Deadlock, Draining, JobCancelled, JobRejected, NoFreeSlot, PoolFull
from poolhand.observe.events import JobStarted
from poolhand.pool.submitter import Submitter
from poolhand.rules.queue.backpressure import Policy
from poolhand.testing import SeededRuntime
from tests.unit.pool.support import Heard, large, occupied, seeded, until

COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")


class Stage:
    """Jobs that count how many of them run, and items that count how many were read."""

    def __init__(self, runtime: SeededRuntime) -> None:
        async def pause(seconds: float) -> None:
            await asyncio.sleep(seconds)

        self._pause = pause
        self._random = runtime.random
        self.running = self.peak = self.begun = self.over = self.taken = self.ahead = 0

    def items(self, many: Iterable[int]) -> Iterator[int]:
        for item in many:
            self.taken += 1
            self.ahead = max(self.ahead, self.taken - self.over)
            yield item

    async def aitems(self, many: Iterable[int]) -> AsyncIterator[int]:
        for item in self.items(many):
            await asyncio.sleep(0)
            yield item

    async def work(self, item: int) -> int:
        return await self.take_time(item, self._random.choice((0, 0, 0.5, 1)))

    async def take_time(self, item: int, seconds: float) -> int:
        self.begun += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self._pause(seconds)
        finally:
            self.running -= 1
            self.over += 1
        return -item


async def forever(_: object) -> None:
    await asyncio.Event().wait()


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


# Results


@seeded
async def test_values_are_returned_in_the_order_of_the_items(runtime: SeededRuntime) -> None:
    async def later_ones_first(item: int) -> str:
        await asyncio.sleep(10 - item)
        return f"item {item}"

    async with Pool(max_concurrent=4, runtime=runtime) as pool:
        assert await pool.map(later_ones_first, range(10)) == [f"item {n}" for n in range(10)]


@pytest.mark.parametrize("queue", ["fifo", "lifo", "priority", "fair_round_robin"])
@seeded
async def test_the_order_holds_for_every_strategy(runtime: SeededRuntime, queue: str) -> None:
    async with Pool(max_concurrent=2, queue=queue, runtime=runtime) as pool:
        assert await pool.map(Stage(runtime).work, range(20)) == [-n for n in range(20)]


@pytest.mark.parametrize(
    "items", [[], (), "", {}, set(), iter(()), range(0)], ids=lambda items: type(items).__name__
)
async def test_no_items_give_no_values(items: Iterable[Any]) -> None:
    async with Pool() as pool:
        assert await pool.map(forever, items) == []
        assert pool.snapshot().total == 0
    assert await bounded_map(forever, items, limit=1) == []


@seeded
async def test_any_iterable_is_accepted(runtime: SeededRuntime) -> None:
    class Old:
        def __getitem__(self, index: int) -> str:
            return "xyz"[index]

    async def same(item: str) -> str:
        return item

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        assert await pool.map(same, "xyz") == ["x", "y", "z"]
        assert await pool.map(same, {"x": 1, "y": 2}) == ["x", "y"]
        assert await pool.map(same, Old()) == ["x", "y", "z"]  # type: ignore[call-overload]


@seeded
async def test_the_items_may_be_async(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)

    class Bare:
        """An async iterator that is not a generator and cannot be closed."""

        def __init__(self) -> None:
            self._left = list(range(5))

        def __aiter__(self) -> Bare:
            return self

        async def __anext__(self) -> int:
            await asyncio.sleep(0)
            if not self._left:
                raise StopAsyncIteration
            return self._left.pop(0)

    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        assert await pool.map(stage.work, stage.aitems(range(20))) == [-n for n in range(20)]
        assert await pool.map(stage.work, Bare()) == [-n for n in range(5)]


@seeded
async def test_plain_functions_run_in_threads(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        assert await pool.map(str, range(10)) == [str(n) for n in range(10)]
        with pytest.raises(ValueError, match="invalid literal"):
            await pool.map(int, ["1", "2", "x", "4"])
        assert pool.size() == 0
    assert await bounded_map(str, range(10), limit=3, runtime=runtime) == list("0123456789")


async def test_real_threads_return_values_in_order() -> None:
    async with Pool(max_concurrent=3) as pool:
        assert await pool.map(str, range(30)) == [str(n) for n in range(30)]
    assert await bounded_map(str, range(30), limit=3) == [str(n) for n in range(30)]


@seeded
async def test_an_exception_that_is_returned_is_a_value(runtime: SeededRuntime) -> None:
    value = ValueError("made, not raised")

    async def make(_: int) -> ValueError:
        return value

    async with Pool(runtime=runtime) as pool:
        assert await pool.map(make, range(2)) == [value, value]
        assert await pool.map(make, range(2), return_exceptions=True) == [value, value]


@seeded
async def test_values_are_returned_when_there_is_a_subscriber(runtime: SeededRuntime) -> None:
    # With a subscriber every record is built at once, and values are kept in it.
    heard = Heard()
    async with Pool(max_concurrent=2, runtime=runtime, events=heard.events) as pool:
        assert await pool.map(Stage(runtime).work, range(5)) == [-n for n in range(5)]


@seeded
async def test_the_options_of_a_view_hold_for_every_item(runtime: SeededRuntime) -> None:
    tries: list[int] = []

    async def second_time(item: int) -> int:
        tries.append(item)
        if tries.count(item) < 2:
            raise RetryLater(1)
        return item

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        view = pool.with_options(retry=Retry(), priority=3, tenant="acme")
        assert await view.map(second_time, range(4)) == [0, 1, 2, 3]
        assert {(job.priority, job.tenant) for job in pool.snapshot().jobs} == {(3, "acme")}


@seeded
async def test_jobs_see_the_context_of_the_caller(runtime: SeededRuntime) -> None:
    async def colour(_: int) -> str:
        return COLOUR.get()

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        COLOUR.set("red")
        assert await pool.map(colour, range(3)) == ["red"] * 3


# The window

POLICIES: list[tuple[Policy, int]] = [
    (unbounded(), 3),
    (fail_fast(), 0),
    *((bounded(depth, on_full), min(depth, 3))
      for depth in (1, 2, 50)
      for on_full in ("block_submitter", "drop_oldest", "drop_newest", "fail_submitter")),
    *((ring_buffer(depth), min(depth, 3)) for depth in (1, 2, 50)),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "depth"), POLICIES, ids=str)
@seeded
async def test_a_map_alone_in_a_pool_is_never_refused(
    runtime: SeededRuntime, policy: Policy, depth: int
) -> None:
    stage = Stage(runtime)
    async with Pool(max_concurrent=3, backpressure=policy, runtime=runtime) as pool:
        values = await pool.map(stage.work, stage.items(range(100)))
        assert values == [-n for n in range(100)]
        assert pool.snapshot().completed == 100
    assert stage.peak == 3
    assert stage.ahead == 3 + depth


@pytest.mark.parametrize(("policy", "depth"), POLICIES, ids=str)
@seeded
async def test_the_window_holds_for_async_items(
    runtime: SeededRuntime, policy: Policy, depth: int
) -> None:
    stage = Stage(runtime)
    async with Pool(max_concurrent=3, backpressure=policy, runtime=runtime) as pool:
        assert len(await pool.map(stage.work, stage.aitems(range(50)))) == 50
    assert stage.peak <= 3
    assert stage.ahead <= 3 + depth


@pytest.mark.parametrize("policy", [policy for policy, _ in POLICIES], ids=str)
@pytest.mark.parametrize("what", ["session", "key", "delay", "pause"])
@seeded
async def test_jobs_that_block_each_other_do_not_fill_the_queue(
    runtime: SeededRuntime, policy: Policy, what: str
) -> None:
    options: dict[str, Any] = {"session": "s"} if what == "session" else {}
    options |= {"delay": 5} if what == "delay" else {}
    options |= {"key": "k"} if what == "key" else {}
    stage = Stage(runtime)
    cap = 1 if what == "key" else None
    async with Pool(
        max_concurrent=3, backpressure=policy, max_per_key=cap, runtime=runtime
    ) as pool:
        if what == "pause":
            pool.pause()
        task = asyncio.create_task(pool.with_options(**options).map(stage.work, range(20)))
        await asyncio.sleep(1)
        if what == "pause" and policy != fail_fast():
            assert stage.begun == 0
        pool.resume()
        assert await task == [-n for n in range(20)]
    assert stage.peak <= (1 if what in ("session", "key") else 3)


@seeded
@large
async def test_ten_thousand_items_never_run_three_at_a_time_in_two_slots(
    runtime: SeededRuntime,
) -> None:
    stage = Stage(runtime)

    async def work(item: int) -> int:
        return await stage.take_time(item, 0)

    values = await bounded_map(work, stage.items(range(10_000)), limit=2, runtime=runtime)
    assert values == [-n for n in range(10_000)]
    assert stage.peak == 2
    assert stage.ahead == 4


@seeded
async def test_beside_other_submitters_a_map_waits_for_its_place(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)
    async with Pool(max_concurrent=3, backpressure=bounded(2), runtime=runtime) as pool:
        one, two = await asyncio.gather(
            pool.map(stage.work, range(50)), pool.map(stage.work, range(50))
        )
        assert one == two == [-n for n in range(50)]
        async with occupied(pool, 3):
            task = asyncio.create_task(pool.map(stage.work, range(10)))
            await until(lambda: pool.snapshot().queued == 2)
            assert stage.running == 0
        assert await task == [-n for n in range(10)]
    assert stage.peak == 3


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (fail_fast(), NoFreeSlot),
        (bounded(2, "fail_submitter"), PoolFull),
        (bounded(2, "block_submitter", wait_timeout=5), PoolFull),
        (bounded(2, "drop_newest"), JobRejected),
    ],
    ids=str,
)
@seeded
async def test_beside_other_submitters_a_map_is_refused_like_any_submit(
    runtime: SeededRuntime, policy: Policy, error: type[Exception]
) -> None:
    stage = Stage(runtime)
    async with Pool(max_concurrent=2, backpressure=policy, runtime=runtime) as pool:
        async with occupied(pool, 2):
            places = () if policy == fail_fast() else (1, 2)
            waiting = [await pool.submit(stage.work, n) for n in places]
            with pytest.raises(error):
                await pool.map(stage.work, stage.items(range(5)))
            assert stage.taken == 1
            values = await pool.map(stage.work, range(5), return_exceptions=True)
            assert [type(value) for value in values] == [error] * 5
        assert [await ticket for ticket in waiting] == [-n for n in places]


@pytest.mark.parametrize("policy", [ring_buffer(2), bounded(2, "drop_oldest")], ids=str)
@seeded
async def test_an_item_evicted_by_other_submits_is_an_outcome(
    runtime: SeededRuntime, policy: Policy
) -> None:
    stage = Stage(runtime)
    async with Pool(max_concurrent=2, backpressure=policy, runtime=runtime) as pool:
        for keep in (False, True):
            async with occupied(pool, 2):
                task = asyncio.create_task(pool.map(stage.work, range(2), return_exceptions=keep))
                await until(lambda: pool.snapshot().queued == 2)
                others = [await pool.submit(stage.work, n) for n in (7, 8)]
                if keep:
                    assert [type(value) for value in await task] == [JobRejected] * 2
                else:
                    with pytest.raises(JobRejected, match="submit it again"):
                        await task
            assert [await ticket for ticket in others] == [-7, -8]


@seeded
async def test_the_window_follows_the_size_of_the_pool(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)

    async def work(item: int) -> int:
        return await stage.take_time(item, 1)

    async with Pool(max_concurrent=1, runtime=runtime) as pool:
        task = asyncio.create_task(pool.map(work, stage.items(range(60))))
        await asyncio.sleep(0.5)
        assert stage.taken == 2
        await pool.resize(5)
        await asyncio.sleep(2.2)
        assert (stage.running, stage.taken - stage.over) == (5, 10)
        await pool.resize(2)
        await asyncio.sleep(5)
        assert (stage.running, stage.taken - stage.over) == (2, 4)
        assert await task == [-n for n in range(60)]


@seeded
async def test_a_slot_that_is_stuck_counts_as_taken(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()

    async def deaf() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    stage = Stage(runtime)
    async with Pool(max_concurrent=3, backpressure=fail_fast(), runtime=runtime) as pool:
        ticket = await pool.submit(deaf)
        await asyncio.sleep(1)
        assert await ticket.cancel()
        assert pool.snapshot().stuck == 1
        assert await pool.map(stage.work, range(20)) == [-n for n in range(20)]
        assert stage.peak == 2
        gate.set()


@seeded
async def test_refusals_of_endless_items_do_not_block_the_loop(runtime: SeededRuntime) -> None:
    async with Pool(backpressure=fail_fast(), runtime=runtime) as pool, occupied(pool):
        task = asyncio.create_task(pool.map(forever, endless(), return_exceptions=True))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# The first failure


async def fail_at_two(item: int) -> int:
    if item == 2:
        raise LookupError(f"no item {item}")
    await asyncio.Event().wait()
    return item


@pytest.mark.parametrize("policy", [policy for policy, _ in POLICIES], ids=str)
@seeded
async def test_the_first_failure_cancels_the_rest(runtime: SeededRuntime, policy: Policy) -> None:
    stage = Stage(runtime)
    async with Pool(max_concurrent=3, backpressure=policy, runtime=runtime) as pool:
        with pytest.raises(LookupError, match="no item 2"):
            await pool.map(fail_at_two, stage.items(endless()))
        picture = pool.snapshot()
        assert (picture.active, picture.queued, pool.size()) == (0, 0, 0)
        assert (picture.failed, picture.completed) == (1, 0)
        assert picture.failed + picture.cancelled == stage.taken <= 6


@seeded
async def test_the_first_failure_in_time_is_raised(runtime: SeededRuntime) -> None:
    async def fail_backwards(item: int) -> None:
        await asyncio.sleep(10 - item)
        raise LookupError(f"item {item}")

    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        with pytest.raises(LookupError, match="item 4"):
            await pool.map(fail_backwards, range(10))


@seeded
async def test_no_item_is_taken_after_a_failure(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)

    async def fail_soon(item: int) -> None:
        await asyncio.sleep(1 if item == 1 else 2)
        raise LookupError(f"item {item}")

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        items = stage.items(endless())
        with pytest.raises(LookupError, match="item 1"):
            await pool.map(fail_soon, items)
        assert stage.taken == 4
        assert next(items) == 4


@seeded
async def test_jobs_have_ended_when_the_failure_is_raised(runtime: SeededRuntime) -> None:
    ended: list[int] = []

    async def slow_to_stop(item: int) -> None:
        if item == 0:
            await asyncio.sleep(1)
            raise LookupError
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(2)
            ended.append(item)

    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        with pytest.raises(LookupError):
            await pool.map(slow_to_stop, range(3))
        assert sorted(ended) == [1, 2]


async def test_no_waiting_job_starts_in_the_slot_of_the_failed_one() -> None:
    began: list[int] = []

    async def note(item: int) -> None:
        began.append(item)
        await fail_at_two(item)

    async with Pool(max_concurrent=3) as pool:
        with pytest.raises(LookupError):
            await pool.map(note, endless())
        assert pool.size() == 0
    assert began == [0, 1, 2]


@seeded
async def test_code_that_does_not_stop_is_left_after_its_grace(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()

    async def deaf(item: int) -> None:
        if item == 0:
            await asyncio.sleep(1)
            raise LookupError
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async with Pool(max_concurrent=2, cancel_grace=3, runtime=runtime) as pool:
        began = runtime.monotonic()
        with pytest.raises(LookupError):
            await pool.map(deaf, range(2))
        assert 3.9 < runtime.monotonic() - began < 4.5
        assert pool.snapshot().stuck == 1
        gate.set()


@seeded
async def test_jobs_of_other_submitters_are_not_cancelled(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)
    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        others = [pool.submit_nowait(stage.work, n) for n in range(6)]
        with pytest.raises(LookupError):
            await pool.map(fail_at_two, range(6))
        assert [await ticket for ticket in others] == [-n for n in range(6)]


@seeded
async def test_with_return_exceptions_errors_are_returned_in_place_of_values(
    runtime: SeededRuntime,
) -> None:
    async def odd_ones_fail(item: int) -> int:
        await asyncio.sleep(item % 3)
        if item % 4 == 1:
            raise LookupError(item)
        if item % 4 == 3:
            raise asyncio.CancelledError
        return item

    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        values = await pool.map(odd_ones_fail, range(12), return_exceptions=True)
    kinds = [int, LookupError, int, JobCancelled]
    assert [type(value) for value in values] == kinds * 3
    assert [value for value in values if isinstance(value, int)] == [0, 2, 4, 6, 8, 10]
    assert [value.args for value in values if isinstance(value, LookupError)] == [(1,), (5,), (9,)]


class Odd(BaseException):
    """Not an Exception; its truth value raises."""

    def __bool__(self) -> bool:
        raise KeyboardInterrupt("asked")


@seeded
async def test_an_error_of_any_kind_is_raised_as_it_is(runtime: SeededRuntime) -> None:
    odd = Odd()

    async def raise_it(item: int) -> None:
        raise odd

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        with pytest.raises(Odd) as raised:
            await pool.map(raise_it, range(3))
        assert raised.value is odd
        assert await pool.map(raise_it, range(2), return_exceptions=True) == [odd, odd]


@seeded
async def test_a_job_cancelled_by_other_code_is_a_failure(runtime: SeededRuntime) -> None:
    async def cancel_itself(_: int) -> None:
        raise asyncio.CancelledError

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        with pytest.raises(JobCancelled):
            await pool.map(cancel_itself, range(3))


@seeded
async def test_a_drain_finishes_accepted_items_and_refuses_the_rest(
    runtime: SeededRuntime,
) -> None:
    stage = Stage(runtime)

    async def work(item: int) -> int:
        return await stage.take_time(item, 1)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        strict = asyncio.create_task(pool.map(work, range(20)))
        lenient = asyncio.create_task(pool.map(work, range(20), return_exceptions=True))
        await asyncio.sleep(0.5)
        report = await pool.drain(100)
    with pytest.raises(Draining):
        await strict
    values = await lenient
    assert [type(value) for value in values] == [int] * 4 + [Draining] * 16
    assert report.submitted == 8


@seeded
async def test_a_pool_that_is_stopped_ends_its_maps(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        tasks = [asyncio.create_task(pool.map(forever, range(9))) for _ in range(2)]
        await until(lambda: pool.size() == 8)
        await pool.drain(0)
        for task in tasks:
            with pytest.raises((Draining, JobRejected, JobCancelled)):
                await task


# The caller is cancelled


@pytest.mark.parametrize("policy", [unbounded(), bounded(1), fail_fast(), ring_buffer(1)], ids=str)
@seeded
async def test_cancelling_the_caller_cancels_its_jobs(
    runtime: SeededRuntime, policy: Policy
) -> None:
    stage = Stage(runtime)

    async def work(item: int) -> int:
        return await stage.take_time(item, 100)

    async with Pool(max_concurrent=2, backpressure=policy, runtime=runtime) as pool:
        task = asyncio.create_task(pool.map(work, stage.items(endless())))
        await until(lambda: stage.begun == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert (pool.size(), stage.running, stage.begun) == (0, 0, 2)
        assert pool.snapshot().cancelled == stage.taken


@seeded
async def test_a_cancelled_map_starts_none_of_its_waiting_jobs(
    runtime: SeededRuntime,
) -> None:
    async def try_later(_: int) -> None:
        raise RetryLater(100)

    heard = Heard()
    async with Pool(max_concurrent=2, runtime=runtime, events=heard.events) as pool:
        view = pool.with_options(session="one at a time", retry=Retry())
        task = asyncio.create_task(view.map(try_later, range(3)))
        await until(lambda: pool.snapshot().scheduled == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(heard.of(JobStarted)) == 1


@seeded
async def test_a_caller_may_be_cancelled_at_any_moment(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)
    for steps in range(40):
        async with Pool(max_concurrent=2, backpressure=bounded(1), runtime=runtime) as pool:
            many = stage.aitems(range(5)) if steps % 2 else stage.items(range(5))
            task = asyncio.create_task(pool.map(stage.work, many))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert pool.size() == 0
            assert task.cancelled() or task.result() == [-n for n in range(5)]
    assert stage.running == 0


@seeded
async def test_a_timeout_around_a_map_is_a_timeout(runtime: SeededRuntime) -> None:
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await pool.map(forever, endless())
        assert pool.size() == 0


@seeded
async def test_a_caller_cancelled_twice_does_not_wait_for_slow_jobs(
    runtime: SeededRuntime,
) -> None:
    async def slow_to_stop(_: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(4)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        task = asyncio.create_task(pool.map(slow_to_stop, range(5)))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(1)
        assert not task.done()
        task.cancel()
        await until(task.done)
        assert task.cancelled()
        assert pool.snapshot().active == 2


@seeded
async def test_a_caller_cancelled_while_its_jobs_end_is_cancelled(runtime: SeededRuntime) -> None:
    async def slow_to_stop(item: int) -> None:
        if item == 0:
            await asyncio.sleep(1)
            raise LookupError
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(4)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        task = asyncio.create_task(pool.map(slow_to_stop, range(5)))
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# The items


class Broken(Exception):
    """What an iterator of these tests raises."""


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kind", ["plain", "async"])
@seeded
async def test_items_that_break_off_end_it(runtime: SeededRuntime, kind: str, keep: bool) -> None:
    def plain() -> Iterator[int]:
        yield from range(4)
        raise Broken

    async def late() -> AsyncIterator[int]:
        for item in range(4):
            await asyncio.sleep(0)
            yield item
        raise Broken

    async def first_two_end(item: int) -> None:
        await (asyncio.sleep(1) if item < 2 else forever(item))

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        items = plain() if kind == "plain" else late()
        with pytest.raises(Broken):
            await pool.map(first_two_end, items, return_exceptions=keep)
        assert pool.size() == 0
        picture = pool.snapshot()
        assert picture.completed + picture.cancelled == 4
        with pytest.raises(Broken):
            await pool.map(forever, Unready())


class Unready:
    """An iterable whose `__iter__` raises."""

    def __iter__(self) -> Iterator[int]:
        raise Broken


@seeded
async def test_an_async_generator_is_closed_when_it_ends_early(runtime: SeededRuntime) -> None:
    closed: list[str] = []

    async def rows(name: str) -> AsyncIterator[int]:
        try:
            for item in endless():
                yield item
        finally:
            await asyncio.sleep(1)
            closed.append(name)

    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        with pytest.raises(LookupError):
            await pool.map(fail_at_two, rows("failed"))
        assert closed == ["failed"]
        task = asyncio.create_task(pool.map(forever, rows("cancelled")))
        await until(lambda: pool.size() == 6)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed == ["failed", "cancelled"]
    async with Pool(runtime=runtime) as pool:
        await pool.drain()
        with pytest.raises(Draining):
            await pool.map(forever, rows("refused"))
    assert closed == ["failed", "cancelled", "refused"]


@seeded
async def test_a_failure_ends_a_wait_for_the_next_item(runtime: SeededRuntime) -> None:
    closed: list[bool] = []

    async def slow() -> AsyncIterator[int]:
        yield 2
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        with pytest.raises(LookupError):
            await pool.map(fail_at_two, slow())
    assert closed == [True]


@seeded
async def test_a_failure_ends_a_wait_for_a_place(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()

    async def fail_at_the_gate(_: int) -> None:
        await gate.wait()
        raise LookupError

    def items() -> Iterator[int]:
        yield 0
        others.append(pool.submit_nowait(asyncio.sleep, 0))
        yield 1

    others: list[Ticket[None]] = []
    async with Pool(max_concurrent=2, backpressure=bounded(1), runtime=runtime) as pool:
        async with occupied(pool):
            task = asyncio.create_task(pool.map(fail_at_the_gate, items()))
            await until(lambda: pool.snapshot().blocked_submitters == 1)
            gate.set()
            with pytest.raises(LookupError):
                await task
            assert pool.snapshot().blocked_submitters == 0
        await wait(others)
        assert pool.size() == 0


@seeded
async def test_items_that_swallow_their_cancellation_are_not_run(runtime: SeededRuntime) -> None:
    began: list[int] = []

    async def stubborn() -> AsyncIterator[int]:
        yield 2
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield 3

    async def note(item: int) -> None:
        began.append(item)
        await fail_at_two(item)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        with pytest.raises(LookupError):
            await pool.map(note, stubborn())
        assert pool.snapshot().total == 1
        task = asyncio.create_task(pool.map(lambda item: forever(item), stubborn()))
        await until(lambda: pool.snapshot().active == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.size() == 0
    assert began == [2]


@seeded
async def test_a_generator_that_fails_to_close_does_not_hide_the_failure(
    runtime: SeededRuntime,
) -> None:
    async def rows() -> AsyncIterator[int]:
        try:
            yield 2
            yield 3
            yield 4
        finally:
            raise Broken

    async with Pool(runtime=runtime) as pool:
        with pytest.raises(LookupError):
            await pool.map(fail_at_two, rows())
        assert pool.size() == 0


@seeded
async def test_items_that_are_cancelled_cancel_the_caller(runtime: SeededRuntime) -> None:
    async def rows() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError

    async with Pool(runtime=runtime) as pool:
        with pytest.raises(asyncio.CancelledError):
            await pool.map(forever, rows())
        assert pool.size() == 0


# Inside a job


@pytest.mark.parametrize("policy", [unbounded(), bounded(1), bounded(5)], ids=str)
@seeded
async def test_a_job_that_maps_over_its_own_full_pool_gets_deadlock(
    runtime: SeededRuntime, policy: Policy
) -> None:
    stage = Stage(runtime)

    async def outer() -> list[int]:
        return await pool.map(stage.work, stage.items(endless()))

    async with Pool(backpressure=policy, runtime=runtime) as pool:
        ticket = await pool.submit(outer)
        with pytest.raises(Deadlock, match="can never start") as raised:
            await ticket
        assert raised.value.job_id == ticket.id
        assert pool.size() == 0
        assert stage.begun == 0
        assert await pool.map(stage.work, range(3)) == [0, -1, -2]


@seeded
async def test_with_return_exceptions_deadlock_is_returned_for_each_item(
    runtime: SeededRuntime,
) -> None:
    stage = Stage(runtime)

    async def outer() -> list[type]:
        values = await pool.map(stage.work, range(5), return_exceptions=True)
        return [type(value) for value in values]

    async with Pool(runtime=runtime) as pool:
        assert await pool.run(outer) == [Deadlock] * 5
        assert pool.size() == 0
    assert stage.begun == 0


@seeded
async def test_a_job_may_map_over_its_own_pool_while_a_slot_is_free(
    runtime: SeededRuntime,
) -> None:
    stage = Stage(runtime)

    async def outer(n: int) -> list[int]:
        return await pool.map(stage.work, range(n))

    async with Pool(max_concurrent=3, backpressure=bounded(1), runtime=runtime) as pool:
        assert await pool.run(outer, 10) == [-n for n in range(10)]
        one, two = await asyncio.gather(pool.run(outer, 10), pool.run(outer, 10))
        assert one == two == [-n for n in range(10)]
    assert stage.peak <= 2


@seeded
async def test_a_circular_wait_through_a_map_gets_deadlock(runtime: SeededRuntime) -> None:
    async def wait_for_the_outer(_: int) -> None:
        await tickets[0]

    async def outer() -> list[Any]:
        return await pool.map(wait_for_the_outer, range(2), return_exceptions=True)

    async with Pool(max_concurrent=4, runtime=runtime) as pool:
        tickets = [pool.submit_nowait(outer)]
        assert {type(value) for value in await tickets[0]} <= {Deadlock, type(None)}
        await until(lambda: pool.size() == 0)


@seeded
async def test_a_deadlock_resolved_in_time_is_not_reported(runtime: SeededRuntime) -> None:
    async def outer() -> list[Any]:
        return await pool.map(Stage(runtime).work, range(3), return_exceptions=True)

    for steps in range(15):
        async with Pool(runtime=runtime) as pool:
            ticket = await pool.submit(outer)
            for _ in range(steps):
                await asyncio.sleep(0)
            for job in list(pool._engine().desk):
                await job.cancel()
            kinds = {type(value) for value in await ticket}
            assert kinds <= {Deadlock, JobCancelled}


# Without a pool


@seeded
async def test_bounded_map_keeps_the_limit_and_the_order(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)
    values = await bounded_map(stage.work, stage.aitems(range(50)), limit=3, runtime=runtime)
    assert values == [-n for n in range(50)]
    assert stage.peak == 3
    assert list_pools() == []


@seeded
async def test_bounded_map_leaves_nothing_when_it_fails(runtime: SeededRuntime) -> None:
    with pytest.raises(LookupError):
        await bounded_map(fail_at_two, endless(), limit=3, runtime=runtime)
    assert list_pools() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    values = await bounded_map(
        fail_at_two, (2, 2), limit=1, return_exceptions=True, runtime=runtime
    )
    assert [type(value) for value in values] == [LookupError] * 2


@seeded
async def test_bounded_map_leaves_nothing_when_it_is_cancelled(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)

    async def work(item: int) -> int:
        return await stage.take_time(item, 1_000)

    for steps in (0, 1, 2, 3, 5, 8, 13, 21):
        task = asyncio.create_task(bounded_map(work, endless(), limit=3, runtime=runtime))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (stage.running, list_pools()) == (0, [])
        assert asyncio.all_tasks() == {asyncio.current_task()}


@seeded
async def test_bounded_map_works_inside_a_job_and_nested(runtime: SeededRuntime) -> None:
    stage = Stage(runtime)

    async def inner(item: int) -> list[int]:
        return await bounded_map(stage.work, range(item), limit=1, runtime=runtime)

    async def outer() -> list[list[int]]:
        return await bounded_map(inner, range(4), limit=2, runtime=runtime)

    wanted = [[-n for n in range(item)] for item in range(4)]
    async with Pool(runtime=runtime) as pool:
        assert await pool.run(outer) == wanted
        assert list_pools() == [pool]
    assert await outer() == wanted
    assert stage.peak <= 2


async def test_bounded_map_works_on_a_plain_loop() -> None:
    async def double(item: int) -> int:
        await asyncio.sleep(0)
        return 2 * item

    assert await bounded_map(double, range(100), limit=7) == [2 * n for n in range(100)]
    assert list_pools() == []


# Invalid calls


def a_generator(item: int) -> Iterator[int]:
    yield item


async def a_coroutine() -> list[int]:
    return [1]


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no function": (lambda: {"fn": 5}, r"fn=5 is not allowed; it must be a function of one item"),
    "a coroutine": (lambda: {"fn": a_coroutine()}, r"fn is the coroutine a_coroutine\(…\)"),
    "a generator": (lambda: {"fn": a_generator}, "fn: a_generator is a generator"),
    "no items": (lambda: {"items": 7}, "items=7 is not allowed; it must be an iterable"),
    "nothing": (lambda: {"items": None}, "items=None is not allowed"),
    "items to be awaited": (lambda: {"items": a_coroutine()}, r"items is the coroutine .*await it"),
    "no yes or no": (
        lambda: {"return_exceptions": 1},
        "return_exceptions=1 is not allowed; it must be True or False",
    ),
    "all at once": (
        lambda: {"fn": None, "items": 7, "return_exceptions": "x"},
        "fn=None.*items=7.*return_exceptions='x'",
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_argument_is_refused_before_anything_is_submitted(what: str) -> None:
    make, message = BAD[what]
    taken: list[int] = []

    def items() -> Iterator[int]:
        taken.append(1)
        yield 1

    async with Pool("checked") as pool:
        with pytest.raises(UsageError, match=f"Pool 'checked', map: .*{message}"):
            await pool.map(**{"fn": forever, "items": items(), **make()})
        with pytest.raises(UsageError, match=f"bounded_map: .*{message}"):
            await bounded_map(**{"fn": forever, "items": items(), "limit": 1, **make()})
        assert pool.snapshot().total == 0
        assert list_pools() == [pool]
    assert taken == []
    gc.collect()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2", None, 10**9])
async def test_a_bad_limit_is_refused_before_anything_is_created(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"limit=.* is not allowed; it must be an int of at least"):
        await bounded_map(forever, range(3), limit=limit)
    with pytest.raises(UsageError, match=r"fn=5.*limit="):
        await bounded_map(5, range(3), limit=limit)  # type: ignore[call-overload]
    assert list_pools() == []


async def test_an_idempotency_key_is_refused_for_a_map() -> None:
    async with Pool() as pool:
        view = pool.with_options(idempotency_key="batch")
        with pytest.raises(UsageError, match="idempotency_key='batch' is not allowed; a key"):
            await view.map(forever, range(3))
        assert pool.snapshot().total == 0


async def test_a_pool_that_is_not_started_or_on_another_loop_refuses_a_map() -> None:
    async def in_another_loop() -> None:
        async with asyncio.timeout(5):
            await pool.map(forever, ())

    pool = Pool("idle")
    with pytest.raises(UsageError, match="not started"):
        await pool.map(forever, range(3))
    async with pool:
        with pytest.raises(UsageError, match="belong to another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(in_another_loop()))


async def test_run_in_is_checked_before_anything_is_submitted() -> None:
    async with Pool() as pool:
        with pytest.raises(UsageError, match="forever is async and runs on the loop"):
            await pool.with_options(run_in="thread").map(forever, range(3))
        assert pool.snapshot().total == 0


def views(pool: Pool) -> list[Submitter]:
    return [pool, pool.with_options(key="a"), pool.with_options(key="a").with_options(priority=1)]


@seeded
async def test_maps_of_several_keys_share_fairly(runtime: SeededRuntime) -> None:
    order: list[str] = []

    async def note(name: str) -> None:
        order.append(name)
        await asyncio.sleep(1)

    async with Pool(queue=fair_round_robin(), runtime=runtime) as pool:
        async with occupied(pool):
            maps = [
                asyncio.create_task(pool.with_options(key=name).map(note, [name] * 5))
                for name in "ab"
            ]
            await until(lambda: pool.snapshot().queued == 4)
        await asyncio.gather(*maps)
    assert abs(order[:6].count("a") - 3) <= 1


@seeded
async def test_every_view_of_a_pool_can_map(runtime: SeededRuntime) -> None:
    async with Pool(queue=lifo(), max_concurrent=2, runtime=runtime) as pool:
        for view in views(pool):
            assert await view.map(Stage(runtime).work, range(5)) == [-n for n in range(5)]


@pytest.mark.parametrize("on_full", ["fail_submitter", "drop_oldest", "drop_newest"])
@seeded
async def test_a_retry_that_takes_the_last_place_while_an_item_is_awaited_costs_no_item(
    runtime: SeededRuntime, on_full: str
) -> None:
    failed: set[int] = set()

    async def flaky(number: int) -> int:
        if number not in failed:
            failed.add(number)
            raise ValueError(number)
        return number

    async def slowly() -> AsyncIterator[int]:
        for number in range(6):
            await asyncio.sleep(0.5)
            yield number

    retry = Retry(attempts=2, first=2, jitter=0)
    policy = bounded(1, on_full)
    async with Pool(max_concurrent=2, backpressure=policy, retry=retry, runtime=runtime) as pool:
        assert await pool.with_options(session="s").map(flaky, slowly()) == list(range(6))


@pytest.mark.parametrize("items", [list, dict])
@seeded
async def test_a_class_is_no_iterable_of_items(runtime: SeededRuntime, items: Any) -> None:
    async with Pool(runtime=runtime) as pool:
        with pytest.raises(UsageError, match="items"):
            await pool.map(str, items)
