"""OpenTelemetry's spans, and the `traceparent` that stores a W3C trace in rows and messages.

`OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) turns spans on, and needs the SDK,
which requirements/image.txt has. The SDK reads the other `OTEL_*` variables, such as sampler and service
name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from django.core.exceptions import ImproperlyConfigured
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACER = trace.get_tracer("orderpost")
_W3C = TraceContextTextMapPropagator()
_is_on = False


def start() -> None:
    """Record the spans of this process if the environment asks for it.

    Raise `ImproperlyConfigured` if the SDK is not installed.
    """
    global _is_on
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ImproperlyConfigured(
            f"{ENDPOINTS[0]} is set: install requirements/image.txt, which has OpenTelemetry's SDK ({error})."
        ) from error
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _is_on = True


def span(
    name: str, *, kind: SpanKind = SpanKind.INTERNAL, parent: str = "", links: Iterable[str] = ()
) -> AbstractContextManager[Span]:
    """Make a span the thread's current one within a block.

    `parent` is a `traceparent`; if it is empty, the parent is the thread's current span. `links` are the
    `traceparent`s of other work that caused this. A failed span has only the exception's class: its message
    may contain an address. While tracing is off, nothing asks OpenTelemetry, whose spans without an effect
    are 3 % of a request's CPU.
    """
    return _span(name, kind, parent, links) if _is_on else INVALID_SPAN


def begin(name: str, *, kind: SpanKind = SpanKind.INTERNAL, links: Iterable[str] = ()) -> Span:
    """Begin a span below the thread's current one. It is recorded once the caller calls its `end`."""
    return _TRACER.start_span(name, kind=kind, links=_links(links)) if _is_on else INVALID_SPAN


def _links(links: Iterable[str]) -> list[Link]:
    return [Link(trace.get_current_span(context_of(link)).get_span_context()) for link in links if link]


@contextlib.contextmanager
def _span(name: str, kind: SpanKind, parent: str, links: Iterable[str]) -> Iterator[Span]:
    with _TRACER.start_as_current_span(
        name,
        context_of(parent),
        kind,
        links=_links(links),
        record_exception=False,
        set_status_on_exception=False,
    ) as made:
        try:
            yield made
        except Exception as error:
            made.set_status(StatusCode.ERROR, type(error).__name__)
            raise


def context_of(traceparent: str) -> Context | None:
    """Return the context below another process's span. For an empty string, return None (the current one)."""
    return _W3C.extract({"traceparent": traceparent}) if traceparent else None


def traceparent_of(span: Span) -> str:
    """Return a span's `traceparent` for rows and messages, or an empty string outside a trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
