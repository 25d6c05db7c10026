"""Correct e-mails after a restore from a backup: mark those that logs prove sent, hold the uncertain ones."""

from __future__ import annotations

import datetime as dt
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from django.db import transaction

from notifications.changes.evidence import record_evidence
from notifications.changes.manual_actions import NO_ROW, Refusal, why_not
from notifications.changes.settle import accept, set_aside
from notifications.log import EmailChange
from notifications.models import EmailNotification
from notifications.providers.webhook import Evidence
from notifications.states import transitions
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import Status
from runtime.database.clock import read_database_time

BATCH = 500


class Sent(NamedTuple):
    """The provider that accepted an e-mail, and its message id, as a log line has them."""

    provider: str
    message_id: str


def settle_logged(*, sent: Mapping[uuid.UUID, Sent]) -> int:
    """Mark the e-mails of a log `sent`. Return how many were not `sent` before."""
    unsent = EmailNotification.objects.filter(id__in=list(sent)).exclude(status=Status.SENT)
    by_provider: defaultdict[str, list[Evidence]] = defaultdict(list)
    for id in unsent.values_list("id", flat=True):
        by_provider[sent[id].provider].append(Evidence(id, sent[id].message_id, kind="log"))
    for provider, evidence in by_provider.items():
        record_evidence(provider=provider, evidence=evidence)
    return sum(map(len, by_provider.values()))


def hold_unproven(*, until: dt.datetime, reason: str) -> int:
    """Make dead letters of all e-mails that may have been sent before `until`. Return their number."""
    held = 0
    while changes := set_aside(until=until, reason=reason, limit=BATCH):
        held += len(changes)
    return held


def mark_sent(*, ids: Iterable[uuid.UUID]) -> tuple[list[EmailChange], list[Refusal]]:
    """Mark dead letters and waiting e-mails `sent` because a person knows that the customers have them.

    Return the changes and the refusals.
    """
    wanted = set(ids)
    with transaction.atomic():
        now = read_database_time()
        rows = EmailNotification.objects.filter(id__in=wanted).only("status").order_by("id")
        refused = {
            row.id: why_not(row=row, act=transitions.MARK_SENT, now=now) for row in rows.select_for_update()
        }
        taken = [id for id, refusal in refused.items() if refusal is None]
        changes = accept(dict.fromkeys(taken, Outcome(Verdict.ACCEPTED)))
    missing = [Refusal(id, NO_ROW) for id in sorted(wanted - refused.keys())]
    return changes, [*filter(None, refused.values()), *missing]
