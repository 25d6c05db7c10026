"""Record what providers tell about e-mails: find the e-mails, mark them `sent`, keep times, suppress.

An event is about the e-mail whose id is in its metadata, else about the one that this provider accepted under
the event's message id, else about the one whose Message-ID it names. It counts only if the provider may have
that e-mail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import structlog
from django.db import transaction

from notifications import metrics
from notifications.changes.settle import accept
from notifications.log import EmailChange
from notifications.models import EmailNotification, EventTimes, StoredReport
from notifications.provider_tests import record_events
from notifications.providers.registry import declarations
from notifications.providers.webhook import Evidence
from notifications.states.errors import may_have
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import Status
from notifications.suppressions import SuppressionReason, suppress
from runtime.charts.sums import add_to_hour, read_last_day
from runtime.database.transactions import after_commit
from runtime.models import Pause
from runtime.telemetry import tracing

log = structlog.get_logger(__name__)

#: The series of the events that match no e-mail, by provider.
_UNMATCHED = "unmatched:{}"


def record_evidence(*, provider: str, evidence: Iterable[Evidence]) -> None:
    """Write a provider's evidence: mark unsent e-mails `sent`, keep times, suppress addresses.

    The number of statements does not depend on the number of events. The delivery of a sent e-mail, which
    most posts report, takes two: a read and an update. A repeated event changes nothing. If events of a kind
    have several times, the earliest counts.
    """
    facts = list(evidence)
    about, stored, strangers = _match(provider, [fact for fact in facts if fact.is_proof])
    changes: list[EmailChange] = []
    bounced = {fact.bounced_address for fact in strangers if fact.bounced_address}
    lost = EmailNotification.objects.accepted_lately(provider=provider, addresses=bounced)
    # No verb leaves `sent`, and a time can only become earlier, so a single such row needs no lock.
    is_sent = len(about) <= 1 and all(row.status == Status.SENT for row in stored.values())
    is_quick = is_sent and not lost and not any(fact.suppress for fact in facts)
    with contextlib.nullcontext() if is_quick else transaction.atomic():
        if about and not is_quick:  # locks the rows, in the order of their ids
            changes = accept(
                {id: Outcome(Verdict.ACCEPTED, provider, some[0].message_id) for id, some in about.items()}
            )
        times = [_times(id, some) for id, some in about.items()]
        with tracing.span("record evidence", links=[row.traceparent for row in stored.values()]) as span:
            span.set_attribute("orderpost.provider", provider)
            changed = EmailNotification.objects.keep_earliest(times)
            suppress(
                [
                    *(
                        SuppressionReason(
                            stored[id].recipient_email, fact.suppress, provider, id, stored[id].source
                        )
                        for id, some in about.items()
                        for fact in some
                        if fact.suppress and not _is_repeat(fact, stored[id].times)
                    ),
                    *(
                        SuppressionReason(fact.bounced_address, fact.suppress, provider)
                        for fact in strangers
                        if fact.suppress and fact.bounced_address in lost
                    ),
                ]
            )
    unmatched = len(strangers) - (record_events(provider=provider, facts=strangers) if strangers else 0)
    if unmatched:
        add_to_hour({_UNMATCHED.format(provider): unmatched})

    def tell() -> None:
        for time in times:
            if time.id in changed:
                for kind in metrics.newly_reported(time, stored[time.id].times):
                    metrics.FEEDBACK.labels(provider, kind).inc()
        metrics.UNMATCHED.labels(provider).inc(unmatched)
        log.info(
            "webhook events",
            provider=provider,
            events=len(facts),
            unmatched=unmatched,
            changed=len(changes),
            kinds=dict(Counter(fact.kind for fact in facts)),
        )

    after_commit(tell)


def count_unmatched() -> Mapping[str, int]:
    """Return by provider how many events of the last day matched no e-mail."""
    samples = read_last_day()
    start = _UNMATCHED.format("")
    return {
        series.removeprefix(start): number for series, number in samples.items() if series.startswith(start)
    }


def _match(
    provider: str, facts: Sequence[Evidence]
) -> tuple[dict[uuid.UUID, list[Evidence]], dict[uuid.UUID, StoredReport], list[Evidence]]:
    """Return the events by e-mail, the rows of these e-mails, and the events that are about none."""
    about: dict[uuid.UUID, list[Evidence]] = {}
    stored: dict[uuid.UUID, StoredReport] = {}

    def sort(facts: Sequence[Evidence], rows: Mapping[uuid.UUID, StoredReport]) -> list[Evidence]:
        """Keep the events whose id is that of a row that the provider may have. Return the others."""
        stored.update(_only_offered(provider, rows))
        rest = []
        for fact in facts:
            if fact.id in stored:
                about.setdefault(fact.id, []).append(fact)
            else:
                rest.append(fact)
        return rest

    rest = sort(facts, EmailNotification.objects.read_reported({fact.id for fact in facts if fact.id}))
    if message_ids := {fact.message_id for fact in rest if fact.message_id}:
        rows = EmailNotification.objects.read_accepted(provider=provider, message_ids=message_ids)
        times = Counter(row.provider_message_id for row in rows.values())
        ids = {row.provider_message_id: id for id, row in rows.items() if times[row.provider_message_id] == 1}
        rest = sort([_with_id(fact, ids.get(fact.message_id)) for fact in rest], rows)
    if header_ids := {fact.header_id for fact in rest if fact.header_id}:
        rows = EmailNotification.objects.read_reported(header_ids)
        rest = sort([_with_id(fact, fact.header_id) for fact in rest], rows)
    return about, stored, rest


def _with_id(fact: Evidence, id: uuid.UUID | None) -> Evidence:
    return dataclasses.replace(fact, id=id or fact.id)


def _only_offered(provider: str, rows: Mapping[uuid.UUID, StoredReport]) -> Mapping[uuid.UUID, StoredReport]:
    """Return the rows that the provider may have. After a restore, that is any row until it is resumed.

    A mail server may be the provider's relay, whose e-mails the provider reports as its own.
    """
    asked = [provider, *(name for name, declared in declarations().items() if not declared.webhook)]
    offered = {
        id: row
        for id, row in rows.items()
        if may_have(asked=asked, provider=row.provider, status=row.status, errors=row.errors)
    }
    if len(offered) < len(rows) and Pause.objects.filter(restored_to__isnull=False).exists():
        return rows
    return offered


def _is_repeat(fact: Evidence, stored: EventTimes) -> bool:
    """Return whether a bounce or complaint was recorded before. A person may have lifted it since."""
    bounced = fact.bounced_at is not None and fact.bounced_at == stored.bounced_at
    return bounced or (fact.complained_at is not None and fact.complained_at == stored.complained_at)


def _times(id: uuid.UUID, facts: Sequence[Evidence]) -> EventTimes:
    """Return the earliest time of each kind of event."""

    def earliest(times: Iterable[dt.datetime | None]) -> dt.datetime | None:
        return min((time for time in times if time), default=None)

    return EventTimes(
        id,
        delivered_at=earliest(fact.delivered_at for fact in facts),
        bounced_at=earliest(fact.bounced_at for fact in facts),
        complained_at=earliest(fact.complained_at for fact in facts),
        bounce_text=next((fact.bounce_text for fact in facts if fact.bounce_text), ""),
    )
