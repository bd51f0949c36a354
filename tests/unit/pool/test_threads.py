"""Plain functions run in threads: their values, their errors, and that they cannot be killed."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from poolhand import Pool, Retry, UsageError, current_job, stop_requested, wait
from poolhand.errors import Deadlock, JobCancelled, JobFailed, JobTimedOut
from poolhand.observe.events import Events, SlotFreed, SlotStuck
from poolhand.runtime import Runtime
from poolhand.testing import SeededRuntime
from poolhand.views import Event, Status
from tests.unit.pool.support import seeded

COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")


class Gate:
    """A job that blocks its thread until the test releases it."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.open = threading.Event()
        self.asked_to_stop = False

    def __call__(self) -> str:
        self.began.set()
        self.open.wait(10)
        self.asked_to_stop = stop_requested()
        return "through"


class Ears:
    """Records events and lets a test wait for one."""

    def __init__(self) -> None:
        self.events = Events()
        self.heard: list[Event] = []
        self._news = asyncio.Event()
        self.events.subscribe(self._note)

    def _note(self, event: Event) -> None:
        self.heard.append(event)
        self._news.set()

    async def next(self, kind: type[Event]) -> Any:
        while True:
            for event in self.heard:
                if type(event) is kind:
                    return event
            self._news.clear()
            await self._news.wait()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """A gate that is opened at the end, so that no thread outlives its test."""
    one = Gate()
    yield one
    one.open.set()


async def begun(gate: Gate) -> None:
    """Wait until the gate's thread runs, without blocking the loop."""
    await asyncio.to_thread(gate.began.wait, 30)


async def test_a_plain_function_runs_in_a_thread_and_an_async_one_does_not() -> None:
    async def on_loop() -> int:
        return threading.get_ident()

    async with Pool() as pool:
        assert await pool.run(threading.get_ident) != threading.get_ident()
        assert await pool.run(on_loop) == threading.get_ident()
        inline = pool.with_options(run_in="loop")
        assert await inline.run(threading.get_ident) == threading.get_ident()


async def test_an_async_function_cannot_be_sent_to_a_thread() -> None:
    async with Pool() as pool:
        with pytest.raises(UsageError, match="thread"):
            await pool.with_options(run_in="thread").submit(asyncio.sleep, 0)
        assert pool.snapshot().total == 0


async def test_a_thread_sees_a_copy_of_the_context_of_its_submitter() -> None:
    def job() -> tuple[str, str | None]:
        seen = COLOUR.get()
        COLOUR.set("spoiled")
        record = current_job()
        return seen, None if record is None else record.id

    async with Pool() as pool:
        COLOUR.set("blue")
        ticket = await pool.submit(job)
        assert await ticket == ("blue", ticket.id)
        assert COLOUR.get() == "blue"
        assert await pool.run(COLOUR.get) == "blue"


async def test_a_coroutine_that_a_thread_returns_is_awaited_on_the_loop() -> None:
    async def on_loop(number: int) -> tuple[int, int]:
        return number, threading.get_ident()

    async with Pool() as pool:
        value: Any = await pool.run(lambda: on_loop(3))
        assert value == (3, threading.get_ident())


async def test_threads_run_concurrently_up_to_the_cap() -> None:
    meeting = threading.Barrier(4, timeout=30)
    async with Pool(max_concurrent=4) as pool:
        jobs = await wait([await pool.submit(meeting.wait) for _ in range(8)])
        assert {job.status for job in jobs} == {Status.COMPLETED}


async def test_a_thread_blocks_only_its_own_slot(gate: Gate) -> None:
    async with Pool(max_concurrent=2) as pool:
        blocked = await pool.submit(gate)
        for number in range(20):
            assert await pool.run(str, number) == str(number)
        gate.open.set()
        assert await blocked == "through"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LookupError, LookupError),
        (SystemExit, JobFailed),
        (KeyboardInterrupt, JobFailed),
        (StopIteration, JobFailed),
        (GeneratorExit, JobFailed),
        (asyncio.CancelledError, JobCancelled),
    ],
)
async def test_an_exception_in_a_thread_reaches_the_caller(
    error: type[BaseException], expected: type[Exception]
) -> None:
    def job() -> None:
        raise error

    async with Pool() as pool:
        with pytest.raises(expected):
            await pool.run(job)
        assert await pool.run(lambda: "alive") == "alive"


# Threads that do not stop


async def test_a_thread_that_times_out_leaves_its_slot_stuck_until_it_ends(gate: Gate) -> None:
    ears = Ears()
    async with Pool(timeout=0.02, events=ears.events) as pool:
        ticket = await pool.submit(gate)
        behind = await pool.with_options(timeout=None).submit(lambda: "behind")
        with pytest.raises(JobTimedOut):
            await ticket
        stuck = await ears.next(SlotStuck)
        assert (stuck.job.id, stuck.slot) == (ticket.id, "worker-000")
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.queued, seen.failed) == (0, 1, 1, 1)
        gate.open.set()
        assert await behind == "behind"
        assert pool.snapshot().stuck == 0
        assert ticket.snapshot().marks == ("hard_timeout",)
        assert ticket.snapshot().result is None
        assert (await ears.next(SlotFreed)).slot == "worker-000"
    assert gate.asked_to_stop


async def test_a_cancelled_thread_is_abandoned_after_the_grace_period(gate: Gate) -> None:
    async with Pool(cancel_grace=0.02) as pool:
        ticket = await pool.submit(gate)
        await begun(gate)
        assert await ticket.cancel()
        with pytest.raises(JobCancelled):
            await ticket
        seen = pool.snapshot()
        assert (seen.stuck, seen.active, seen.cancelled) == (1, 0, 1)
        gate.open.set()
        assert await pool.run(lambda: "next") == "next"
        assert (pool.snapshot().stuck, pool.snapshot().cancelled) == (0, 1)


async def test_a_thread_can_ask_whether_it_shall_stop() -> None:
    began = threading.Event()
    pause = threading.Event()

    def polite() -> str:
        began.set()
        while not stop_requested():
            pause.wait(0.001)
        return "stopped by itself"

    async with Pool(soft_timeout=0.02) as pool:
        ticket = await pool.submit(polite)
        assert await ticket == "stopped by itself"
        assert ticket.status is Status.COMPLETED
        assert ticket.snapshot().marks == ("soft_timeout",)
        assert pool.snapshot().stuck == 0
    assert began.is_set()


def test_stop_requested_is_false_outside_of_a_job() -> None:
    assert not stop_requested()
    assert current_job() is None


async def test_a_thread_that_never_started_is_cancelled_without_running() -> None:
    ran: list[str] = []
    async with Pool() as pool:
        first = await pool.submit(asyncio.Event().wait)
        second = await pool.submit(lambda: ran.append("ran"))
        assert await second.cancel()
        assert await first.cancel()
    assert ran == []


async def test_a_drain_does_not_wait_for_a_thread_that_does_not_stop(gate: Gate) -> None:
    pool = await Pool(max_concurrent=2).start()
    ticket = await pool.submit(gate)
    await begun(gate)
    report = await pool.drain(0.02)
    assert (report.stuck, report.cancelled) == (1, 1)
    assert report.seconds <= 1.02
    assert ticket.status is Status.CANCELLED
    gate.open.set()


async def test_a_retry_does_not_wait_for_a_stuck_thread(gate: Gate) -> None:
    calls: list[int] = []

    def job() -> str:
        calls.append(1)
        return gate() if len(calls) == 1 else "second"

    retry = Retry(attempts=2, first=0)
    async with Pool(max_concurrent=2, timeout=0.02, retry=retry) as pool:
        ticket = await pool.submit(job)
        assert await ticket == "second"
        assert pool.snapshot().stuck == 1
        gate.open.set()
        assert await pool.with_options(timeout=None).run(lambda: "next") == "next"


def test_a_thread_that_outlives_its_loop_causes_no_error() -> None:
    gate = Gate()
    ended = threading.Event()

    def job() -> None:
        gate()
        ended.set()

    async def main() -> None:
        pool = await Pool(cancel_grace=0).start()
        await pool.submit(job)
        await begun(gate)
        await pool.drain(0)

    asyncio.run(main())
    gate.open.set()
    assert ended.wait(30)
    gc.collect()


async def test_a_thread_that_waits_for_its_own_pool_gets_deadlock() -> None:
    loop = asyncio.get_running_loop()

    async with Pool() as pool:

        async def inner() -> str:
            return await pool.run(lambda: "inner")

        def outer() -> str:
            return asyncio.run_coroutine_threadsafe(inner(), loop).result(30)

        with pytest.raises(Deadlock):
            await pool.run(outer)


# Under every schedule


@seeded
async def test_threads_and_coroutines_share_one_cap(runtime: SeededRuntime) -> None:
    def plain(number: int) -> int:
        return number

    async def later(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        tickets = [await pool.submit(plain if n % 2 else later, n) for n in range(50)]
        assert [await ticket for ticket in tickets] == list(range(50))
        assert pool.stats().completed == 50


@seeded
async def test_a_thread_job_cancelled_before_its_thread_starts_does_not_run(
    runtime: SeededRuntime,
) -> None:
    ran: list[str] = []
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(lambda: ran.append("ran"))
        assert await ticket.cancel()
        assert await pool.run(lambda: "next") == "next"
        assert pool.snapshot().stuck == 0
    assert ran == []


class NoThreads(Runtime):
    """A runtime that cannot start a thread for a while."""

    refuse = True

    def in_thread(self, call: Callable[[], None], name: str) -> None:
        if self.refuse:
            raise RuntimeError("can't start new thread")
        super().in_thread(call, name)


async def test_a_thread_that_cannot_start_fails_its_job_and_frees_its_slot() -> None:
    runtime = NoThreads()
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(len, "abc")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await ticket
        runtime.refuse = False
        assert await pool.run(len, "abc") == 3
        assert pool.snapshot().active == 0


async def test_a_thread_has_the_name_of_its_slot() -> None:
    def name() -> str:
        return threading.current_thread().name

    async with Pool("named") as one, Pool("other") as two:
        assert await one.run(name) == "named-worker-000"
        assert await two.run(name) == "other-worker-000"
