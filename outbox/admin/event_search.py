"""What the search box finds among events, in and out."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpRequest
from django.urls import reverse

from outbox.admin.shared.base import as_uuid
from outbox.admin.shared.search import SHOWN, Hit, searches
from outbox.models import InboundDeadLetter, OutboxEvent


@searches(30)
def events(request: HttpRequest, term: str) -> Iterator[Hit]:
    """Find an event by its id. Those of an order are on the order's page."""
    if (id := as_uuid(term)) is None:
        return
    if request.user.has_perm("outbox.view_outboxevent"):
        for event in OutboxEvent.objects.filter(id=id):
            url = reverse("admin:outbox_outboxevent_change", args=[event.id])
            yield Hit(
                f"event {event.id}", "event", str(event), "published" if event.published_at else "", url
            )
    if request.user.has_perm("outbox.view_deadevent"):
        for letter in InboundDeadLetter.objects.filter(event_id=id).order_by("-id")[:SHOWN]:
            url = reverse("admin:outbox_inbounddeadletter_change", args=[letter.id])
            yield Hit(f"inbound {letter.id}", "inbound dead letter", str(letter), letter.error[:80], url)
