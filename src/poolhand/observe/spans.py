"""Spans: jobs as OpenTelemetry spans, in the trace of their submitter.

A job creates one `pool.submit` span. Each attempt creates a `pool.dequeue` span linked to it, and
below that a `pool.run` span, which is the parent of the spans of the job's own code.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from contextvars import Context
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from time import time_ns
from typing import NamedTuple, ParamSpec, TypeVar

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from poolhand.observe.events import Event, JobEnded, JobRetried, LeaseLost
from poolhand.rules.job import Job, Status

POOL = "pool"
POOL_ID = "pool_id"
TASK_ID = "task_id"
TASK_NAME = "task_name"
STATUS = "status"
CODE = "code"
PRIORITY = "priority"
KEY = "key"
IDEMPOTENCY_KEY = "idempotency_key"
BLOCKED = "blocked"
QUEUED_FOR_MS = "queued_for_ms"
SLOT_INDEX = "slot_index"
ATTEMPT = "attempt"
SESSION = "session"
TENANT = "tenant"

# The semantic conventions of OpenTelemetry.
MESSAGING_SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION_NAME = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"

_KINDS = {
    "submit": (SpanKind.PRODUCER, "send"),
    "dequeue": (SpanKind.CONSUMER, "receive"),
    "run": (SpanKind.INTERNAL, "process"),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_W3C = TraceContextTextMapPropagator()

_Value = str | int | float | None
_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def _guarded(method: Callable[_Asked, _Answer]) -> Callable[_Asked, _Answer | None]:
    """Log errors of the tracing code: they must not break the traced work."""

    @wraps(method)
    def guarded(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer | None:
        try:
            return method(*args, **kwargs)
        except (Exception, CancelledError):
            name = method.__name__
            logging.getLogger("poolhand").exception("tracing failed on %s", name)
            return None

    return guarded


@_guarded
def enter_trace(carrier: dict[str, str]) -> object:
    """Continue a trace that began in another process."""
    return otel.attach(_W3C.extract(carrier))


class _Run(NamedTuple):
    """An attempt not known to be over; `at` is when it began, in nanoseconds."""

    span: Span
    attempt: int
    at: int


class _Life:
    """The tracing state of a job until it is over.

    `parent` holds the parent span of its attempts, `runs` the open attempts, oldest first.
    """

    __slots__ = ("parent", "runs", "submit")

    def __init__(self, parent: otel.Context, submit: SpanContext | None) -> None:
        self.parent = parent
        self.submit = submit
        self.runs: list[_Run] = []


class Spans:
    """Creates and ends the spans of all jobs of one event bus."""

    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._tracer = trace.get_tracer("poolhand", tracer_provider=provider)
        # By job id. The calls for one job come from one thread, so plain dict operations suffice.
        self._lives: dict[str, _Life] = {}

    @_guarded
    def submitted(self, job: Job, context: Context, at: datetime, blocked: bool) -> None:
        parent = context.run(otel.get_current)
        known = {
            PRIORITY: job.priority,
            KEY: job.key or None,
            IDEMPOTENCY_KEY: job.idempotency_key,
            STATUS: job.status.value,
            BLOCKED: blocked,
        }
        begin = _nanoseconds(job.submitted_at)
        span = self._start("submit", parent, begin, _about("submit", job, known))
        span.end(max(begin, _nanoseconds(at)))
        submit = span.get_span_context()
        if not trace.get_current_span(parent).get_span_context().is_valid:
            # A job submitted outside of any span makes one trace, not one for each part.
            parent = trace.set_span_in_context(NonRecordingSpan(submit), parent)
        self._lives[job.id] = _Life(parent, submit)

    @_guarded
    def refused(self, pool: str, pool_id: str, code: str) -> None:
        known = {STATUS: "refused", CODE: code, ERROR_TYPE: code}
        span = self._start("submit", None, None, _of_pool("submit", pool, pool_id, known))
        span.set_status(StatusCode.ERROR, code)
        span.end()

    @_guarded
    def started(self, job: Job, slot_index: int, context: Context) -> None:
        life = self._lives.get(job.id)
        if life is None:
            # Submitted before tracing began; the attempt runs in its submitter's context.
            life = self._lives[job.id] = _Life(context.run(otel.get_current), None)
        # Added before its span exists: ends are matched by count, even if creating a span fails.
        run = _Run(
            trace.INVALID_SPAN, job.attempts, _nanoseconds(job.started_at or job.submitted_at)
        )
        life.runs.append(run)
        span = self._run(job, slot_index, life, run.at)
        life.runs[-1] = run._replace(span=span)
        context.run(otel.attach, trace.set_span_in_context(span, life.parent))

    @_guarded
    def trace_context(self, context: Context) -> Callable[[], object] | None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, context.run(otel.get_current))
        return partial(enter_trace, carrier) if carrier else None

    def hear(self, event: Event) -> None:
        """End the run span of an attempt that is over."""
        if isinstance(event, JobEnded):
            life = self._lives.pop(event.job.id, None)
        elif isinstance(event, JobRetried | LeaseLost):
            life = self._lives.get(event.job.id)
        else:
            return
        # The oldest: an attempt may start before the end of the previous one is reported.
        if life is not None and life.runs:
            _end(life.runs.pop(0), event.job)
            if life.submit is None and not life.runs:
                # A stored job may continue in any process; its next attempt brings its own context.
                self._lives.pop(event.job.id, None)

    def close(self) -> None:
        """End the spans of the attempts that still run."""
        lives, self._lives = self._lives, {}
        now = time_ns()
        for life in list(lives.values()):
            for run in life.runs:
                _guarded(run.span.end)(max(now, run.at))

    def _run(self, job: Job, slot_index: int, life: _Life, at: int) -> Span:
        known: dict[str, _Value] = {
            QUEUED_FOR_MS: _milliseconds(job.waited),
            SLOT_INDEX: slot_index,
        }
        link = None if life.submit is None else Link(life.submit)
        dequeue = self._start("dequeue", life.parent, at, _about("dequeue", job, known), link)
        dequeue.end(at)
        known = {
            TASK_NAME: job.name or None,
            STATUS: job.status.value,
            ATTEMPT: job.attempts,
            SESSION: job.session,
            TENANT: job.tenant,
            CONVERSATION_ID: job.session,
        }
        below = trace.set_span_in_context(dequeue, life.parent)
        return self._start("run", below, at, _about("run", job, known))

    def _start(
        self,
        operation: str,
        parent: otel.Context | None,
        at: int | None,
        attributes: dict[str, str | int | float],
        link: Link | None = None,
    ) -> Span:
        return self._tracer.start_span(
            f"pool.{operation} {attributes[POOL]}",
            context=parent,
            kind=_KINDS[operation][0],
            attributes=attributes,
            links=() if link is None else (link,),
            start_time=at,
        )


def _end(run: _Run, job: Job) -> None:
    # A job that continues may have moved on already; from running it went to scheduled.
    status = Status.SCHEDULED if job.finished_at is None else job.status
    run.span.set_attribute(STATUS, status.value)
    # A cancelled or snoozed attempt did not fail, but an earlier one may have left its error in the
    # record. A snoozed attempt is not counted, so the attempt number shows the difference.
    if job.error is not None and job.status is not Status.CANCELLED and job.attempts == run.attempt:
        kind = _clean(job.error.type)
        run.span.set_attribute(ERROR_TYPE, kind)
        run.span.set_status(StatusCode.ERROR, f"{kind}: {_clean(job.error.message)}")
    if job.finished_at is None:
        run.span.end(run.at + round((job.ran or 0.0) * 1e9))
    else:
        run.span.end(max(run.at, _nanoseconds(job.finished_at)))


def _about(operation: str, job: Job, known: Mapping[str, _Value]) -> dict[str, str | int | float]:
    """Return the attributes of a span of a job."""
    known = {TASK_ID: job.id, MESSAGE_ID: job.id, **known}
    return _of_pool(operation, job.pool, job.pool_id, known)


def _of_pool(
    operation: str, pool: str, pool_id: str, known: Mapping[str, _Value]
) -> dict[str, str | int | float]:
    attributes: dict[str, _Value] = {
        POOL: pool,
        POOL_ID: pool_id,
        MESSAGING_SYSTEM: "poolhand",
        OPERATION_NAME: operation,
        OPERATION_TYPE: _KINDS[operation][1],
        DESTINATION_NAME: pool,
        **known,
    }
    return {
        name: _clean(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


def _clean(text: str) -> str:
    """Replace invalid characters: one of them makes an exporter lose a whole batch of spans."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1_000, 3)


def _nanoseconds(at: datetime) -> int:
    # Integer arithmetic: a float of today's nanoseconds is off by hundreds of them.
    return (at - _EPOCH) // timedelta(microseconds=1) * 1_000
