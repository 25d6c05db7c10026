"""The outermost middleware: give each request a correlation id and a log line.

Every answer has the id in `X-Correlation-ID`, including errors and admin pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import structlog
from django.http import HttpRequest, HttpResponseBase
from django.utils.functional import LazyObject, empty
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode

from runtime.telemetry import context, tracing
from web.proxies import client_address, mask_address, mask_path

log = structlog.get_logger("orderpost.access")

HEADER = "X-Correlation-ID"
#: The key in `request.META` of the name of the caller's token. No header can have this name.
CALLER = "orderpost.token"
#: Requests without a span: probes and scrapes come every few seconds.
UNTRACED = frozenset(["/healthz", "/readyz", "/metrics"])


class CorrelationMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Use the caller's id and trace if they are well formed, else a new id. Log the answer."""
        # Read META: building the mapping `headers` costs each request 20 µs.
        sent = context.accept_correlation_id(request.META.get("HTTP_X_CORRELATION_ID"))
        caller = context.accept_traceparent(request.META.get("HTTP_TRACEPARENT"))
        started = time.perf_counter()
        with _span(request, caller) as span:
            trace = tracing.traceparent_of(span) or caller
            work = context.Context(sent or context.new_correlation_id(), trace)
            with context.working_for(work):
                response = self.get_response(request)
                response.headers[HEADER] = work.correlation_id
                log.info(
                    "request",
                    method=request.method,
                    path=mask_path(request.path),  # without the query, which may contain an address
                    status=response.status_code,
                    duration_ms=round((time.perf_counter() - started) * 1000, 1),
                    **_who(request),
                )
                if span.is_recording():
                    _describe(span, request, response.status_code)
        return response


def _who(request: HttpRequest) -> dict[str, Any]:
    """Return who asked: the network of the client's address, and the token's name or the user's id.

    Reading the user takes statements, so leave it out unless something else has read it.
    """
    who: dict[str, Any] = {}
    if client := mask_address(client_address(request)):
        who["client"] = client
    if CALLER in request.META:
        who["token"] = request.META[CALLER]
    user = getattr(request, "user", None)
    is_unread = isinstance(user, LazyObject) and user._wrapped is empty
    if not is_unread and (id := getattr(user, "pk", None)):
        who["user"] = id
    return who


def _span(request: HttpRequest, caller: str) -> AbstractContextManager[Span]:
    """Start the request's span. Probes and scrapes have none."""
    if request.path in UNTRACED:
        return INVALID_SPAN
    return tracing.span(str(request.method), kind=SpanKind.SERVER, parent=caller)


def _describe(span: Span, request: HttpRequest, status: int) -> None:
    """Name the span by its route, as OpenTelemetry's HTTP conventions require."""
    route = f"/{request.resolver_match.route}" if request.resolver_match else ""
    span.update_name(f"{request.method} {route}".rstrip())
    span.set_attribute("http.request.method", str(request.method))
    span.set_attribute("http.route", route)
    span.set_attribute("url.path", mask_path(request.path))
    span.set_attribute("orderpost.correlation_id", context.current().correlation_id)
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR, str(status))
