"""Subscribers: every event as one readable log line, every job as OpenTelemetry spans."""

from __future__ import annotations

import logging
from collections.abc import Callable
from json import dumps
from typing import TYPE_CHECKING, Any

import msgspec

from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.observe import events as kinds
from poolhand.observe.events import EVENTS, Event, Events, JobEnded, JobRetried, JobSetAside
from poolhand.observe.failures import LOG, report, traceback_lines
from poolhand.rules.job import Job, Status
from poolhand.rules.validation import FLAG, OptionRule, instance_of

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

# Events that report a problem.
LOUD = (
    *(kinds.CallbackFailed, kinds.DeadlockFound, kinds.DrainSlow, kinds.ExecutorSmall),
    *(kinds.FarmTrouble, kinds.JobSetAside, kinds.LeaseLost, kinds.LoopBlocked, kinds.OwnerReaped),
    *(kinds.PoisonSuspected, kinds.QueueHigh, kinds.SessionFreed, kinds.SlotStuck),
    *(kinds.StoreTrouble, kinds.SubmitRefused, kinds.WorkerBound, kinds.WorkerVanished),
)

_LOGGER = OptionRule(
    lambda value: isinstance(value, logging.Logger | logging.LoggerAdapter), "a logging.Logger"
).or_none()


@explain_misuse
def log_events(
    logger: logging.Logger | None = None, *, json: bool = False, events: Events | None = None
) -> Callable[[], None]:
    """Write every event to a logger ("poolhand" by default); return a function that ends this.

    Lines are for people; the traceback of a failed job follows its line, indented. `json=True`
    writes one JSON object per line. Text from jobs is escaped, so that it cannot start a line of
    its own or control a terminal. On "poolhand" these lines replace the default lines about
    failures.
    """
    _LOGGER.require("log_events: logger", logger)
    FLAG.require("log_events: json", json)
    instance_of(Events, "Events()").or_none().require("log_events: events", events)
    target = logger or LOG
    form = _as_json if json else _as_lines

    def write(event: Event) -> None:
        level = _level(event)
        if target.isEnabledFor(level):
            target.log(level, "%s", form(event))

    heard = EVENTS if events is None else events
    unsubscribe = heard.subscribe(write)
    unreport = report(heard, (Event,)) if _is_ours(target) else None

    def end() -> None:
        unsubscribe()
        if unreport is not None:
            unreport()

    return end


def _is_ours(target: logging.Logger | logging.LoggerAdapter[Any]) -> bool:
    """Return whether this logger writes to where failures are logged by default."""
    logger = target.logger if isinstance(target, logging.LoggerAdapter) else target
    return logger is LOG or logger is LOG.root


def is_loud(event: Event) -> bool:
    """Return whether an event reports a problem."""
    return isinstance(event, LOUD) and not (isinstance(event, JobSetAside) and event.served)


def _level(event: Event) -> int:
    if is_loud(event):
        return logging.WARNING
    if isinstance(event, JobRetried) and event.job.error is not None:
        return logging.WARNING
    if isinstance(event, JobEnded) and event.job.status is Status.FAILED:
        return logging.ERROR
    return logging.DEBUG if isinstance(event, kinds.StatsTaken) else logging.INFO


def _as_lines(event: Event) -> str:
    line = as_text(event)
    if isinstance(event, JobEnded) and event.job.status is Status.FAILED:
        line += traceback_lines(event.job)
    return line


def as_text(event: Event) -> str:
    """Return an event as one line for people."""
    fields = " ".join(
        f"{name}={_word(value)}"
        for name in event.__struct_fields__
        for name, value in _flat(name, getattr(event, name))
        if value not in (None, "", ())
    )
    return f"{_title(event)} {fields}"


def _as_json(event: Event) -> str:
    record: dict[str, Any] = {"event": _title(event).replace(" ", "_")}
    for name in event.__struct_fields__:
        record.update(_flat(name, getattr(event, name)))
    if isinstance(event, JobEnded) and event.job.error is not None:
        record["traceback"] = event.job.error.traceback
    # Everything but plain ASCII is escaped: other characters can affect terminals and readers.
    return dumps(msgspec.to_builtins(record)).replace("\x7f", "\\u007f")


def _title(event: Event) -> str:
    name = type(event).__name__
    return "".join(f" {one.lower()}" if one.isupper() else one for one in name).strip()


def _flat(name: str, value: object) -> list[tuple[str, Any]]:
    """Represent a job by a few identifying fields; arguments and results are not logged."""
    if not isinstance(value, Job):
        return [(name, value)]
    error = value.error
    return [
        ("job", value.id),
        ("name", value.name),
        ("status", value.status.value),
        ("key", value.key),
        ("session", value.session),
        ("tenant", value.tenant),
        ("attempt", value.attempts or None),
        ("ran", None if value.ran is None else round(value.ran, 6)),
        ("reason", value.rejection_reason),
        ("error", None if error is None else f"{error.type}: {error.message}"),
    ]


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    plain = text.isascii() and text.isprintable() and " " not in text and '"' not in text
    return text if plain else ascii(text)


@explain_misuse
def trace_events(
    tracer_provider: TracerProvider | None = None, *, events: Events | None = None
) -> Callable[[], None]:
    """Trace every job of every pool; return a function that ends tracing and all open spans.

    Without a provider, the provider of the process is used.
    """
    try:
        # Imported here, so that programs without tracing do not pay for it.
        from poolhand.observe.spans import Spans
    except ModuleNotFoundError as error:
        raise UsageError(
            f'trace_events needs OpenTelemetry ({error}): pip install "poolhand[otel]"'
        ) from error
    provider = OptionRule(lambda value: hasattr(value, "get_tracer"), "a TracerProvider").or_none()
    provider.require("trace_events: tracer_provider", tracer_provider)
    instance_of(Events, "Events()").or_none().require("trace_events: events", events)
    bus = events or EVENTS
    spans = Spans(tracer_provider)
    # Subscribe first: the end of a job that begins in between must be seen.
    unsubscribe = bus.subscribe(spans.hear)
    try:
        untrace = bus.trace(spans)
    except BaseException:
        unsubscribe()
        raise

    def end() -> None:
        untrace()
        unsubscribe()
        spans.close()

    return end
