"""GET /orders/{id}/timeline: the history of an order, oldest first."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework import serializers
from rest_framework.request import Request

from notifications.changes.trail import TimelineEntry
from notifications.models import EmailNotification
from orders.api.access import find_order
from orders.timeline import read_timeline
from web.api.pages import hot_since
from web.api.schema import HotPageSerializer, operation
from web.api.views import ApiView, json_response, present

#: A timeline shows at most so many entries, the newest.
MOST = 1000


class TimelineEntrySerializer(serializers.Serializer[TimelineEntry]):
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(
        choices=["change", "event", "email", "attempt", "delivery", "person", "plan"],
        help_text="`plan`: it will happen at that time",
    )
    what = serializers.CharField(help_text="For programs: order.paid, created, transient, sent, bounced, …")
    text = serializers.CharField(help_text="For people. Its wording may change")
    notification_id = serializers.UUIDField(allow_null=True)
    event_id = serializers.UUIDField(allow_null=True)
    provider = serializers.CharField(help_text="Empty if no provider is involved")
    by = serializers.CharField(
        help_text="The login of the person who did it. Empty if no person did, or for a token of one source"
    )


class TimelineSerializer(HotPageSerializer):
    results = TimelineEntrySerializer(many=True)


class Timeline(ApiView):
    """A list without pages, since an order has few entries. `next` and `previous` are null."""

    scopes = {"GET": "orders:read", "HEAD": "orders:read"}

    @operation(
        name="get_order_timeline",
        summary="Return an order's timeline, oldest first",
        scope="orders:read",
        ids=("id",),
        answer=TimelineSerializer,
        tags=["orders"],
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        order, shops = find_order(id, self.first_read.token), self.first_read.token.binding
        entries = read_timeline(order=order, shops=shops, is_for_shop=not shops.is_unbound)
        results = [present(TimelineEntrySerializer, entry) for entry in entries[-MOST:]]
        page: dict[str, Any] = {"next": None, "previous": None, "results": results}
        return json_response(page | {"since": hot_since(model=EmailNotification)})
