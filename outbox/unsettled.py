"""The outcomes that a drain has not written yet. Writing them continues after the database was away."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog
from django.db import InterfaceError, OperationalError, connections
from opentelemetry.trace import SpanKind

from notifications.models import EmailNotification
from notifications.states.outcomes import Outcome
from runtime.telemetry import health, tracing

log = structlog.get_logger(__name__)

#: Outcomes are written after so many or after so long, so that a crash causes few duplicates.
SETTLE_ROWS = 20
SETTLE_SECONDS = 0.1


class Unsettled:
    """The outcomes that wait, and the monotonic time at which they are due to be written."""

    def __init__(self) -> None:
        self._ended: list[tuple[EmailNotification, Outcome]] = []
        self._due_at = 0.0

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, row: EmailNotification, outcome: Outcome) -> None:
        if not self._ended:
            self._due_at = time.monotonic() + SETTLE_SECONDS
        self._ended.append((row, outcome))

    def take_due(self, *, at_once: bool) -> list[tuple[EmailNotification, Outcome]]:
        """Return and forget all outcomes if they are due or `at_once` is true. Otherwise return none."""
        if not (at_once or len(self) >= SETTLE_ROWS or time.monotonic() > self._due_at):
            return []
        taken, self._ended = self._ended, []
        return taken


def settle_until(
    *, ended: Sequence[tuple[EmailNotification, Outcome]], until: float
) -> list[EmailNotification]:
    """Settle, and try again while the database is away, until `until` (monotonic seconds).

    Log a row that cannot be written and leave it to its lease, so that the others are written.
    """
    wait = 0.05
    while True:
        health.beat("drain")
        try:
            with tracing.span("settle", kind=SpanKind.CLIENT) as span:
                span.set_attribute("db.system.name", "postgresql")
                changes = EmailNotification.objects.settle(ended)
        except (OperationalError, InterfaceError) as error:
            connections[EmailNotification.objects.db].close()
            if time.monotonic() + wait > until:
                log.error("outcomes lost, their leases will expire", count=len(ended), error=str(error))
                return []
            log.warning("settling failed, trying again", error=str(error), seconds=wait)
            time.sleep(wait)
            wait = min(wait * 2, 2.0)
        except Exception:
            if len(ended) == 1:
                log.exception("an outcome cannot be written", id=str(ended[0][0].id))
                return []
            singly = [settle_until(ended=[one], until=until) for one in ended]
            return [change for changes in singly for change in changes]
        else:
            changed = {row.id for row in changes}
            for row, outcome in ended:
                if row.id not in changed:
                    log.warning("lease lost, outcome dropped", id=str(row.id), outcome=str(outcome.verdict))
            return changes
