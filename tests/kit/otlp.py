"""A receiver of OTLP over HTTP that stores the spans of processes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.kit.http import serve
from tests.kit.waiting import until

KINDS = ["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """One span. Times are nanoseconds since the epoch."""

    name: str
    kind: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    start: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    error: str


class Receiver:
    """Listens within a `with` block. `url` is for OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self._served = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.url = self._served.enter_context(serve(self._answer, read=ExportTraceServiceRequest.FromString))
        return self

    def __exit__(self, *_: object) -> None:
        self._served.close()

    def _answer(self, path: str, headers: Any, body: Any) -> tuple[int, Any, dict[str, str]]:
        self._store(body)
        return 200, {}, {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment that makes a process send its spans here at once."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def _store(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            named = {
                attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
            }
            for scope in resource.scope_spans:
                self.spans += [_read(span, named.get("service.name", "")) for span in scope.spans]

    def until(self, condition: Callable[[list[Received]], bool]) -> list[Received]:
        """Wait until the spans fulfil the condition, and return them."""
        until(
            lambda: condition(list(self.spans)),
            "the spans are as wanted",
            details=lambda: str([(span.name, span.kind) for span in self.spans]),
        )
        return list(self.spans)


def _read(span: Any, service: str) -> Received:
    return Received(
        name=span.name,
        kind=KINDS[span.kind],
        service=service,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes={
            attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
            for attribute in span.attributes
        },
        events=tuple(event.name for event in span.events),
        error=span.status.message if span.status.code == 2 else "",
    )
