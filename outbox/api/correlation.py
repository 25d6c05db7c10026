"""Gives each request its correlation id and its one line in the log. The outermost middleware.

Whatever is answered, errors and admin pages included, carries the id in `X-Correlation-ID`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponseBase

from outbox.core import context

log = structlog.get_logger("orderpost.access")

HEADER = "X-Correlation-ID"


class CorrelationMiddleware:
    """See the module."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Take the caller's id and trace if they are well formed, else make an id; log when answered."""
        given = context.accept_correlation_id(request.headers.get(HEADER))
        work = context.Context(
            given or context.new_correlation_id(),
            context.accept_traceparent(request.headers.get("traceparent")),
        )
        started = time.perf_counter()
        with context.working_for(work):
            response = self.get_response(request)
            response.headers[HEADER] = work.correlation_id
            log.info(
                "request",
                method=request.method,
                path=request.path,  # not the query: a search for an address has one
                status=response.status_code,
                duration_ms=round((time.perf_counter() - started) * 1000, 1),
            )
        return response
