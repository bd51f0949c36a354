"""Traces of whole pools: one trace shows the request, the wait, the run and its inner spans."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from poolhand import Pool, Retry, RetryLater, Snooze, bounded, fail_fast, wait
from poolhand.errors import Draining, JobTimedOut, NoFreeSlot, PoolFull
from poolhand.observe.events import Events
from poolhand.observe.logs import trace_events
from poolhand.testing import SeededRuntime
from tests.unit.observe.test_tracing import Breaking, Traced, held, is_child, links_of, of
from tests.unit.pool.support import occupied, park, seeded, until


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def pool_of(traced: Traced, runtime: SeededRuntime, **options: Any) -> Pool:
    return Pool("mail", runtime=runtime, events=traced.events, **options)


# Spans inside a job


@seeded
@pytest.mark.parametrize("run_in", ["async", "sync", "thread"])
async def test_the_run_span_is_current_inside_a_job_and_the_parent_of_its_spans(
    runtime: SeededRuntime, run_in: str
) -> None:
    traced = Traced()
    tracer = traced.provider.get_tracer("llm")

    def call() -> trace.SpanContext:
        with tracer.start_as_current_span("chat"):
            pass
        return trace.get_current_span().get_span_context()

    async def call_async() -> trace.SpanContext:
        await asyncio.sleep(1)
        return call()

    ways: dict[str, tuple[Callable[[], Any], str | None]] = {
        "async": (call_async, None),
        "sync": (call, "loop"),
        "thread": (call, "thread"),
    }
    fn, where = ways[run_in]
    async with pool_of(traced, runtime) as pool:
        with traced.request() as request:
            current = await pool.with_options(run_in=where).run(fn)
            assert trace.get_current_span() is request
    run = traced.one("pool.run mail")
    assert current == run.get_span_context()
    assert is_child(traced.one("chat"), run)
    assert of(run)["status"] == "completed"


def where_am_i() -> tuple[int, int]:
    here = trace.get_current_span().get_span_context()
    return here.trace_id, here.span_id


@pytest.mark.slow
async def test_a_trace_continues_in_the_child_process_of_a_job() -> None:
    traced = Traced()
    async with Pool("mail", events=traced.events, run_in="process") as pool:
        with traced.request():
            first, second = await pool.run(where_am_i), await pool.run(where_am_i)
    for run, found in zip(traced.all("pool.run"), (first, second), strict=True):
        context = run.get_span_context()
        assert context is not None
        assert found == (context.trace_id, context.span_id)


@seeded
async def test_concurrent_jobs_each_see_their_own_run_span(runtime: SeededRuntime) -> None:
    traced = Traced()

    async def look() -> tuple[int, int]:
        before = trace.get_current_span().get_span_context().span_id
        await asyncio.sleep(1)
        return before, trace.get_current_span().get_span_context().span_id

    async with pool_of(traced, runtime, max_concurrent=5) as pool:
        with traced.request():
            seen = await asyncio.gather(*(pool.run(look) for _ in range(20)))
    assert all(before == after for before, after in seen)
    assert len({before for before, _ in seen}) == 20


@seeded
async def test_a_job_submitted_by_a_job_is_traced_under_its_run(runtime: SeededRuntime) -> None:
    traced = Traced()

    async def inner() -> None: ...

    async with pool_of(traced, runtime, max_concurrent=2) as pool:
        with traced.request() as request:
            await pool.run(lambda: pool.run(inner))
    inside, outside = traced.all("pool.run")
    assert of(inside)["task_name"].endswith("inner")
    submits = {of(span)["task_id"]: span for span in traced.all("pool.submit")}
    assert is_child(submits[of(inside)["task_id"]], outside)
    assert is_child(submits[of(outside)["task_id"]], request)


# From the request to the run


@seeded
async def test_one_trace_shows_the_request_the_wait_and_the_run(runtime: SeededRuntime) -> None:
    traced = Traced()

    async def send() -> None:
        await asyncio.sleep(2)

    async with pool_of(traced, runtime, max_concurrent=2) as pool, occupied(pool):
        async with occupied(pool):
            with traced.request() as request:
                view = pool.with_options(priority=3, key="acme", session="s1", tenant="t1")
                ticket = await view.submit(send)
            await asyncio.sleep(5)
        await wait(ticket)
    submit, dequeue, run = (
        next(span for span in traced.all(name) if of(span)["task_id"] == ticket.id)
        for name in ("pool.submit mail", "pool.dequeue mail", "pool.run mail")
    )
    assert is_child(submit, request)
    assert is_child(dequeue, request)
    assert is_child(run, dequeue)
    assert links_of(dequeue) == [submit.get_span_context()]
    assert of(submit)["status"] == "queued"
    assert of(submit)["blocked"] is False
    assert of(submit)["priority"] == 3
    assert of(submit)["key"] == "acme"
    assert of(dequeue)["queued_for_ms"] == pytest.approx(5_000, abs=1)
    assert of(dequeue)["slot_index"] == 1
    assert {of(span)["pool_id"] for span in (submit, dequeue, run)} == {pool.id}
    assert of(run)["gen_ai.conversation.id"] == "s1"
    assert of(run)["tenant"] == "t1"
    assert seconds(submit) == 0
    assert seconds(run) == pytest.approx(2, abs=0.001)
    assert run.start_time == dequeue.end_time
    job = ticket.snapshot()
    assert job.started_at is not None
    assert run.start_time == pytest.approx(job.started_at.timestamp() * 1e9, abs=1_000)


@seeded
async def test_a_submitter_that_had_to_wait_for_a_place_shows_as_blocked(
    runtime: SeededRuntime,
) -> None:
    traced = Traced()

    async def send() -> None: ...

    async with pool_of(traced, runtime, backpressure=bounded(1)) as pool:
        async with occupied(pool):
            first = await pool.submit(send)
            with traced.request() as request:
                parked = await park(pool, pool, send)
            assert len(traced.all("pool.submit")) == 2
            await asyncio.sleep(3)
        second = await parked
        await wait([first, second])
    submits = {of(span)["task_id"]: span for span in traced.all("pool.submit")}
    assert of(submits[first.id])["blocked"] is False
    assert of(submits[second.id])["blocked"] is True
    assert is_child(submits[second.id], request)
    assert seconds(submits[second.id]) == pytest.approx(3, abs=0.001)


@seeded
@pytest.mark.parametrize(
    ("policy", "room", "error"),
    [(bounded(1, on_full="fail_submitter"), 1, PoolFull), (fail_fast(), 0, NoFreeSlot)],
)
async def test_a_refused_submit_is_an_error_in_the_trace_of_its_caller(
    runtime: SeededRuntime, policy: Any, room: int, error: type[PoolFull]
) -> None:
    traced = Traced()

    async def send() -> None: ...

    async with pool_of(traced, runtime, backpressure=policy) as pool, occupied(pool):
        for _ in range(room):
            await pool.submit(send)
        with traced.request() as request, pytest.raises(error):
            await pool.submit(send)
    (refused,) = [span for span in traced.all("pool.submit") if not span.status.is_ok]
    assert is_child(refused, request)
    assert of(refused)["status"] == "refused"
    assert of(refused)["code"] == error.code
    assert "task_id" not in of(refused)


@seeded
async def test_a_submit_to_a_pool_that_drains_is_refused_in_the_trace(
    runtime: SeededRuntime,
) -> None:
    traced = Traced()

    async def send() -> None: ...

    async with pool_of(traced, runtime) as pool, occupied(pool):
        draining = asyncio.create_task(pool.drain(60))
        await asyncio.sleep(1)
        with pytest.raises(Draining):
            await pool.submit(send)
    await draining
    (refused,) = [span for span in traced.all("pool.submit") if not span.status.is_ok]
    assert of(refused)["code"] == Draining.code
    assert of(refused)["pool_id"] == pool.id


@seeded
async def test_submits_that_share_a_key_make_one_submit_span_and_one_run(
    runtime: SeededRuntime,
) -> None:
    traced = Traced()

    async def send() -> None: ...

    async with pool_of(traced, runtime) as pool:
        view = pool.with_options(idempotency_key="once")
        await asyncio.gather(*(view.run(send) for _ in range(10)))
    assert of(traced.one("pool.submit"))["idempotency_key"] == "once"
    assert len(traced.all()) == 3


@seeded
async def test_a_submit_span_shows_whether_its_job_is_scheduled_or_rejected(
    runtime: SeededRuntime,
) -> None:
    traced = Traced()

    async def send() -> None: ...

    policy = bounded(1, on_full="drop_newest")
    async with pool_of(traced, runtime, backpressure=policy) as pool:
        async with occupied(pool):
            later = await pool.with_options(delay=30).submit(send)
            dropped = await pool.submit(send)
            await wait(dropped)
        await wait(later)
    submits = {of(span)["task_id"]: of(span)["status"] for span in traced.all("pool.submit")}
    assert submits[later.id] == "scheduled"
    assert submits[dropped.id] == "rejected"
    assert dropped.id not in {of(span)["task_id"] for span in traced.all("pool.dequeue")}


# Outcomes


@seeded
async def test_each_attempt_of_a_retried_job_is_traced_under_the_request(
    runtime: SeededRuntime,
) -> None:
    traced = Traced()
    raised = [LookupError("not yet"), LookupError("nor now")]
    seen = []

    async def send() -> None:
        seen.append(trace.get_current_span().get_span_context())
        await asyncio.sleep(1)
        if raised:
            raise raised.pop(0)

    async with pool_of(traced, runtime, retry=Retry(first=10, jitter=0)) as pool:
        with traced.request() as request:
            await pool.run(send)
    submit = traced.one("pool.submit").get_span_context()
    dequeues, runs = traced.all("pool.dequeue"), traced.all("pool.run")
    assert [of(run)["attempt"] for run in runs] == [1, 2, 3]
    assert [run.get_span_context() for run in runs] == seen
    assert [run.status.description for run in runs] == [
        "LookupError: not yet",
        "LookupError: nor now",
        None,
    ]
    assert [seconds(run) for run in runs] == pytest.approx([1, 1, 1], abs=0.001)
    assert all(is_child(dequeue, request) for dequeue in dequeues)
    assert [links_of(dequeue) for dequeue in dequeues] == [[submit]] * 3
    assert of(dequeues[1])["queued_for_ms"] == pytest.approx(10_000, abs=1)


@seeded
@pytest.mark.parametrize("again", [RetryLater(0), Snooze(0)])
async def test_immediate_retries_keep_their_own_spans(
    runtime: SeededRuntime, again: Exception
) -> None:
    traced = Traced()
    seen = []

    async def send() -> None:
        seen.append(trace.get_current_span().get_span_context())
        if len(seen) < 3:
            raise again

    async with pool_of(traced, runtime) as pool:
        await pool.run(send)
    runs = traced.all("pool.run")
    assert [run.get_span_context() for run in runs] == seen
    assert [of(run)["status"] for run in runs] == ["scheduled", "scheduled", "completed"]
    failed = isinstance(again, RetryLater)
    assert [run.status.is_ok for run in runs] == [not failed, not failed, True]


@seeded
async def test_a_job_that_is_out_of_time_is_an_error_and_its_stuck_code_adds_nothing(
    runtime: SeededRuntime,
) -> None:
    traced = Traced()

    async def stubborn() -> None:
        for _ in range(5):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                continue

    async with pool_of(traced, runtime, timeout=1, drain_timeout=100) as pool:
        with pytest.raises(JobTimedOut):
            await pool.run(stubborn)
        run = traced.one("pool.run")
        assert run.status.status_code is StatusCode.ERROR
        assert of(run)["error.type"] == "poolhand.errors.JobTimedOut"
        assert seconds(run) == pytest.approx(1, abs=0.1)
        await until(lambda: pool.snapshot().stuck == 1)
        await asyncio.sleep(60)
    assert len(traced.all("pool.run")) == 1


@seeded
async def test_cancelled_jobs_are_not_errors_and_have_a_run_span_only_if_they_ran(
    runtime: SeededRuntime,
) -> None:
    traced = Traced()

    async def send() -> None:
        await asyncio.sleep(60)

    async with pool_of(traced, runtime) as pool:
        running, waiting = await pool.submit(send), await pool.submit(send)
        await asyncio.sleep(1)
        assert await waiting.cancel()
        assert await running.cancel()
    run = traced.one("pool.run")
    assert of(run)["task_id"] == running.id
    assert of(run)["status"] == "cancelled"
    assert all(span.status.is_ok for span in traced.all())


@seeded
async def test_a_drained_pool_leaves_no_span_open_and_nothing_held(runtime: SeededRuntime) -> None:
    traced = Traced()

    async def send(number: int) -> None:
        await asyncio.sleep(number % 7)
        if number % 3 == 0:
            raise LookupError(number)
        if number % 5 == 0:
            raise asyncio.CancelledError

    policy = bounded(10, on_full="drop_oldest")
    pool = pool_of(traced, runtime, max_concurrent=3, backpressure=policy, retry=Retry(first=1))
    async with pool:
        for number in range(60):
            view = pool.with_options(expires=3 if number % 4 == 0 else None)
            await view.submit(send, number)
            await asyncio.sleep(0.3)
        await pool.drain(5)
    assert held(traced.tracer) == 0
    assert len(traced.all("pool.submit")) == 60
    runs, dequeues = traced.all("pool.run"), traced.all("pool.dequeue")
    assert len(runs) == len(dequeues) > 20
    assert "running" not in {of(run)["status"] for run in runs}
    assert {of(run)["status"] for run in runs} >= {"completed", "cancelled", "scheduled"}


# With and without tracing


@seeded
async def test_without_a_trace_there_is_no_subscriber_and_no_span(runtime: SeededRuntime) -> None:
    traced, events = Traced(), Events()

    async def look() -> trace.Span:
        return trace.get_current_span()

    async with Pool(runtime=runtime, events=events) as pool:
        assert not events.live
        assert await pool.run(look) is trace.INVALID_SPAN
        with traced.request() as request:
            assert await pool.run(look) is request
    assert traced.all() == []


@seeded
async def test_a_trace_can_end_and_begin_while_jobs_run(runtime: SeededRuntime) -> None:
    traced = Traced()

    async def send() -> None:
        await asyncio.sleep(2)

    async with pool_of(traced, runtime) as pool:
        tickets = [await pool.submit(send) for _ in range(3)]
        await asyncio.sleep(1)
        traced.end()
        assert not traced.events.live
        assert of(traced.one("pool.run"))["status"] == "running"
        assert len(traced.all()) == 5
        await asyncio.sleep(2)
        trace_events(traced.provider, events=traced.events)
        await wait(tickets)
    before, after = traced.all()[:5], traced.all()[5:]
    assert "completed" not in {of(span)["status"] for span in before if "status" in of(span)}
    assert [span.name for span in after] == ["pool.dequeue mail", "pool.run mail"]
    assert {of(span)["task_id"] for span in after} == {tickets[2].id}
    assert held(traced.tracer) == 0


@seeded
@pytest.mark.parametrize("broken", ["pool.submit", "pool.dequeue", "pool.run"])
async def test_a_trace_that_breaks_does_not_break_the_pool(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    traced = Traced(Breaking(on_start=broken))

    async def send() -> str:
        return "sent"

    with caplog.at_level(logging.CRITICAL, "poolhand"):
        async with pool_of(traced, runtime) as pool:
            assert [await pool.run(send) for _ in range(5)] == ["sent"] * 5
            assert pool.stats().completed == 5
    assert held(traced.tracer) == 0
