"""The search box's results among e-mails."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from notifications.models import EmailNotification
from runtime.addresses import as_stored
from runtime.database.ids import parse_uuid
from web.admin.search import SHOWN, Hit, searches


@searches(20)
def emails(request: HttpRequest, term: str) -> Iterator[Hit]:
    """Find e-mails by address, id, correlation id or the provider's message id, in one statement by indexes.

    A search for an order's id or reference finds the order, whose page lists its e-mails.
    """
    if not request.user.has_perm("notifications.view_emailnotification"):
        return
    named = Q(provider_message_id=term) | Q(correlation_id=term)
    if "@" in term:
        named |= Q(recipient_email__iexact=as_stored(term))
    if id := parse_uuid(term):
        named |= Q(id=id)
    rows = EmailNotification.objects.filter(named).only(
        "id", "event_type", "recipient_email", "status", "shop_copy_of"
    )
    for email in rows.order_by("-id")[:SHOWN]:
        yield Hit(
            key=f"mail {email.id}",
            kind="shop copy" if email.shop_copy_of else "e-mail",
            title=f"{email.event_type} to {email.recipient_email}",
            detail=email.status.replace("_", " "),
            url=reverse("admin:notifications_emailnotification_change", args=[email.id]),
        )
