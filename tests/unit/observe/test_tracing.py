"""Traces: attributes and parents of the spans of a job; a failing tracer affects no job."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry import baggage, trace
from opentelemetry import context as otel
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from poolhand import UsageError
from poolhand.observe.events import Events, JobEnded, JobRetried, JobStarted, LeaseLost, Tracer
from poolhand.observe.logs import trace_events
from poolhand.observe.spans import enter_trace
from poolhand.views import Fault, Job, Status

AT = datetime(2030, 1, 1, 12, 0, 0, 123_457, tzinfo=UTC)
AT_NS = 1_893_499_200_123_457_000
SECOND = timedelta(seconds=1)


class Traced:
    """Events under a trace whose spans can be read, oldest end first."""

    def __init__(self, *processors: SpanProcessor) -> None:
        self.events = Events()
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        for processor in (*processors, SimpleSpanProcessor(self.exporter)):
            self.provider.add_span_processor(processor)
        self.end = trace_events(self.provider, events=self.events)

    @property
    def tracer(self) -> Tracer:
        assert self.events.tracer is not None
        return self.events.tracer

    @contextmanager
    def request(self) -> Iterator[trace.Span]:
        """Enter a span of the user, as a web request does."""
        with self.provider.get_tracer("user").start_as_current_span("request") as span:
            yield span

    def all(self, name: str = "pool.") -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    def submit(self, job: Job, at: datetime = AT, blocked: bool = False) -> Job:
        self.tracer.submitted(job, copy_context(), at, blocked)
        return job

    def start(self, job: Job, context: Context | None = None, slot: int = 0) -> Job:
        """Begin the next attempt of a job, a second after its submit."""
        job = replace(
            job,
            status=Status.RUNNING,
            attempts=job.attempts + 1,
            started_at=job.submitted_at + SECOND,
            waited=1.0,
            run_at=None,
        )
        self.tracer.started(job, slot, copy_context() if context is None else context)
        return job

    def finish(self, job: Job, status: Status = Status.COMPLETED, **fields: Any) -> Job:
        """End a job three seconds after its submit."""
        fields = {"finished_at": job.submitted_at + 3 * SECOND, "ran": 2.0, **fields}
        job = replace(job, status=status, **fields)
        self.events.emit(JobEnded(job.pool, job))
        return job

    def retry(self, job: Job, **fields: Any) -> Job:
        """End an attempt half a second after its begin; another attempt follows."""
        job = replace(job, **{"status": Status.SCHEDULED, "run_at": AT, "ran": 0.5, **fields})
        self.events.emit(JobRetried(job.pool, job))
        return job


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.end()


def a_job(number: int = 1, **fields: Any) -> Job:
    known = {"pool": "mail", "pool_id": "pool-1", "status": Status.QUEUED, "submitted_at": AT}
    return Job(**{"id": f"job-{number}", "name": "send", **known, **fields})


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(span: ReadableSpan, parent: ReadableSpan | trace.Span) -> bool:
    above, own = parent.get_span_context(), span.get_span_context()
    assert above is not None
    assert own is not None
    same_trace = own.trace_id == above.trace_id
    return same_trace and span.parent is not None and span.parent.span_id == above.span_id


def links_of(span: ReadableSpan) -> list[trace.SpanContext]:
    return [link.context for link in span.links]


# Submitting


def test_a_submit_is_a_producer_span_under_its_submitter_from_call_to_place(traced: Traced) -> None:
    job = a_job(priority=7, key="acme", idempotency_key="once")
    with traced.request() as request:
        traced.submit(job, at=AT + SECOND, blocked=True)
    span = traced.one("pool.submit mail")
    assert span.kind is SpanKind.PRODUCER
    assert is_child(span, request)
    assert (span.start_time, span.end_time) == (AT_NS, AT_NS + 1_000_000_000)
    assert span.status.status_code is StatusCode.UNSET
    assert of(span) == {
        "pool": "mail",
        "pool_id": "pool-1",
        "task_id": "job-1",
        "priority": 7,
        "key": "acme",
        "idempotency_key": "once",
        "status": "queued",
        "blocked": True,
        "messaging.system": "poolhand",
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": "job-1",
    }


def test_attributes_without_a_value_are_left_out(traced: Traced) -> None:
    job = traced.start(traced.submit(a_job(name="")))
    traced.finish(job)
    missing = {"key", "idempotency_key", "session", "tenant", "task_name", "gen_ai.conversation.id"}
    assert all(not missing & of(span).keys() for span in traced.all())
    assert of(traced.one("pool.submit"))["priority"] == 0
    assert of(traced.one("pool.submit"))["blocked"] is False


def test_the_spans_of_a_job_submitted_outside_of_any_span_make_one_trace(traced: Traced) -> None:
    traced.finish(traced.start(traced.submit(a_job())))
    submit, dequeue = traced.one("pool.submit"), traced.one("pool.dequeue")
    assert submit.parent is None
    assert is_child(dequeue, submit)
    assert is_child(traced.one("pool.run"), dequeue)


def test_a_clock_that_was_set_back_makes_no_span_end_before_it_began(traced: Traced) -> None:
    job = traced.start(traced.submit(a_job(), at=AT - SECOND))
    traced.finish(job, finished_at=AT - SECOND)
    for span in traced.all():
        assert span.start_time is not None
        assert span.end_time == span.start_time


def test_a_refused_submit_is_an_error_with_its_code_under_its_caller(traced: Traced) -> None:
    with traced.request() as request:
        traced.tracer.refused("mail", "pool-1", "PH-POL-001")
    span = traced.one("pool.submit mail")
    assert span.kind is SpanKind.PRODUCER
    assert is_child(span, request)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "PH-POL-001"
    assert of(span) == {
        "pool": "mail",
        "pool_id": "pool-1",
        "status": "refused",
        "code": "PH-POL-001",
        "error.type": "PH-POL-001",
        "messaging.system": "poolhand",
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
    }


# Running


def test_a_dequeue_span_is_in_the_trace_of_its_request_and_linked_to_the_submit(
    traced: Traced,
) -> None:
    with traced.request() as request:
        job = traced.submit(a_job())
    traced.start(job, slot=3)
    span = traced.one("pool.dequeue mail")
    assert span.kind is SpanKind.CONSUMER
    assert is_child(span, request)
    assert links_of(span) == [traced.one("pool.submit").get_span_context()]
    assert span.start_time == span.end_time == AT_NS + 1_000_000_000
    assert of(span) == {
        "pool": "mail",
        "pool_id": "pool-1",
        "task_id": "job-1",
        "queued_for_ms": 1000.0,
        "slot_index": 3,
        "messaging.system": "poolhand",
        "messaging.operation.name": "dequeue",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "mail",
        "messaging.message.id": "job-1",
    }


def test_a_run_span_is_under_its_dequeue_and_has_the_status_of_the_job(traced: Traced) -> None:
    traced.finish(traced.start(traced.submit(a_job(session="chat-9", tenant="acme"))))
    span = traced.one("pool.run mail")
    assert span.kind is SpanKind.INTERNAL
    assert is_child(span, traced.one("pool.dequeue"))
    assert (span.start_time, span.end_time) == (AT_NS + 1_000_000_000, AT_NS + 3_000_000_000)
    assert span.status.status_code is StatusCode.UNSET
    assert of(span) == {
        "pool": "mail",
        "pool_id": "pool-1",
        "task_id": "job-1",
        "task_name": "send",
        "status": "completed",
        "attempt": 1,
        "session": "chat-9",
        "tenant": "acme",
        "gen_ai.conversation.id": "chat-9",
        "messaging.system": "poolhand",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": "job-1",
    }


def test_code_of_an_attempt_finds_its_run_span_current_and_the_submitters_baggage(
    traced: Traced,
) -> None:
    token = otel.attach(baggage.set_baggage("cart", "full"))
    job, inside = traced.submit(a_job()), copy_context()
    otel.detach(token)
    traced.start(job, inside)
    assert inside.run(baggage.get_baggage, "cart") == "full"
    current = inside.run(trace.get_current_span)
    traced.finish(job)
    assert current.get_span_context() == traced.one("pool.run").get_span_context()
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_job_that_was_submitted_before_the_tracing_began_is_traced_from_its_next_attempt(
    traced: Traced,
) -> None:
    with traced.request() as request:
        inside = copy_context()
    traced.finish(traced.start(a_job(), inside))
    assert [span.name for span in traced.all()] == ["pool.dequeue mail", "pool.run mail"]
    assert is_child(traced.one("pool.dequeue"), request)
    assert traced.one("pool.dequeue").links == ()


def test_a_failed_run_is_an_error_with_type_and_message_and_nothing_more(traced: Traced) -> None:
    fault = Fault("builtins.ValueError", "no such user", "File secret.py, line 1")
    traced.finish(traced.start(traced.submit(a_job())), Status.FAILED, error=fault)
    span = traced.one("pool.run")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "builtins.ValueError: no such user"
    assert of(span)["status"] == "failed"
    assert of(span)["error.type"] == "builtins.ValueError"
    assert span.events == ()
    assert all("secret.py" not in one.to_json() for one in traced.all())


def test_a_cancelled_run_is_no_error_even_if_an_attempt_before_it_failed(traced: Traced) -> None:
    job = traced.start(traced.submit(a_job()))
    job = traced.start(traced.retry(job, error=Fault("OSError", "no route")))
    traced.finish(job, Status.CANCELLED)
    failed, cancelled = traced.all("pool.run")
    assert failed.status.status_code is StatusCode.ERROR
    assert cancelled.status.status_code is StatusCode.UNSET
    assert of(cancelled)["status"] == "cancelled"
    assert "error.type" not in of(cancelled)


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED, Status.REJECTED])
def test_a_job_that_ends_without_having_run_leaves_only_its_submit_span(
    traced: Traced, status: Status
) -> None:
    traced.finish(traced.submit(a_job()), status, ran=None)
    assert [span.name for span in traced.all()] == ["pool.submit mail"]


def test_text_that_no_exporter_can_encode_is_made_encodable(traced: Traced) -> None:
    job = traced.submit(a_job(pool="\ud800", key="\udc80 key"))
    traced.finish(traced.start(job), Status.FAILED, error=Fault("Odd\ud800", "\udfff it"))
    for span in traced.all():
        span.to_json().encode()
        span.name.encode()
        "".join(str(value) for value in of(span).values()).encode()
    assert traced.one("pool.submit").name == "pool.submit ?"
    assert traced.one("pool.run").status.description == "Odd?: ? it"


# Several attempts


def test_each_attempt_has_its_own_spans_and_all_link_to_the_one_submit(traced: Traced) -> None:
    with traced.request() as request:
        job = traced.submit(a_job())
    for number in (1, 2):
        job = traced.retry(traced.start(job), error=Fault("OSError", f"try {number}"))
    traced.finish(traced.start(job), error=None)
    submit = traced.one("pool.submit").get_span_context()
    runs, dequeues = traced.all("pool.run"), traced.all("pool.dequeue")
    assert [of(run)["attempt"] for run in runs] == [1, 2, 3]
    assert [of(run)["status"] for run in runs] == ["scheduled", "scheduled", "completed"]
    assert [run.status.description for run in runs] == ["OSError: try 1", "OSError: try 2", None]
    assert [links_of(dequeue) for dequeue in dequeues] == [[submit]] * 3
    assert all(is_child(dequeue, request) for dequeue in dequeues)
    assert all(is_child(run, dequeue) for run, dequeue in zip(runs, dequeues, strict=True))


def test_an_attempt_that_is_followed_by_another_ends_when_it_has_run(traced: Traced) -> None:
    traced.retry(traced.start(traced.submit(a_job())), error=Fault("OSError", ""))
    span = traced.one("pool.run")
    assert (span.start_time, span.end_time) == (AT_NS + 1_000_000_000, AT_NS + 1_500_000_000)


@pytest.mark.parametrize("place", [Status.SCHEDULED, Status.QUEUED, Status.BLOCKED])
def test_a_retried_attempt_has_the_status_scheduled_in_every_waiting_state(
    traced: Traced, place: Status
) -> None:
    traced.retry(traced.start(traced.submit(a_job())), status=place)
    assert of(traced.one("pool.run"))["status"] == "scheduled"


def test_an_attempt_started_before_the_previous_end_event_keeps_its_own_span(
    traced: Traced,
) -> None:
    first = traced.start(traced.submit(a_job()))
    second = traced.start(first)
    traced.retry(first, error=Fault("OSError", "down"))
    traced.finish(second)
    runs = traced.all("pool.run")
    assert [of(run)["attempt"] for run in runs] == [1, 2]
    assert [of(run)["status"] for run in runs] == ["scheduled", "completed"]
    assert [run.status.is_ok for run in runs] == [False, True]


def test_an_attempt_that_snoozes_is_no_error_even_if_one_before_it_failed(traced: Traced) -> None:
    job = traced.start(traced.submit(a_job()))
    job = traced.start(traced.retry(job, error=Fault("OSError", "down")))
    traced.retry(job, attempts=job.attempts - 1)
    assert [run.status.is_ok for run in traced.all("pool.run")] == [False, True]


def test_an_attempt_that_fails_while_its_pool_stops_is_an_error_of_a_rejected_job(
    traced: Traced,
) -> None:
    job = traced.start(traced.submit(a_job()))
    traced.finish(job, Status.REJECTED, error=Fault("OSError", "down"))
    span = traced.one("pool.run")
    assert of(span)["status"] == "rejected"
    assert span.status.description == "OSError: down"


# Into other processes


def test_a_trace_continues_in_another_process(traced: Traced) -> None:
    job, inside, elsewhere = traced.submit(a_job()), copy_context(), Context()
    traced.start(job, inside)
    trace_context = traced.tracer.trace_context(inside)
    assert trace_context is not None
    enter = pickle.loads(pickle.dumps(trace_context))  # noqa: S301 - what we packed ourselves
    elsewhere.run(enter)
    found = elsewhere.run(trace.get_current_span).get_span_context()
    traced.finish(job)
    run = traced.one("pool.run").get_span_context()
    assert run is not None
    assert (found.trace_id, found.span_id) == (run.trace_id, run.span_id)
    assert found.trace_flags.sampled
    assert found.is_remote


def test_an_unreadable_trace_context_is_logged_and_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "poolhand"):
        enter_trace(None)  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == ["tracing failed on enter_trace"]


def test_without_a_span_there_is_no_trace_context(traced: Traced) -> None:
    assert traced.tracer.trace_context(Context()) is None


# Beginning and ending


def test_ending_the_tracing_ends_open_spans_and_starts_no_new_ones() -> None:
    traced = Traced()
    job = traced.start(traced.submit(a_job()))
    tracer = traced.tracer
    traced.end()
    assert traced.events.tracer is None
    assert not traced.events.live
    span = traced.one("pool.run")
    assert of(span)["status"] == "running"
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time >= span.start_time
    traced.finish(job)
    traced.end()
    assert len(traced.all()) == 3
    assert held(tracer) == 0


def test_events_are_traced_once_and_a_second_trace_leaves_nothing_behind(traced: Traced) -> None:
    with pytest.raises(UsageError, match="already traced"):
        trace_events(traced.provider, events=traced.events)
    traced.finish(traced.start(traced.submit(a_job())))
    assert len(traced.all()) == 3
    traced.end()
    assert not traced.events.live


def test_events_can_be_traced_again_after_the_end() -> None:
    traced = Traced()
    traced.end()
    end = trace_events(traced.provider, events=traced.events)
    traced.end()
    traced.submit(a_job())
    end()
    assert len(traced.all()) == 1


def test_without_a_provider_nothing_is_recorded_and_nothing_is_held() -> None:
    traced = Traced()
    traced.end()
    end = trace_events(events=traced.events)
    tracer, inside = traced.tracer, copy_context()
    job = traced.start(traced.submit(a_job()), inside)
    assert tracer.trace_context(inside) is None
    traced.finish(job)
    assert held(tracer) == 0
    assert traced.all() == []
    end()


def held(tracer: Tracer) -> int:
    return len(tracer._lives)  # type: ignore[attr-defined]


def test_no_spans_are_kept_of_finished_jobs_however_they_ended(traced: Traced) -> None:
    for number, status in enumerate((*Status,) * 20):
        job = traced.submit(a_job(number))
        if number % 2:
            job = traced.start(traced.retry(traced.start(job)))
        traced.events.emit(JobStarted(job.pool, job, "worker-000"))
        traced.finish(job, status)
    assert held(traced.tracer) == 0
    traced.finish(a_job(999))
    traced.retry(a_job(999))
    assert held(traced.tracer) == 0


def test_no_spans_are_kept_of_a_stored_job_that_may_continue_elsewhere(traced: Traced) -> None:
    job = traced.retry(traced.start(a_job()))
    assert held(traced.tracer) == 0
    traced.finish(traced.start(job))
    assert held(traced.tracer) == 0
    assert len(traced.all("pool.run")) == 2


def test_no_spans_are_kept_of_a_job_whose_lease_was_lost(traced: Traced) -> None:
    job = traced.start(a_job())
    traced.events.emit(LeaseLost(job.pool, job))
    assert held(traced.tracer) == 0
    assert len(traced.all("pool.run")) == 1


def test_pools_on_several_threads_share_a_trace(traced: Traced) -> None:
    def serve(pool: int) -> None:
        for number in range(50):
            job = traced.submit(a_job(1_000 * pool + number))
            traced.finish(traced.start(traced.retry(traced.start(job))))

    threads = [Thread(target=serve, args=(pool,)) for pool in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(traced.all("pool.submit")) == 200
    assert len(traced.all("pool.run")) == len(traced.all("pool.dequeue")) == 400
    assert held(traced.tracer) == 0


# A tracer that raises


class Breaking(SpanProcessor):
    """Raises on spans of certain names, when they start or when they end."""

    def __init__(self, *, on_start: str = "none", on_end: str = "none") -> None:
        self.start_of = on_start
        self.end_of = on_end

    def on_start(self, span: Any, parent_context: otel.Context | None = None) -> None:
        if span.name.startswith(self.start_of):
            raise RuntimeError("no room for spans")

    def on_end(self, span: ReadableSpan) -> None:
        if span.name.startswith(self.end_of):
            raise RuntimeError("no way out for spans")


@pytest.mark.parametrize("when", ["on_start", "on_end"])
@pytest.mark.parametrize("name", ["pool.submit", "pool.dequeue", "pool.run"])
def test_a_tracer_that_raises_is_logged_and_does_not_affect_jobs(
    caplog: pytest.LogCaptureFixture, when: str, name: str
) -> None:
    traced = Traced(Breaking(**{when: name}))
    tracer = traced.tracer
    with caplog.at_level(logging.ERROR, "poolhand"):
        job = traced.submit(a_job())
        traced.finish(traced.start(traced.retry(traced.start(job))))
        tracer.refused("mail", "pool-1", "PH-POL-001")
        traced.start(traced.submit(a_job(2)))
        traced.end()
    assert caplog.records
    assert {record.name for record in caplog.records} == {"poolhand"}
    assert all(record.exc_info for record in caplog.records)
    assert held(tracer) == 0


def test_an_attempt_without_a_span_does_not_end_that_of_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    breaking = Breaking(on_start="pool.run")
    traced = Traced(breaking)
    with caplog.at_level(logging.CRITICAL, "poolhand"):
        first = traced.start(traced.submit(a_job()))
        breaking.start_of = "none"
        second = traced.start(first)
        traced.retry(first, error=Fault("OSError", "down"))
        assert traced.all("pool.run") == []
        traced.finish(second, error=None)
    assert of(traced.one("pool.run"))["status"] == "completed"
    traced.end()


def test_a_context_that_is_in_use_is_logged_and_does_not_affect_jobs(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    entered = copy_context()
    calls: list[Callable[[], object]] = [
        lambda: traced.tracer.submitted(a_job(), entered, AT, False),
        lambda: traced.tracer.started(a_job(), 0, entered),
        lambda: traced.tracer.trace_context(entered),
    ]
    with caplog.at_level(logging.ERROR, "poolhand"):
        assert [entered.run(call) for call in calls] == [None, None, None]
    assert [record.message for record in caplog.records] == [
        "tracing failed on submitted",
        "tracing failed on started",
        "tracing failed on trace_context",
    ]
    assert held(traced.tracer) == 0
