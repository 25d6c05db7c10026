"""The outcomes that a drain has not written yet. Writing them continues after the database was away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import structlog
from django.db import InterfaceError, OperationalError, connections
from opentelemetry.trace import SpanKind

from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import Outcome
from outbox.delivery.rows.queryset import DeliverableQuerySet
from outbox.delivery.rows.settlements import Settlement, Transition
from outbox.telemetry import health, tracing

log = structlog.get_logger(__name__)

#: Outcomes are written after so many or after so long, so that a crash causes few duplicates.
SETTLE_ROWS = 20
SETTLE_SECONDS = 0.1

Row = TypeVar("Row", bound=Deliverable)


class Unsettled:
    """The outcomes that wait, and the monotonic time at which they are due to be written."""

    def __init__(self) -> None:
        self._settlements: list[Settlement] = []
        self._due_at = 0.0

    def __len__(self) -> int:
        return len(self._settlements)

    def add(self, row: Deliverable, outcome: Outcome) -> None:
        if not self._settlements:
            self._due_at = time.monotonic() + SETTLE_SECONDS
        self._settlements.append(Settlement(row.id, outcome, row.claim_token, row.charge))

    def take_due(self, *, at_once: bool) -> list[Settlement]:
        """Return and forget all outcomes if they are due or `at_once` is true. Otherwise return none."""
        if not (at_once or len(self) >= SETTLE_ROWS or time.monotonic() > self._due_at):
            return []
        taken, self._settlements = self._settlements, []
        return taken


def settle_until(
    *, rows: DeliverableQuerySet[Row], settlements: Sequence[Settlement], until: float
) -> list[Transition]:
    """Settle, and try again while the database is away, until `until` (monotonic seconds).

    Log a row that cannot be written and leave it to its lease, so that the others are written.
    """
    wait = 0.05
    while True:
        health.beat("drain")
        try:
            with tracing.span("settle", kind=SpanKind.CLIENT) as span:
                span.set_attribute("db.system.name", "postgresql")
                changes = rows.settle(settlements)
        except (OperationalError, InterfaceError) as error:
            connections[rows.db].close()
            if time.monotonic() + wait > until:
                log.error("outcomes lost, their leases will expire", count=len(settlements), error=str(error))
                return []
            log.warning("settling failed, trying again", error=str(error), seconds=wait)
            time.sleep(wait)
            wait = min(wait * 2, 2.0)
        except Exception:
            if len(settlements) == 1:
                log.exception("an outcome cannot be written", id=str(settlements[0].id))
                return []
            singly = [settle_until(rows=rows, settlements=[one], until=until) for one in settlements]
            return [change for changes in singly for change in changes]
        else:
            changed = {change.row.id for change in changes}
            for stale in (one for one in settlements if one.id not in changed):
                log.warning(
                    "lease lost, outcome dropped", id=str(stale.id), outcome=str(stale.outcome.verdict)
                )
            return changes
