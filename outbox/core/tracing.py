"""Spans of OpenTelemetry, where the environment asks for them; elsewhere each call does nothing.

`OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) turns it on, and needs the extra
`otel`. The SDK reads the other `OTEL_*` variables itself: sampler, resource, service name, batches. W3C's
`traceparent` carries a trace from process to process; rows and messages keep it.
"""

from __future__ import annotations

import contextvars
import enum
import importlib
import os
import random
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

Value = str | bool | int | float
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Kind(enum.StrEnum):
    """OpenTelemetry's kinds of spans."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class Span:
    """One piece of work, from `with` to its end. This class is the span that is not recorded."""

    #: W3C's, for rows and messages; empty where tracing is off.
    traceparent = ""
    #: Whether anybody will see it: attributes that cost something are for recorded spans only.
    recorded = False

    def set(self, name: str, value: Value) -> None:
        """Add an attribute, by its name in the semantic conventions."""

    def rename(self, name: str) -> None:
        """Change the name, which is a kind of work and has no id in it."""

    def fail(self, reason: str) -> None:
        """Mark the work as failed. An exception that leaves the block does so, too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class _Recorder:
    """OpenTelemetry's SDK in this process: one tracer, one exporter with its thread."""

    def __init__(self) -> None:
        try:
            sdk = importlib.import_module("opentelemetry.sdk.trace")
            export = importlib.import_module("opentelemetry.sdk.trace.export")
            otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            self.api = importlib.import_module("opentelemetry.trace")
            self.context = importlib.import_module("opentelemetry.context")
        except ImportError as error:
            raise RuntimeError(f"{ENDPOINTS[0]} is set: install orderpost[otel] ({error}).") from error
        sampling = importlib.import_module("opentelemetry.sdk.trace.sampling")
        # Whether a new trace is sampled is drawn here: each span that the SDK leaves out costs more
        # than the drawing.
        self.share = _share()
        sampler = sampling.ParentBased(sampling.ALWAYS_ON) if self.share < 1 else None
        self.provider = sdk.TracerProvider(sampler=sampler)
        # The SDK's default and what the docs set: who is below an unsampled span is not sampled either.
        self.parent_decides = isinstance(self.provider.sampler, sampling.ParentBased)
        self.provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        self.tracer = self.provider.get_tracer("orderpost")

    def span_context(self, traceparent: str) -> Any:
        """Read a well-formed `traceparent` as the context of a span of another process."""
        _, trace_id, span_id, flags = traceparent.split("-")
        return self.api.SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=self.api.TraceFlags(int(flags, 16)),
        )


#: The innermost span of this thread; None outside any.
_current: contextvars.ContextVar[Span | None] = contextvars.ContextVar("orderpost_span", default=None)


class _Unsampled(Span):
    """A span that the sampler left out, and all below it."""

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def __enter__(self) -> Self:
        self._outer = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._outer)


class _Recorded(Span):
    """A span of the SDK, made the current one of its thread for the time of the block."""

    recorded = True

    def __init__(self, recorder: _Recorder, span: Any, traceparent: str) -> None:
        self._recorder, self._span, self._token = recorder, span, None
        self.traceparent = traceparent

    def set(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, reason: str) -> None:
        self._span.set_status(self._recorder.api.StatusCode.ERROR, reason)

    def __enter__(self) -> Self:
        context = self._recorder.api.set_span_in_context(self._span)
        self._token = self._recorder.context.attach(context)
        self._outer = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.fail(type(error).__name__)
        _current.reset(self._outer)
        self._recorder.context.detach(self._token)
        self._span.end()


_OFF = Span()
_ODD = frozenset("13579bdf")  # the last hex digit of flags whose lowest bit is set
_recorder: _Recorder | None = None
_asked = False  # whether this process has looked at its environment


def span(
    name: str,
    *,
    kind: Kind = Kind.INTERNAL,
    parent: str = "",
    links: Iterable[str] = (),
    attributes: Mapping[str, Value] | None = None,
) -> Span:
    """Begin a span, for `with`. Where tracing is off, return one that does nothing.

    `parent` is a `traceparent`; without one the parent is the thread's current span. `links` are the
    `traceparent`s of other work that led here. Malformed ones are not looked for: rows hold only good ones.
    """
    if not _asked:
        start()
    if (recorder := _recorder) is None:
        return _OFF
    if recorder.parent_decides:
        above = _current.get()
        if parent and not is_sampled(parent):
            return _Unsampled(parent)
        if not parent and isinstance(above, _Unsampled):
            return _Unsampled(above.traceparent)
        if not parent and above is None and random.random() >= recorder.share:  # noqa: S311
            return _Unsampled(f"00-{random.getrandbits(128):032x}-{random.getrandbits(64):016x}-00")
    api = recorder.api
    context = None
    if parent:
        context = api.set_span_in_context(api.NonRecordingSpan(recorder.span_context(parent)))
    begun = recorder.tracer.start_span(
        name,
        context,
        api.SpanKind[kind],
        dict(attributes or {}),
        [api.Link(recorder.span_context(link)) for link in links if link],
    )
    found = begun.get_span_context()
    traceparent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return _Recorded(recorder, begun, traceparent) if begun.is_recording() else _Unsampled(traceparent)


def _share() -> float:
    """Return the share of new traces that is sampled, where the sampler is a ratio below the parent's."""
    if os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() != "parentbased_traceidratio":
        return 1.0
    try:
        return float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))
    except ValueError:
        return 1.0  # as the SDK does


def is_sampled(traceparent: str) -> bool:
    """Return whether whoever began the trace wants it recorded.

    >>> is_sampled("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), is_sampled("")
    (True, False)
    """
    return traceparent[-1:] in _ODD


def start() -> None:
    """Start to record if the environment asks for that. Raise `RuntimeError` without the extra.

    Called by the first span of a process; call it before to fail at the start.
    """
    global _recorder, _asked
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if any(os.environ.get(name) for name in ENDPOINTS) and not disabled:
        _recorder = _Recorder()
    _asked = True


def _forget() -> None:
    global _recorder, _asked
    _recorder, _asked = None, False


os.register_at_fork(after_in_child=_forget)  # the exporter's thread does not survive a fork
