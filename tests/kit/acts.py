"""The rows of the audit."""

from __future__ import annotations

from django.db import transaction
from django.db.models import QuerySet

from runtime.audit import Actor, record
from runtime.models import AuditRow


def acts() -> QuerySet[AuditRow]:
    """Return the acts but logins and starts of jobs, the oldest first."""
    return AuditRow.objects.exclude(kind__in=["login", "job"]).order_by("id")


def told_acts() -> list[str]:
    """Return what each act says, with its reason."""
    return [f"{row.act} {row.reason}".rstrip() for row in acts()]


def record_now(*rows: AuditRow, by: Actor | None = None) -> None:
    """Record acts in a transaction of their own."""
    with transaction.atomic():
        record(*rows, by=by or Actor("operator"))
