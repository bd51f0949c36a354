"""The watchdog: a blocked loop is reported with the job and the code that block it."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

import pytest
import uvloop

from poolhand import Pool, Ticket, wait
from poolhand.observe.events import Events, JobEnded, LoopBlocked
from poolhand.pool.monitor.watchdog import Watchdog
from poolhand.runtime import Runtime
from poolhand.views import Event
from tests.unit.pool.support import until

NewLoop = Callable[[], AbstractEventLoop]
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
NOBODYS = "in_nobodys_name"
on_every_loop = pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])


def run(new_loop: NewLoop, main: Callable[[], Awaitable[None]]) -> None:
    """Run a program on a loop of this kind."""

    async def program() -> None:
        await main()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(program())


class Ear:
    """Receives LoopBlocked and releases the code that blocks the loop.

    Its queue is implemented in C, so code that waits there is itself the innermost call.
    """

    def __init__(self) -> None:
        self.events = Events()
        self.told: list[LoopBlocked] = []
        self.threads: set[str] = set()
        self.heard: SimpleQueue[LoopBlocked] = SimpleQueue()
        self.events.subscribe(self.note)

    def note(self, event: Event) -> None:
        if not isinstance(event, LoopBlocked):
            return
        self.told.append(event)
        self.threads.add(threading.current_thread().name)
        # On a busy machine a loop may be blocked for a moment by no code of the test.
        if event.job is not None or NOBODYS in event.stack:
            self.heard.put(event)

    def of(self, ticket: Ticket[Any]) -> list[LoopBlocked]:
        return [one for one in self.told if one.job is not None and one.job.id == ticket.id]

    def at(self, function: Callable[..., Any]) -> list[LoopBlocked]:
        return [one for one in self.told if f"in {function.__name__}" in one.stack]


class Counting(Runtime):
    """A runtime that counts the looks of its watchdogs."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: SimpleQueue[None] = SimpleQueue()

    def cpu_of_thread(self, thread: threading.Thread) -> float | None:
        self.looks.put(None)
        return super().cpu_of_thread(thread)

    def look_on(self, times: int) -> None:
        """Block until the watchdogs have looked so many more times."""
        while not self.looks.empty():
            self.looks.get()
        for _ in range(times):
            self.looks.get()


def watchdog_of(pool: Pool) -> Watchdog:
    assert pool._live is not None
    return pool._live.watch


def watching() -> set[threading.Thread]:
    """Return the threads that watch a loop; those of earlier tests may be about to end."""
    return {one for one in threading.enumerate() if one.name == "poolhand-watchdog"}


# What is reported


@on_every_loop
@pytest.mark.parametrize("kind", ["async", "plain", "returned"])
def test_a_job_that_blocks_the_loop_is_named_with_its_stack(new_loop: NewLoop, kind: str) -> None:
    ear = Ear()

    def blocking() -> str:
        ear.heard.get()
        return "done"

    async def inside() -> str:
        await asyncio.sleep(0)
        return blocking()

    async def main() -> None:
        async with Pool("blocked", events=ear.events) as pool:
            if kind == "plain":
                ticket = await pool.with_options(run_in="loop").submit(blocking)
            elif kind == "async":
                ticket = await pool.submit(inside)
            else:
                ticket = await pool.submit(lambda: inside())
            assert await ticket == "done"
        (event,) = ear.of(ticket)
        assert event.job is not None
        assert (event.pool, event.job.status) == ("blocked", "running")
        assert event.seconds >= 0.1
        lines = event.stack.splitlines()
        assert "in blocking" in lines[-2]
        assert lines[-1].strip() == "ear.heard.get()"
        # The stack has no frame of the callers of the job.
        assert "poolhand/pool" not in event.stack

    run(new_loop, main)
    assert ear.threads == {"poolhand-watchdog"}


@pytest.mark.slow
@on_every_loop
def test_each_incident_is_reported_once(new_loop: NewLoop) -> None:
    ear, runtime = Ear(), Counting()

    async def blocking() -> None:
        ear.heard.get()
        runtime.look_on(3)

    async def main() -> None:
        async with Pool(events=ear.events, runtime=runtime) as pool:
            for _ in range(2):
                ticket = await pool.submit(blocking)
                await ticket
                assert len(ear.of(ticket)) == 1

    run(new_loop, main)


@on_every_loop
def test_a_block_outside_of_jobs_is_reported_once_to_every_subscriber(new_loop: NewLoop) -> None:
    shared, other, runtime = Ear(), Ear(), Counting()

    def in_nobodys_name() -> None:
        shared.heard.get()
        other.heard.get()
        runtime.look_on(3)

    async def main() -> None:
        def pool(ear: Ear) -> Pool:
            return Pool(events=ear.events, runtime=runtime)

        async with pool(shared) as first, pool(shared), pool(other), pool(shared):
            await until(lambda: not watchdog_of(first)._reported)
            in_nobodys_name()

    run(new_loop, main)
    for ear in (shared, other):
        (event,) = ear.at(in_nobodys_name)
        assert event.job is None


async def test_a_blocking_job_is_reported_to_the_subscribers_of_its_pool() -> None:
    ear, other, runtime = Ear(), Ear(), Counting()

    async def blocking() -> None:
        ear.heard.get()
        runtime.look_on(3)

    async with (
        Pool(events=other.events, runtime=runtime),
        Pool("mine", events=ear.events, runtime=runtime) as pool,
        Pool(events=other.events, runtime=runtime),
    ):
        ticket = await pool.submit(blocking)
        await ticket
    assert [one.pool for one in ear.of(ticket)] == ["mine"]
    assert other.at(blocking) == []


@pytest.mark.slow
async def test_a_stuck_job_of_a_drained_pool_is_reported_to_the_other_pools() -> None:
    ear = Ear()
    again = asyncio.Event()

    async def stubborn() -> None:
        while not again.is_set():
            try:
                await again.wait()
            except asyncio.CancelledError:
                continue
        ear.heard.get()

    async with Pool("alive", events=ear.events) as pool:
        gone = await Pool(events=ear.events).start()
        ticket = await gone.submit(stubborn)
        report = await gone.drain(0)
        assert report.stuck == 1
        again.set()
        await until(lambda: bool(ear.of(ticket)))
    assert [one.pool for one in ear.of(ticket)] == [pool.name]


async def test_the_innermost_calls_of_a_deep_stack_are_shown() -> None:
    ear = Ear()

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            ear.heard.get()

    async with Pool(events=ear.events) as pool:
        ticket = await pool.with_options(run_in="loop").submit(deep, 100)
        await ticket
    (event,) = ear.of(ticket)
    assert event.stack.splitlines()[-1].strip() == "ear.heard.get()"
    assert "deep(levels - 1)" in event.stack
    frames = event.stack.count("File ") + sum(
        int(line.split()[3]) for line in event.stack.splitlines() if "Previous line" in line
    )
    assert frames <= 30


@on_every_loop
def test_code_that_holds_the_gil_is_reported_as_soon_as_it_releases_it(
    new_loop: NewLoop,
) -> None:
    ear = Ear()

    async def greedy() -> None:
        # No other thread runs during the sum, the watchdog included.
        while ear.heard.empty():
            sum(range(20_000_000))

    async def main() -> None:
        async with Pool(events=ear.events) as pool:
            ticket = await pool.submit(greedy)
            await ticket
        (event,) = ear.of(ticket)
        assert event.stack.splitlines()[-1].strip() == "sum(range(20_000_000))"

    run(new_loop, main)


def test_two_loops_in_two_threads_are_watched_separately() -> None:
    together = threading.Barrier(2)
    ears = {name: Ear() for name in ("left", "right")}

    def blocking(ear: Ear) -> None:
        together.wait()
        ear.heard.get()

    def program(name: str) -> None:
        async def main() -> None:
            async with Pool(name, events=ears[name].events) as pool:
                await pool.with_options(run_in="loop").run(blocking, ears[name])

        asyncio.run(main())

    threads = [threading.Thread(target=program, args=(name,)) for name in ears]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, ear in ears.items():
        (event,) = ear.at(blocking)
        assert event.pool == name
        assert event.job is not None
        assert event.job.pool == name


# The rules of a look, driven by the test


class ByHand(Runtime):
    """A runtime whose clock and thread CPU time the test moves; only the test looks."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.used = 5.0

    def monotonic(self) -> float:
        return self.time

    def watch(self, call: Callable[[], None]) -> bool:
        return True

    def cpu_of_thread(self, thread: threading.Thread) -> float | None:
        return self.used

    def look(self, pool: Pool, seconds: float) -> None:
        """Advance time, and look."""
        self.time += seconds
        watchdog_of(pool).look(self.time)


async def test_a_block_is_reported_after_a_tenth_of_a_second() -> None:
    ear, runtime = Ear(), ByHand()
    async with Pool(events=ear.events, runtime=runtime) as pool:
        runtime.look(pool, 0.06)
        assert ear.told == []
        runtime.look(pool, 0.06)
        assert [one.seconds for one in ear.told] == [pytest.approx(0.12)]
        for _ in range(100):
            runtime.look(pool, 0.05)
        assert len(ear.told) == 1


async def test_a_loop_that_recovered_is_reported_again() -> None:
    ear, runtime = Ear(), ByHand()
    async with Pool(events=ear.events, runtime=runtime) as pool:
        for incident in range(3):
            for _ in range(3):
                runtime.look(pool, 0.05)
            assert len(ear.told) == incident + 1
            await until(lambda: watchdog_of(pool).silence(runtime.time) == 0)
            runtime.look(pool, 0.05)
            await until(lambda: watchdog_of(pool).silence(runtime.time) == 0)


async def test_successive_blocking_jobs_are_each_reported() -> None:
    ear, runtime = Ear(), ByHand()

    def blocking() -> None:
        for _ in range(5):
            runtime.look(pool, 0.06)

    async with Pool(max_concurrent=3, events=ear.events, runtime=runtime) as pool:
        onloop = pool.with_options(run_in="loop")
        tickets = [onloop.submit_nowait(blocking) for _ in range(3)]
        await wait(tickets)
    assert [len(ear.of(ticket)) for ticket in tickets] == [1, 1, 1]


async def test_only_one_of_many_short_calls_in_one_loop_iteration_is_reported() -> None:
    ear, runtime = Ear(), ByHand()

    def short() -> None:
        runtime.look(pool, 0.03)
        runtime.look(pool, 0.03)

    async with Pool(max_concurrent=20, events=ear.events, runtime=runtime) as pool:
        onloop = pool.with_options(run_in="loop")
        await wait([onloop.submit_nowait(short) for _ in range(20)])
    assert len(ear.at(short)) == 1


async def test_a_busy_loop_that_turns_is_not_blocked() -> None:
    ear, runtime = Ear(), ByHand()
    async with Pool(max_concurrent=5, events=ear.events, runtime=runtime) as pool:
        for _ in range(5):
            # The loop runs, and makes a short call in each iteration.
            await until(lambda: watchdog_of(pool).silence(runtime.time) == 0)
            runtime.look(pool, 0.09)
            await wait([await pool.submit(asyncio.sleep, 0) for _ in range(100)])
    assert ear.told == []


async def test_a_watchdog_that_was_delayed_itself_reports_nothing() -> None:
    ear, runtime = Ear(), ByHand()
    async with Pool(events=ear.events, runtime=runtime) as pool:
        for _ in range(10):
            runtime.used += 0.09
            runtime.look(pool, 5)
        assert ear.told == []
        runtime.look(pool, 0.05)
        assert [one.seconds for one in ear.told] == [pytest.approx(50.05)]


async def test_a_watchdog_delayed_while_its_loop_used_cpu_reports_a_block() -> None:
    ear, runtime = Ear(), ByHand()
    async with Pool(events=ear.events, runtime=runtime) as pool:
        runtime.used += 4.9
        runtime.look(pool, 5)
        assert [one.seconds for one in ear.told] == [5]


async def test_without_subscribers_no_block_is_reported_later() -> None:
    ear, runtime = Ear(), ByHand()
    async with Pool(events=ear.events, runtime=runtime) as pool:
        ear.events.live = False
        for _ in range(5):
            runtime.look(pool, 0.05)
        assert ear.told == []
        ear.events.live = True
        runtime.look(pool, 0.05)
        assert [one.seconds for one in ear.told] == [pytest.approx(0.3)]


@on_every_loop
def test_a_loop_that_is_not_running_is_not_blocked(new_loop: NewLoop) -> None:
    ear, runtime = Ear(), ByHand()
    pool = Pool(events=ear.events, runtime=runtime)

    async def go_on() -> None:
        runtime.look(pool, 0.05)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(pool.start())
        for _ in range(3):
            for _ in range(5):
                runtime.look(pool, 0.05)
            runner.run(go_on())
        runner.run(pool.drain())
    assert ear.told == []


@on_every_loop
def test_a_loop_that_waits_quietly_is_not_blocked(new_loop: NewLoop) -> None:
    ear, runtime = Ear(), ByHand()
    pool = Pool(events=ear.events, runtime=runtime)
    loop_thread = threading.get_ident()
    moment = threading.Event()

    def stands() -> str:
        frame = sys._current_frames()[loop_thread]
        return "".join(traceback.format_stack(frame))

    def examine() -> None:
        same = 0
        while same < 20:
            before = stands()
            moment.wait(0.001)
            same = same + 1 if stands() == before else 0
        for _ in range(5):
            runtime.look(pool, 0.05)

    async def main() -> None:
        async with pool:
            ticker = watchdog_of(pool)._ticker
            assert ticker is not None
            # Without the ticker nothing wakes the loop.
            ticker.stop()
            await asyncio.to_thread(examine)
            assert watchdog_of(pool).silence(runtime.time) == pytest.approx(0.25)

    run(new_loop, main)
    assert ear.told == []


# Its thread


@on_every_loop
def test_a_watchdog_ends_with_the_last_pool_of_its_loop(new_loop: NewLoop) -> None:
    ear = Ear()

    async def blocking() -> None:
        ear.heard.get()

    async def main() -> None:
        before = watching()
        first = await Pool(events=ear.events).start()
        (thread,) = watching() - before
        second = await Pool(events=ear.events).start()
        assert watching() - before == {thread}
        assert watchdog_of(first) is watchdog_of(second)
        await first.drain()
        await second.run(blocking)
        await second.drain()
        thread.join()
        assert not thread.is_alive()
        async with Pool(events=ear.events) as third:
            (another,) = watching() - before
            await third.run(blocking)
        another.join()

    run(new_loop, main)


@pytest.mark.slow
@on_every_loop
@pytest.mark.parametrize("drained", [True, False])
def test_nothing_is_left_of_it_when_its_loop_is_closed(new_loop: NewLoop, drained: bool) -> None:
    loops: list[weakref.ref[AbstractEventLoop]] = []
    threads: set[threading.Thread] = set()

    async def main() -> None:
        before = watching()
        loops.append(weakref.ref(asyncio.get_running_loop()))
        pool = await Pool("left").start()
        threads.update(watching() - before)
        await pool.run(asyncio.sleep, 0)
        if drained:
            await pool.drain()

    run(new_loop, main)
    (thread,) = threads
    thread.join()
    # The name is free again, and the old registration is gone with it.
    assert Pool("left").health().workers == {}
    gc.collect()
    assert [loop() for loop in loops] == [None]


class NoThreads(Runtime):
    """A runtime that cannot start a thread."""

    def watch(self, call: Callable[[], None]) -> bool:
        raise RuntimeError("can't start new thread")


async def test_a_pool_does_its_work_where_no_thread_can_watch_it() -> None:
    async with Pool(runtime=NoThreads()) as pool:
        assert await pool.run(asyncio.sleep, 0, result="done") == "done"
        assert pool.health().stale_workers == ()


async def test_pools_with_other_clocks_are_watched_by_their_own() -> None:
    ear, runtime = Ear(), ByHand()
    async with Pool(), Pool(events=ear.events, runtime=runtime) as pool:
        runtime.look(pool, 0.06)
        runtime.look(pool, 0.06)
        assert [one.seconds for one in ear.told] == [pytest.approx(0.12)]


async def test_a_subscriber_that_blocks_is_not_reported_as_the_job_of_its_event() -> None:
    events = Events()
    told = threading.Event()
    found: list[LoopBlocked] = []

    def hear(event: Event) -> None:
        if isinstance(event, LoopBlocked):
            found.append(event)
            told.set()
        elif isinstance(event, JobEnded):
            told.wait(30)

    events.subscribe(hear)
    async with Pool(events=events) as pool:
        await pool.run(asyncio.sleep, 0)
    assert [event.job for event in found] == [None]


@pytest.mark.slow
async def test_pools_with_different_runtimes_report_a_block_once_and_by_the_right_name() -> None:
    found: list[LoopBlocked] = []
    told = threading.Event()
    events = Events()

    def hear(event: Event) -> None:
        if isinstance(event, LoopBlocked):
            found.append(event)
            told.set()

    two, three = Counting(), Counting()

    async def block() -> None:
        told.wait(30)
        # The other watchdogs find the same block and must not report it.
        two.look_on(5)
        three.look_on(5)

    events.subscribe(hear)
    async with (
        Pool("one", events=events) as one,
        Pool("two", runtime=two, events=events),
        Pool("three", runtime=three, events=events),
    ):
        await one.run(block)
    assert [(event.pool, event.job is not None) for event in found] == [("one", True)]
