"""Tracing: every job as OpenTelemetry spans, if OpenTelemetry is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.observe.events import EVENTS, Events
from poolhand.rules.validation import OptionRule, instance_of

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


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
