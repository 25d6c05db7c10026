"""Report unexpected errors to Sentry, without addresses, names or tokens.

config.settings calls it if SENTRY_DSN is set. Each log line at `error` is an event, and so is an exception
that leaves a task. Request bodies and local variables are not sent. The rest is masked.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.integrations.logging import LoggingIntegration, ignore_logger
from sentry_sdk.transport import Transport

from config.masking import mask_values
from runtime.telemetry import context
from runtime.telemetry.release import version


def init(*, dsn: str, transport: Transport | None = None) -> None:
    """Start reporting to the project of `dsn`. `transport` is for tests. Raise `BadDsn`."""
    sentry_sdk.init(
        dsn=dsn,
        # The SDK's own default is the commit of a checkout, and the image has none.
        release=os.environ.get("SENTRY_RELEASE") or f"orderpost@{version()}",
        transport=transport,
        integrations=[
            DjangoIntegration(),
            CeleryIntegration(monitor_beat_tasks=True),
            # Log lines become breadcrumbs, and lines at `error` become events.
            LoggingIntegration(level=logging.INFO, event_level=logging.ERROR),
        ],
        # Unset, send_default_pii is off. Setting it is deprecated.
        include_local_variables=False,
        max_request_body_size="never",
        before_send=_clean_event,
        before_send_log=_clean,
        before_breadcrumb=_clean,
    )
    # A batch has up to 500 events. As breadcrumbs they would cost more than publishing them.
    ignore_logger("events.published")
    ignore_logger("django.security.*")  # requests of scanners, answered with 400


def _clean(event: Any, _: Any) -> Any:
    return mask_values(event)


def _clean_event(event: Any, _: Any) -> Any:
    cleaned = mask_values(event)
    if "release" in event:
        cleaned["release"] = event["release"]  # package@version would be masked as an address
    correlation_id = context.ids().get("correlation_id")
    if correlation_id:
        cleaned["tags"] = {**dict(cleaned.get("tags") or {}), "correlation_id": correlation_id}
    return cleaned
