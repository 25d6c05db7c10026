"""Report unexpected errors to Sentry, without addresses, names or tokens.

Called by config.settings when SENTRY_DSN is set. Request bodies and local variables are not sent at all;
what is sent goes through config.logs.scrub.
"""

from __future__ import annotations

import logging
from typing import Any

import sentry_sdk
import structlog
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from config.logs import scrub


def init(
    *, dsn: str, environment: str, traces_sample_rate: float = 0.0, transport: Transport | None = None
) -> None:
    """Start reporting to the project that `dsn` names. `transport` is for tests. Raise `BadDsn`."""
    sentry_sdk.init(
        dsn=dsn,
        environment=environment,
        traces_sample_rate=traces_sample_rate,
        transport=transport,
        integrations=[
            DjangoIntegration(),
            CeleryIntegration(monitor_beat_tasks=True),
            # Lines of the log become breadcrumbs; errors are captured where they happen, once.
            LoggingIntegration(level=logging.INFO, event_level=None),
        ],
        # send_default_pii stays unset, which means no; setting it at all is deprecated.
        include_local_variables=False,
        max_request_body_size="never",
        before_send=_clean_event,
        before_send_transaction=_clean_event,
        before_send_log=_clean,
        before_breadcrumb=_clean,
    )


def _clean(event: Any, _: Any) -> Any:
    return scrub(event)


def _clean_event(event: Any, _: Any) -> Any:
    cleaned = scrub(event)
    correlation_id = structlog.contextvars.get_contextvars().get("correlation_id")
    if correlation_id:
        cleaned["tags"] = {**dict(cleaned.get("tags") or {}), "correlation_id": correlation_id}
    return cleaned
