"""OpenTelemetry's spans, and the `traceparent` that stores a W3C trace in rows and messages.

`OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) turns spans on, and needs the SDK,
which requirements/image.txt has. The SDK reads the other `OTEL_*` variables, such as sampler and service
name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType

from django.core.exceptions import ImproperlyConfigured
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACER = trace.get_tracer("orderpost")
_W3C = TraceContextTextMapPropagator()
_ODD = frozenset("13579bdf")  # the last hex digit of flags whose lowest bit is set

_recording = False
_parent_decides = False  # the sampler records nothing below an unsampled span


def start() -> None:
    """Record the spans of this process if the environment asks for it.

    Raise `ImproperlyConfigured` without the SDK.
    """
    global _recording, _parent_decides
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased
    except ImportError as error:
        raise ImproperlyConfigured(
            f"{ENDPOINTS[0]} is set: install requirements/image.txt, which has OpenTelemetry's SDK ({error})."
        ) from error
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _recording, _parent_decides = True, isinstance(provider.sampler, ParentBased)


class _Current:
    """Make a span the current one within a block, and end it.

    A failed span has only the exception's class, because messages of exceptions may contain addresses.
    """

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        detach(self._token)
        if isinstance(error, Exception):
            self._span.set_status(StatusCode.ERROR, type(error).__name__)
        self._span.end()


def span(
    name: str, *, kind: SpanKind = SpanKind.INTERNAL, parent: str = "", links: Iterable[str] = ()
) -> AbstractContextManager[Span]:
    """Make a span the thread's current one within a block. If tracing is off, it is `INVALID_SPAN`.

    `parent` is a `traceparent`. Without one, the parent is the thread's current span. `links` are the
    `traceparent`s of other work that caused this. If the SDK's answer is known, it is not called:
    docs/adr/0032.
    """
    if not _recording:
        return INVALID_SPAN
    context = context_of(parent)
    above = trace.get_current_span(context)
    found = above.get_span_context()
    if _parent_decides and found.is_valid and not found.trace_flags.sampled:
        return _Current(above) if parent else above
    linked = [Link(trace.get_current_span(context_of(link)).get_span_context()) for link in links if link]
    return _Current(_TRACER.start_span(name, context, kind, links=linked))


def context_of(traceparent: str) -> Context | None:
    """Return the context below another process's span. For an empty string, return None (the current one)."""
    return _W3C.extract({"traceparent": traceparent}) if traceparent else None


def traceparent_of(span: Span) -> str:
    """Return a span's `traceparent` for rows and messages, or an empty string outside a trace."""
    found = span.get_span_context()
    if not found.is_valid:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def is_sampled(traceparent: str) -> bool:
    """Return whether the process that began the trace wants it recorded.

    >>> is_sampled("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), is_sampled("")
    (True, False)
    """
    return traceparent[-1:] in _ODD
