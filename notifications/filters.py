"""The filters of e-mails, by the names of their URL parameters.

The admin's list, its CSV files and bulk jobs share them. Bulk jobs store the parameters.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db.models import CharField, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.utils import timezone

from notifications.failure_causes import cause_of_row
from notifications.models import OWN_ORDERS, EmailNotification, EmailNotificationQuerySet
from notifications.states.outcomes import Verdict
from notifications.states.transitions import Status
from runtime.database import periods

#: Parameters that filter by the value of the column of that name.
COLUMNS = ("status", "event_type", "provider")
NAMES = (*COLUMNS, "delivery", "shop", "cause", "failing", *periods.NAMES)
#: The outcome of an e-mail's last attempt.
LAST_OUTCOME = RawSQL("(errors -> -1 ->> 'outcome')", [], output_field=CharField())
#: What a provider reported of an e-mail, or that it may have taken it (`notifications.conditions`).
DELIVERIES = {
    "delivered": Q(delivered_at__isnull=False),
    "bounced": Q(bounced_at__isnull=False),
    "held": Q(status=Status.FAILED, next_attempt_at__gt=Now()),
}


def orders() -> Any:
    """Return the orders, whose package is above this one."""
    model = EmailNotification._meta.get_field("order").related_model
    assert isinstance(model, type)
    return model._default_manager.all()


def narrow(rows: EmailNotificationQuerySet, params: Mapping[str, str]) -> EmailNotificationQuerySet:
    """Apply the parameters. Ignore empty and unknown ones."""
    for name in COLUMNS:
        if value := params.get(name):
            rows = rows.filter(**{name: value})
    delivery = params.get("delivery", "")
    if delivery in DELIVERIES:
        rows = rows.filter(DELIVERIES[delivery])
    if delivery == "held":
        rows = rows.alias(last_outcome=LAST_OUTCOME).filter(last_outcome=Verdict.AMBIGUOUS)
    if shop := params.get("shop"):
        rows = rows.filter(source="" if shop == OWN_ORDERS else shop)
    if cause := params.get("cause"):
        rows = rows.dead().alias(cause=cause_of_row()).filter(cause=cause)
    if params.get("failing") == "hour":
        rows = rows.failing()
    return periods.narrow_to_period(rows, params, now=timezone.now())


def rows_at(params: Mapping[str, str], started_at: dt.datetime | None) -> EmailNotificationQuerySet:
    """Return the rows that match. If `started_at` is given, only those that have not changed since then."""
    rows = narrow(EmailNotification.objects.all(), params)
    return rows if started_at is None else rows.filter(updated_at__lte=started_at)


def freeze(params: Mapping[str, str], *, now: dt.datetime) -> dict[str, str]:
    """Return the known parameters, with relative periods replaced by moments (`now` is the reference)."""
    chosen = {name: str(params[name]) for name in NAMES if params.get(name)}
    return periods.freeze_period(chosen, now=now)


def describe(params: Mapping[str, str]) -> str:
    shown = {name: str(params[name]).replace("_", " ") for name in NAMES if params.get(name)}
    if "cause" in shown:
        shown["cause"] = f"{shown['cause'][:6]}…"
    words = [f"{name.replace('_', ' ')} {value}" for name, value in shown.items()]
    return "e-mails, " + ", ".join(words) if words else "all e-mails"
