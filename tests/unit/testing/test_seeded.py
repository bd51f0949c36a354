"""The seeded loop: the guarantees that tests rely on."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import math
import os
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from poolhand.testing import SeededLoop, SeededRuntime, Stalled, run_seeded

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("COLOUR", default="none")
SEEDS = range(60)


async def crowd(runtime: SeededRuntime) -> tuple[list[str], int]:
    """Touches the sets inside TaskGroup and wait, timers, threads, queues and cancellation."""
    order: list[str] = []
    queue: asyncio.Queue[int] = asyncio.Queue(2)

    async def put(number: int) -> None:
        await queue.put(number)
        order.append(f"put {number}")
        await asyncio.sleep(runtime.random.choice([0, 0.1, 0.2]))
        order.append(f"slept {number}")

    async def wait_for_ever(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append(f"ended {number}")

    tasks = [asyncio.create_task(put(number)) for number in range(6)]
    for number in range(3):
        runtime.in_thread(lambda number=number: order.append(f"thread {number}"), "t")  # type: ignore[misc]
    while len(order) < 9:
        with_item, _ = await asyncio.wait([asyncio.create_task(queue.get()), *tasks], timeout=0.05)
        order.extend(task.get_name() for task in with_item)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(wait_for_ever(number))
            await asyncio.sleep(1)
            raise KeyError
    except* KeyError:
        pass
    return order, runtime.loop.trace


def arrivals(runtime: SeededRuntime) -> Coroutine[Any, Any, list[int]]:
    async def main() -> list[int]:
        order: list[int] = []
        for number in range(6):
            asyncio.get_running_loop().call_soon(order.append, number)
        await asyncio.sleep(0.001)
        return order

    return main()


def crowd_of(seed: int) -> tuple[list[str], int]:
    return run_seeded(crowd, seed, allow_leftovers=True)


# One seed, one schedule


def test_the_same_seed_replays_the_same_interleaving() -> None:
    for seed in range(20):
        first = crowd_of(seed)
        noise = [object() for _ in range(1000 + seed)]  # other addresses for the second run
        assert crowd_of(seed) == first
        del noise


@pytest.mark.slow
def test_a_replay_does_not_depend_on_the_process_or_its_hash_seed() -> None:
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('t', {str(Path(__file__))!r})\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "print([module.crowd_of(seed) for seed in range(10)])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert outputs == {f"{[crowd_of(seed) for seed in range(10)]}\n"}


def test_different_seeds_give_different_orders_and_traces() -> None:
    orders = {tuple(run_seeded(arrivals, seed)) for seed in SEEDS}
    assert len(orders) > 50
    assert {frozenset(order) for order in orders} == {frozenset(range(6))}
    assert len({crowd_of(seed)[1] for seed in SEEDS}) == len(SEEDS)


def test_every_order_of_three_callbacks_is_reached() -> None:
    async def three(_: SeededRuntime) -> str:
        order: list[str] = []
        for letter in "abc":
            asyncio.get_running_loop().call_soon(order.append, letter)
        await asyncio.sleep(1)
        return "".join(order)

    assert {run_seeded(three, seed) for seed in SEEDS} == {
        "abc", "acb", "bac", "bca", "cab", "cba",
    }  # fmt: skip


def test_fifo_keeps_the_order_that_asyncio_promises() -> None:
    for seed in SEEDS:
        assert run_seeded(arrivals, seed, order="fifo") == list(range(6))


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order='lifo'"):
        SeededLoop(order="lifo")  # type: ignore[arg-type]


# Time


def test_time_jumps_to_the_next_timer_and_costs_nothing() -> None:
    async def main(runtime: SeededRuntime) -> list[float]:
        start = runtime.monotonic()
        assert start > 0
        moments = []
        for _ in range(3):
            await asyncio.sleep(3600)
            moments.append(runtime.monotonic() - start)
        return moments

    assert run_seeded(main, 1) == [3600, 7200, 10800]


def test_time_stands_still_while_anything_is_ready() -> None:
    async def main(runtime: SeededRuntime) -> bool:
        start = runtime.monotonic()
        rang: list[int] = []
        asyncio.get_running_loop().call_later(1e-6, rang.append, 1)
        for _ in range(500):
            await asyncio.sleep(0)
        return runtime.monotonic() == start and not rang

    assert run_seeded(main, 1)


def test_timers_of_one_moment_fire_in_any_order_and_others_in_order() -> None:
    async def main(_: SeededRuntime) -> str:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        moment = loop.time() + 0.3
        loop.call_at(moment, order.append, "a")
        loop.call_at(math.nextafter(moment, math.inf), order.append, "b")
        loop.call_at(moment + 1e-6, order.append, "z")
        await asyncio.sleep(1)
        return "".join(order)

    assert {run_seeded(main, seed) for seed in SEEDS} == {"abz", "baz"}


def test_a_timer_never_rings_early() -> None:
    async def main(runtime: SeededRuntime) -> None:
        loop = runtime.loop
        for tenths in range(1, 30):
            when = loop.time() + tenths / 10

            def ring(when: float = when) -> None:
                assert loop.time() >= when

            loop.call_at(when, ring)
        await asyncio.sleep(5)

    for seed in SEEDS:
        run_seeded(main, seed)


def test_a_cancelled_timer_neither_rings_nor_moves_time() -> None:
    async def main(runtime: SeededRuntime) -> float:
        handle = asyncio.get_running_loop().call_later(1, pytest.fail, "rang")
        handle.cancel()
        assert handle.cancelled()
        await asyncio.sleep(2)
        asyncio.get_running_loop().call_later(1, pytest.fail, "rang").cancel()
        asyncio.get_running_loop().call_soon(pytest.fail, "called").cancel()
        await asyncio.sleep(0)
        return runtime.monotonic()

    assert run_seeded(main, 1) == 1002.0


def test_a_cancelled_callback_is_no_step() -> None:
    loop = SeededLoop(1)
    loop.call_soon(print).cancel()
    loop.run_ready()
    assert loop.steps == 0
    loop.close()


def test_the_wall_clock_follows_virtual_time_and_can_be_moved() -> None:
    async def main(runtime: SeededRuntime) -> tuple[timedelta, timedelta, float]:
        start, mono = runtime.wall(), runtime.monotonic()
        await asyncio.sleep(90)
        passed = runtime.wall() - start
        runtime.wall_offset -= 3600
        return passed, runtime.wall() - start, runtime.monotonic() - mono

    passed, moved, mono = run_seeded(main, 1)
    assert (passed, moved, mono) == (timedelta(seconds=90), timedelta(seconds=-3510), 90)


# Hangs


def test_a_lost_wake_up_is_raised_as_stalled_with_the_waiting_tasks() -> None:
    async def sleeper() -> None:
        await asyncio.Event().wait()

    async def main(_: SeededRuntime) -> None:
        await asyncio.create_task(sleeper(), name="the-sleeper")

    with pytest.raises(Stalled, match="no timer pending") as caught:
        run_seeded(main, 7)
    text = str(caught.value)
    assert "main: " in text
    assert "the-sleeper: " in text
    assert f"sleeper ({__file__}:" in text
    assert "Event.wait" in text
    assert caught.value.__notes__ == [f"seed=7 replay with run_seeded({main.__qualname__}, seed=7)"]


def test_waiting_for_infinity_is_a_stall() -> None:
    async def main(_: SeededRuntime) -> None:
        await asyncio.sleep(float("inf"))

    with pytest.raises(Stalled):
        run_seeded(main, 1)


def test_a_program_that_turns_in_place_is_raised_as_a_livelock() -> None:
    async def main(_: SeededRuntime) -> None:
        while True:  # noqa: ASYNC110 - spinning is the point
            await asyncio.sleep(0)

    with pytest.raises(Stalled, match=r"livelock: 1000 steps in 0 s\n  main: "):
        run_seeded(main, 1, max_steps=1000)


def test_a_livelocked_task_is_still_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def main(_: SeededRuntime) -> None:
        try:
            while True:  # noqa: ASYNC110 - spinning is the point
                await asyncio.sleep(0)
        finally:
            ended.append("main")

    with pytest.raises(Stalled):
        run_seeded(main, 1, max_steps=1000)
    assert ended == ["main"]


def test_a_task_that_spins_after_main_is_raised_as_a_livelock() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - spinning is the point
            await asyncio.sleep(0)

    async def main(_: SeededRuntime) -> None:
        asyncio.create_task(spin(), name="spinner")  # noqa: RUF006 - the loop holds it

    with pytest.raises(Stalled, match="livelock"):
        run_seeded(main, 1, max_steps=1000)


# What is left at the end


async def leave_one(_: SeededRuntime) -> str:
    asyncio.create_task(asyncio.sleep(60), name="forgotten")  # noqa: RUF006
    return "value"


def test_a_task_left_behind_fails_the_run_and_is_named() -> None:
    with pytest.raises(AssertionError, match="1 tasks left behind:\n  forgotten: ") as caught:
        run_seeded(leave_one, 3)
    assert "seed=3" in caught.value.__notes__[0]


def test_leftovers_can_be_allowed() -> None:
    assert run_seeded(leave_one, 3, allow_leftovers=True) == "value"


def test_a_task_that_only_has_to_finish_is_not_left_behind() -> None:
    async def main(_: SeededRuntime) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(1)
        task.cancel()

    for seed in SEEDS:
        run_seeded(main, seed)


def test_leftovers_are_cancelled_and_run_to_their_end() -> None:
    ended: list[str] = []

    async def stay(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)
            ended.append(name)

    async def main(_: SeededRuntime) -> None:
        for name in "ab":
            asyncio.create_task(stay(name))  # noqa: RUF006
        await asyncio.sleep(1)

    run_seeded(main, 1, allow_leftovers=True)
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize("stubborn", [True, False])
def test_nothing_is_printed_about_leftovers(
    stubborn: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def refuse() -> None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if not stubborn:
                    raise LookupError("on the way out") from None

    async def main(_: SeededRuntime) -> None:
        for _number in range(3):
            asyncio.create_task(refuse())  # noqa: RUF006
        await asyncio.sleep(1)

    gc.collect()  # Leftovers of other tests must not be reported here.
    caplog.clear()
    with caplog.at_level(logging.DEBUG), pytest.raises(AssertionError, match="3 tasks"):
        run_seeded(main, 1)
    gc.collect()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_a_closed_loop_is_freed_without_the_garbage_collector() -> None:
    seen: list[weakref.ref[SeededLoop]] = []

    async def main(runtime: SeededRuntime) -> None:
        seen.append(weakref.ref(runtime.loop))
        await asyncio.gather(*(asyncio.sleep(1) for _ in range(3)))

    gc.disable()
    try:
        run_seeded(main, 1)
        assert seen[0]() is None
    finally:
        gc.enable()


# What fails on the way


def test_an_exception_that_escapes_a_callback_fails_the_run() -> None:
    def burst() -> None:
        raise LookupError("burst")

    async def main(runtime: SeededRuntime) -> None:
        asyncio.get_running_loop().call_soon(burst)
        await asyncio.sleep(1)
        assert "burst" in runtime.loop.failures[0]["message"]

    with pytest.raises(ExceptionGroup) as caught:
        run_seeded(main, 5)
    assert [repr(error) for error in caught.value.exceptions] == ["LookupError('burst')"]
    assert "seed=5" in caught.value.__notes__[0]


def test_an_unread_task_exception_fails_the_run() -> None:
    async def fail() -> None:
        raise LookupError("unseen")

    async def main(_: SeededRuntime) -> None:
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        run_seeded(main, 5)
    assert [repr(error) for error in caught.value.exceptions] == ["LookupError('unseen')"]


def test_failures_are_recorded_and_passed_to_the_exception_handler() -> None:
    told: list[dict[str, Any]] = []
    loop = SeededLoop(1)
    loop.set_exception_handler(lambda _, context: told.append(context))
    loop.call_soon(divmod, 1, 0)
    loop.run_ready()
    assert loop.failures == told
    assert isinstance(told[0]["exception"], ZeroDivisionError)
    loop.close()


def test_the_exception_of_main_is_raised_unchanged_with_the_seed() -> None:
    async def main(_: SeededRuntime) -> None:
        asyncio.get_running_loop().call_soon(divmod, 1, 0)
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        run_seeded(main, 9, order="fifo")
    first, second = caught.value.__notes__
    assert "seed=9" in first
    assert "order='fifo'" in first
    assert "ZeroDivisionError" in second


def test_keyboard_interrupt_leaves_the_loop_at_once() -> None:
    async def main(_: SeededRuntime) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_seeded(main, 1)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


# Threads


def test_thread_calls_take_virtual_time_and_are_scheduled() -> None:
    async def main(runtime: SeededRuntime) -> str:
        start, order = runtime.monotonic(), []
        for letter in "abc":
            runtime.in_thread(lambda letter=letter: order.append(letter), "t")  # type: ignore[misc]
        assert order == []
        await asyncio.sleep(0.051)
        assert runtime.monotonic() - start < 0.06
        return "".join(order)

    assert len({run_seeded(main, seed) for seed in SEEDS}) == 6


def test_a_thread_call_sees_no_loop_and_no_context_and_returns_by_call_soon_threadsafe() -> None:
    async def main(runtime: SeededRuntime) -> str:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        COLOUR.set("red")

        def call() -> None:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            loop.call_soon_threadsafe(future.set_result, COLOUR.get())

        runtime.in_thread(call, "t")
        value = await future
        assert asyncio.get_running_loop() is loop
        return value

    assert run_seeded(main, 1) == "none"


def test_a_thread_call_that_touches_the_loop_unsafely_fails_the_run() -> None:
    async def main(runtime: SeededRuntime) -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        runtime.in_thread(lambda: future.set_result(1), "t")
        await future

    with pytest.raises(Stalled) as caught:
        run_seeded(main, 1)
    assert "only through call_soon_threadsafe" in caught.value.__notes__[1]


def test_a_thread_call_may_start_another() -> None:
    async def main(runtime: SeededRuntime) -> list[int]:
        order: list[int] = []
        runtime.in_thread(lambda: runtime.in_thread(lambda: order.append(1), "inner"), "outer")
        await asyncio.sleep(1)
        return order

    assert run_seeded(main, 1) == [1]


def test_the_executor_is_refused_with_the_alternative() -> None:
    async def main(_: SeededRuntime) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(NotImplementedError, match=r"SeededRuntime\.in_thread"):
        run_seeded(main, 1)


# asyncio on top of it


async def timeout_ends_a_wait(runtime: SeededRuntime) -> None:
    start = runtime.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    assert runtime.monotonic() == start + 5
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    async with asyncio.timeout(5) as scope:
        await asyncio.sleep(1)
    assert not scope.expired()


async def outer_cancellation_beats_a_timeout(_: SeededRuntime) -> None:
    async def inner() -> None:
        async with asyncio.timeout(10):
            await asyncio.Event().wait()

    task = asyncio.create_task(inner())
    asyncio.get_running_loop().call_later(5, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def a_task_cancelled_before_its_first_step_never_starts(_: SeededRuntime) -> None:
    task = asyncio.create_task(outer_cancellation_beats_a_timeout(_))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def a_group_cancels_its_siblings(_: SeededRuntime) -> None:
    ended: list[int] = []

    async def sibling(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("group")

    async def group_of_six() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(sibling(number))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await group_of_six()
    assert sorted(ended) == [0, 1, 2, 3, 4]


async def shield_outlives_its_waiter(_: SeededRuntime) -> None:
    inner = asyncio.create_task(asyncio.sleep(10, "kept"))
    outer = asyncio.shield(inner)
    asyncio.get_running_loop().call_later(1, outer.cancel)
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert await inner == "kept"


async def gather_and_wait_collect(_: SeededRuntime) -> None:
    results = await asyncio.gather(*(asyncio.sleep(9 - n, n) for n in range(9)))
    assert results == list(range(9))
    tasks = [asyncio.create_task(asyncio.sleep(n)) for n in (1, 2, 3)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert (done, pending) == ({tasks[0]}, set(tasks[1:]))
    await asyncio.wait(pending)


async def locks_queues_and_conditions_wake_their_waiters(_: SeededRuntime) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    condition, inside, seen = asyncio.Condition(), 0, []

    async def consume() -> None:
        nonlocal inside
        item = await queue.get()
        async with condition:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.01)
            inside -= 1
            seen.append(item)
            condition.notify_all()

    async with asyncio.TaskGroup() as group:
        for _number in range(5):
            group.create_task(consume())
        for number in range(5):
            await queue.put(number)
        async with condition:
            await condition.wait_for(lambda: len(seen) == 5)
    assert sorted(seen) == list(range(5))


async def contexts_belong_to_their_tasks(_: SeededRuntime) -> None:
    async def paint(colour: str) -> str:
        COLOUR.set(colour)
        await asyncio.sleep(1)
        return COLOUR.get()

    red, blue = await asyncio.gather(paint("red"), paint("blue"))
    assert (red, blue) == ("red", "blue")
    assert COLOUR.get() == "none"


@pytest.mark.parametrize("order", ["permute", "fifo"])
@pytest.mark.parametrize(
    "program",
    [
        timeout_ends_a_wait,
        outer_cancellation_beats_a_timeout,
        a_task_cancelled_before_its_first_step_never_starts,
        a_group_cancels_its_siblings,
        shield_outlives_its_waiter,
        gather_and_wait_collect,
        locks_queues_and_conditions_wake_their_waiters,
        contexts_belong_to_their_tasks,
    ],
)
def test_asyncio_primitives_keep_their_guarantees(
    program: Callable[[SeededRuntime], Coroutine[Any, Any, None]], order: Any
) -> None:
    for seed in SEEDS:
        run_seeded(program, seed, order=order)


def test_an_abandoned_async_generator_is_closed_on_the_loop() -> None:
    closed: list[str] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            closed.append(name)

    kept = numbers("kept to the end")

    async def main(_: SeededRuntime) -> None:
        async for _number in numbers("dropped"):
            break
        await anext(kept)
        await asyncio.sleep(2)
        assert closed == ["dropped"]

    run_seeded(main, 1)
    assert closed == ["dropped", "kept to the end"]


def test_asyncio_runner_accepts_the_loop() -> None:
    async def main() -> str:
        return await asyncio.sleep(3600, "done")

    with asyncio.Runner(loop_factory=lambda: SeededLoop(1)) as runner:
        assert runner.run(main()) == "done"


def test_a_closed_loop_refuses_and_a_running_one_cannot_be_nested() -> None:
    async def main(runtime: SeededRuntime) -> SeededLoop:
        with pytest.raises(RuntimeError, match="another loop is running"):
            SeededLoop(2).run_forever()
        with pytest.raises(RuntimeError, match="Cannot close a running"):
            runtime.loop.close()
        assert runtime.loop.is_running()
        return runtime.loop

    loop = run_seeded(main, 1)
    assert loop.is_closed()
    for refuse in (loop.call_soon, loop.call_soon_threadsafe):
        with pytest.raises(RuntimeError, match="closed"):
            refuse(print)


def test_a_stopped_loop_can_run_on() -> None:
    loop = SeededLoop(1)
    loop.call_later(1, loop.stop)
    loop.call_later(2, loop.stop)
    loop.run_forever()
    assert loop.time() == 1001
    with pytest.raises(RuntimeError, match="stopped before"):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_many_finished_tasks_are_garbage_collected() -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(thing, asyncio.Task) for thing in gc.get_objects())

    async def main(runtime: SeededRuntime) -> int:
        before = count()
        for _ in range(1000):
            await asyncio.create_task(asyncio.sleep(0))
        return count() - before

    assert run_seeded(main, 1) < 200
