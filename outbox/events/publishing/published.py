"""The log lines of published events: the evidence, outside the database, of what the broker has.

A logger of its own: config.sentry leaves it out of the breadcrumbs, which would cost more than the lines.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import structlog

from outbox.models.outgoing import OutgoingEvent

log = structlog.get_logger(__name__)


def log_published(events: Sequence[OutgoingEvent]) -> None:
    """Log a line for each event, in one call: `each` becomes lines in config.logs."""
    if log.isEnabledFor(logging.INFO):
        log.info("event published", each=[event.ids for event in events])
