"""Pause and resume delivery, the relay and the consumers.

After a restore, a pause keeps the restored moment. It ends only when `manage.py after_restore` has read the
logs: the e-mails and events that were sent after this moment would be sent again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import structlog
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from notifications.wake import Reason, wake
from runtime.audit import Actor, record
from runtime.database.transactions import after_commit
from runtime.models import AuditRow, Heartbeat, Pause
from runtime.personal_data import refuse_addresses

log = structlog.get_logger(__name__)

#: What a part does unless it is paused.
WORK = {
    Pause.Part.DELIVERY: "e-mails are sent",
    Pause.Part.RELAY: "events are published",
    Pause.Part.CONSUMERS: "events of other services are processed",
}
#: What a pause of a part stops, and who pays for it.
COSTS = {
    Pause.Part.DELIVERY: (
        "No e-mail leaves. Customers who pay, cancel or get a refund hear nothing, and write to support. Each"
        " e-mail comes as late as the pause is long."
    ),
    Pause.Part.RELAY: (
        "No event is published. Other services, such as stock, shipping and accounting, learn of no change of"
        " an order until the pause ends."
    ),
    Pause.Part.CONSUMERS: (
        "No event of another service is processed. Customers who have paid see an unpaid order and get no"
        " e-mail, and the broker keeps the events only as long as its retention."
    ),
}


class NotReconciled(Exception):
    """A restored database would send again the e-mails and events sent after the restored moment."""


def pause(
    *, parts: Iterable[str], reason: str, by: Actor, restored_to: dt.datetime | None = None
) -> list[str]:
    """Pause parts, and return those that were not paused yet. The others keep their reason.

    `restored_to` is the moment to which the database was restored. Such a pause replaces a pause that came
    with the backup. Raise `AddressGiven` if the reason has an address.
    """
    refuse_addresses(reason)
    paused: list[str] = []
    with transaction.atomic():
        for part in sorted(set(parts)):
            if restored_to is not None:
                other = Q(restored_to=None) | ~Q(restored_to=restored_to)
                Pause.objects.filter(other, part=part).delete()
            _, is_new = Pause.objects.get_or_create(
                part=part,
                defaults={"reason": reason[:200], "username": by.name[:150], "restored_to": restored_to},
            )
            if is_new:
                paused.append(part)
        record(*(_act(part, "Paused.", reason[:200]) for part in paused), by=by)

    def tell() -> None:
        for part in paused:
            log.warning("paused", part=part, reason=reason[:200], user=by.name)

    after_commit(tell)
    return paused


def resume(*, parts: Iterable[str], by: Actor, force: bool = False) -> list[str]:
    """End pauses, wake the workers, and return the parts that were paused.

    If the database was restored and `manage.py after_restore` has not run, raise `NotReconciled`, unless
    `force`.
    """
    with transaction.atomic():
        rows = list(Pause.objects.filter(part__in=list(parts)).order_by("part").select_for_update())
        if not force and any(row.restored_to and not row.reconciled_at for row in rows):
            raise NotReconciled(
                "the database was restored, and manage.py after_restore has not run, "
                "so e-mails and events would be sent again: run it first"
            )
        Pause.objects.filter(part__in=[row.part for row in rows]).delete()
        if any(row.part == Pause.Part.DELIVERY for row in rows):
            Heartbeat.beat(name=Heartbeat.DELIVERY_RESUMED)
        record(*(_act(row.part, "Resumed.") for row in rows), by=by)

    def tell() -> None:
        for row in rows:
            log.warning("resumed", part=row.part, user=by.name)
        if any(row.part == Pause.Part.DELIVERY for row in rows):
            wake(Reason.RESEND)

    after_commit(tell)
    return [row.part for row in rows]


def _act(part: str, act: str, reason: str = "") -> AuditRow:
    kind, model = AuditRow.Kind.PAUSE, Pause._meta.label_lower
    return AuditRow(
        kind=kind, act=act, reason=reason, subject_type=model, subject_id=part, subject=f"pause of {part}"
    )


def reconcile() -> None:
    """Record that the logs since the restored moment were read."""
    Pause.objects.filter(restored_to__isnull=False, reconciled_at=None).update(reconciled_at=Now())
