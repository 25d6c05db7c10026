"""What the search box finds among e-mails."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from notifications.models import EmailNotification
from outbox.admin.shared.base import as_uuid
from outbox.admin.shared.search import SHOWN, Hit, searches


@searches(20)
def mails(request: HttpRequest, term: str) -> Iterator[Hit]:
    """Find by address, id, correlation id and the provider's message id: one statement, each part an index.

    The e-mails of an order are on the order's page, which its id and reference lead to.
    """
    if not request.user.has_perm("notifications.view_emailnotification"):
        return
    named = Q(provider_message_id=term) | Q(correlation_id=term)
    if "@" in term:
        named |= Q(recipient_email__iexact=term)
    if id := as_uuid(term):
        named |= Q(id=id)
    rows = EmailNotification.objects.filter(named).only("id", "event_type", "recipient_email", "status")
    for mail in rows.order_by("-id")[:SHOWN]:
        yield Hit(
            key=f"mail {mail.id}",
            kind="e-mail",
            title=f"{mail.event_type} to {mail.recipient_email}",
            detail=mail.status.replace("_", " "),
            url=reverse("admin:notifications_emailnotification_change", args=[mail.id]),
        )
