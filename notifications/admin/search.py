"""Find e-mails for the admin's search box."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from notifications.admin.email_list import addressed_to, with_order
from notifications.admin.email_state import describe_copy, state_pill
from notifications.models import EmailNotification
from web.admin.rights import shops_of
from web.admin.search import SHOWN, Hit, Term, searches


@searches(20)
def emails(request: HttpRequest, term: Term) -> Iterator[Hit]:
    """Find e-mails by address, id, correlation id or the provider's message id, in one statement by indexes.

    A search for an order's id or reference finds the order, whose page lists its e-mails.
    """
    if not request.user.has_perm("notifications.view_emailnotification"):
        return
    shops = shops_of(request)
    named = addressed_to(request, term) | Q(provider_message_id=term.text) | Q(correlation_id=term.text)
    rows = with_order(EmailNotification.objects.filter(named).defer("body", "body_text", "errors"))
    for email in shops.only(rows).order_by("-id")[: SHOWN + 1]:
        yield Hit(
            key=f"mail {email.id}",
            kind=describe_copy(email) or "e-mail",
            title=f"{email.subject} to {email.recipient_email}",
            reference=getattr(email, "reference", None) or "",
            at=email.created_at,
            state=state_pill(email),
            url=reverse("admin:notifications_emailnotification_change", args=[email.id]),
        )
