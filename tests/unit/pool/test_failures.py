"""Whatever a job raises: its slot survives, its caller gets one answer, the counters are right."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from poolhand import GiveUp, Pool, Retry, RetryLater, Snooze, wait
from poolhand.errors import JobCancelled, JobFailed
from poolhand.observe.events import JobEnded
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Status
from tests.unit.pool.support import Heard, seeded


class Odd(BaseException):
    """An exception that is not an Exception."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class UnprintableExit(SystemExit):
    def __str__(self) -> str:
        raise ValueError("no text")


class Asking(Exception):
    """Has a `retry_after`, as errors of many clients do."""

    def __init__(self, retry_after: Any) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class BadlyAsking(Exception):
    @property
    def retry_after(self) -> float:
        raise KeyError("retry-after")


def make(kind: str, error: BaseException) -> tuple[Callable[[], Any], str | None]:
    """Return a job that raises, and where it runs."""

    async def on_the_loop() -> None:
        raise error

    async def after_a_while() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        raise error

    def plain() -> None:
        raise error

    return {
        "async": (on_the_loop, None),
        "later": (after_a_while, None),
        "thread": (plain, None),
        "sync": (plain, "loop"),
    }[kind]


def run_briefly(main: Callable[[SeededRuntime], Awaitable[None]]) -> None:
    """Run under several seeds; a caller without an answer is found after few steps."""
    for seed in range(5):
        run_seeded(main, seed, max_steps=5_000)


EVERYWHERE = pytest.mark.parametrize("kind", ["async", "later", "thread", "sync"])


@EVERYWHERE
@pytest.mark.parametrize(
    "error",
    [
        LookupError("x"),
        TimeoutError("x"),
        RuntimeError("x"),
        MemoryError("x"),
        RecursionError("x"),
        ExceptionGroup("x", [ValueError(1)]),
        BaseExceptionGroup("x", [KeyboardInterrupt()]),
        asyncio.InvalidStateError("x"),
        Odd("x"),
        Unprintable(),
        JobFailed("of another job"),
        JobCancelled("of another job"),
    ],
    ids=lambda error: type(error).__name__,
)
@seeded
async def test_the_caller_gets_the_exception_of_the_job(
    runtime: SeededRuntime, kind: str, error: BaseException
) -> None:
    heard = Heard()
    job, run_in = make(kind, error)
    async with Pool(runtime=runtime, events=heard.events) as pool:
        ticket = await pool.with_options(run_in=run_in).submit(job)
        for _ in range(2):
            with pytest.raises(type(error)) as raised:
                await ticket
            assert raised.value is error
        seen = pool.snapshot()
        assert (seen.failed, seen.completed, seen.cancelled, seen.active) == (1, 0, 0, 0)
        assert await pool.run(asyncio.sleep, 0, result="next") == "next"
    assert len(heard.of(JobEnded)) == 2


@EVERYWHERE
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration("x"),
        StopAsyncIteration("x"),
        GeneratorExit(),
        UnprintableExit(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_that_would_end_the_caller_is_raised_as_job_failed(
    kind: str, error: BaseException
) -> None:
    async def main(runtime: SeededRuntime) -> None:
        job, run_in = make(kind, error)
        async with Pool(runtime=runtime) as pool:
            began = runtime.monotonic()
            ticket = await pool.with_options(run_in=run_in).submit(job)
            with pytest.raises(JobFailed) as raised:
                await ticket
            assert raised.value.job_id == ticket.id
            assert raised.value.__cause__ is error
            assert runtime.monotonic() <= began + 1.1
            seen = pool.snapshot()
            assert (seen.failed, seen.cancelled, seen.active) == (1, 0, 0)
            assert await pool.run(asyncio.sleep, 0, result="next") == "next"

    run_briefly(main)


@EVERYWHERE
@seeded
async def test_a_cancelled_error_raised_without_a_cancel_request_cancels_the_job(
    runtime: SeededRuntime, kind: str
) -> None:
    job, run_in = make(kind, asyncio.CancelledError())
    async with Pool(runtime=runtime) as pool:
        with pytest.raises(JobCancelled):
            await pool.with_options(run_in=run_in).run(job)
        seen = pool.snapshot()
        assert (seen.cancelled, seen.failed, seen.active) == (1, 0, 0)
        assert await pool.run(asyncio.sleep, 0, result="next") == "next"


# Errors with impossible values still end the job or cause a retry; no caller hangs.


@pytest.mark.parametrize(
    "error",
    [
        BadlyAsking(),
        Asking(float("inf")),
        Asking(float("nan")),
        Asking(-1),
        Asking("soon"),
        Asking(1e18),
        RetryLater(float("inf")),
        RetryLater(1e18),
        RetryLater(-1),
        Snooze(float("inf")),
        Snooze(1e18),
    ],
    ids=lambda error: f"{type(error).__name__}-{error}"[:40],
)
def test_an_impossible_wait_neither_hangs_the_caller_nor_breaks_the_pool(error: Exception) -> None:
    async def main(runtime: SeededRuntime) -> None:
        async def job() -> None:
            raise error

        async with Pool(retry=Retry(attempts=2, first=1), runtime=runtime) as pool:
            ticket = await pool.submit(job)
            await wait(ticket, timeout=100)
            assert ticket.status in (Status.FAILED, Status.SCHEDULED)
            assert pool.stats().in_flight == 0
            assert await pool.run(asyncio.sleep, 0, result="next") == "next"
            await ticket.cancel()

    run_briefly(main)


def wrong_moment() -> Exception:
    return Snooze(datetime(2031, 1, 1))  # noqa: DTZ001 - the mistake under test


def wrong_snooze() -> Exception:
    return Snooze("tomorrow")  # type: ignore[arg-type]


def wrong_retry() -> Exception:
    return RetryLater("soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("make_wish", [wrong_moment, wrong_snooze, wrong_retry])
def test_an_invalid_directive_fails_the_job(make_wish: Callable[[], Exception]) -> None:
    async def main(runtime: SeededRuntime) -> None:
        async def job() -> None:
            raise make_wish()

        async with Pool(runtime=runtime) as pool:
            ticket = await pool.submit(job)
            assert (await wait(ticket, timeout=100)).status is Status.FAILED
            assert await pool.run(asyncio.sleep, 0, result="next") == "next"

    run_briefly(main)


@pytest.mark.parametrize(
    "retry",
    [
        Retry(attempts=80, first=1, factor=1e6, cap=1),
        Retry(attempts=2, first=1e18, cap=1e18),
    ],
    ids=["factor", "first"],
)
def test_a_huge_backoff_does_not_overflow(retry: Retry) -> None:
    async def main(runtime: SeededRuntime) -> None:
        async def job() -> None:
            raise LookupError

        async with Pool(retry=retry, runtime=runtime) as pool:
            ticket = await pool.submit(job)
            await wait(ticket, timeout=200)
            assert ticket.status in (Status.FAILED, Status.SCHEDULED)
            assert pool.stats().in_flight == 0
            await ticket.cancel()

    run_briefly(main)


# The record


@seeded
async def test_the_error_record_has_type_message_and_location(runtime: SeededRuntime) -> None:
    def deep() -> None:
        raise LookupError("no such thing")

    async def job() -> None:
        deep()

    async with Pool(runtime=runtime) as pool:
        fault = (await wait(await pool.submit(job))).error
        assert fault is not None
        assert (fault.type, fault.message) == ("LookupError", "no such thing")
        assert "in deep" in fault.traceback
        (own,) = [(await wait(await pool.submit(make("async", Odd())[0]))).error]
        assert own is not None
        assert own.type.endswith("test_failures.Odd")


@seeded
async def test_the_record_of_a_failure_is_bounded(runtime: SeededRuntime) -> None:
    def deep(level: int) -> None:
        if not level:
            raise LookupError("x" * 1_000_000)
        deep(level - 1)

    async def job() -> None:
        deep(500)

    async with Pool(runtime=runtime) as pool:
        fault = (await wait(await pool.submit(job))).error
        assert fault is not None
        assert len(fault.message) <= 2_000
        assert len(fault.traceback) <= 20_000


@seeded
async def test_an_error_without_a_text_still_has_a_record(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        fault = (await wait(await pool.submit(make("async", Unprintable())[0]))).error
        assert fault is not None
        assert fault.type.endswith("Unprintable")


@seeded
async def test_tracebacks_do_not_grow_with_each_caller(runtime: SeededRuntime) -> None:
    lengths: list[int] = []

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(make("async", LookupError("x"))[0])
        for _ in range(5):
            with pytest.raises(LookupError) as raised:
                await ticket
            lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(set(lengths)) == 1


@seeded
async def test_an_unread_failure_is_counted_and_raises_nothing(
    runtime: SeededRuntime,
) -> None:
    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        for kind in ("async", "later", "thread", "sync"):
            job, run_in = make(kind, LookupError("x"))
            await pool.with_options(run_in=run_in).submit(job)
        report = await pool.drain()
        assert (report.failed, report.submitted) == (4, 4)
    assert runtime.loop.failures == []


@seeded
async def test_failures_do_not_use_up_slots(runtime: SeededRuntime) -> None:
    errors = [LookupError(), SystemExit(), asyncio.CancelledError(), StopIteration(), Odd()]
    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        jobs = [make("async", errors[number % 5])[0] for number in range(100)]
        await wait([await pool.submit(job) for job in jobs])
        seen = pool.snapshot()
        assert (seen.failed, seen.cancelled, seen.active, seen.stuck) == (80, 20, 0, 0)
        assert await pool.run(asyncio.sleep, 0, result="alive") == "alive"


@seeded
async def test_giving_up_reaches_the_caller_with_its_reason(runtime: SeededRuntime) -> None:
    async def job() -> None:
        raise GiveUp("the repository is gone")

    async with Pool(runtime=runtime) as pool:
        with pytest.raises(GiveUp, match="the repository is gone"):
            await pool.run(job)


@seeded
async def test_every_kind_of_value_reaches_the_caller(runtime: SeededRuntime) -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise ValueError

        def __repr__(self) -> str:
            raise ValueError

        __hash__ = None  # type: ignore[assignment]

    values: list[object] = [
        None,
        LookupError("a value, not raised"),
        LookupError,
        Hostile(),
        [],
        asyncio.Event(),
    ]
    async with Pool(runtime=runtime) as pool:
        for value in values:

            async def job(value: object) -> object:
                return value

            def plain(value: object) -> object:
                return value

            assert await pool.run(job, value) is value
            assert await pool.run(plain, value) is value
        assert pool.stats().completed == 2 * len(values)
