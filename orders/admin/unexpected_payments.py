"""The button on an order's page that ends an unexpected payment."""

from __future__ import annotations

import uuid

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse

from orders import services
from orders.admin.addresses import act_on_order
from orders.models import Order
from runtime.audit import record
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from web.actors import user_actor


class UnexpectedPayments(admin.ModelAdmin[Order]):
    def returned_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Record that the payment was returned whose event's id is posted as `event`."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        # The same persons decide about refused events and their money.
        if not request.user.has_perm("events.resolve_inbounddeadletter"):
            raise PermissionDenied
        if (event_id := parse_uuid(request.POST.get("event", ""))) is None:
            raise Http404
        try:
            with transaction.atomic():
                services.end_unexpected_payment(order_id=id, event_id=event_id).save()
                order = Order.objects.only("source").get(id=id)
                said = f"Returned the unexpected payment of the event {event_id}."
                act = act_on_order(order, kind=AuditRow.Kind.PAYMENT, act=said)
                record(act, by=user_actor(request))
        except services.OrderNotFound as error:
            raise Http404 from error
        except services.NothingUnexpected as refusal:
            self.message_user(request, str(refusal), messages.WARNING)
        else:
            self.message_user(request, "The payment counts as returned.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:orders_order_change", args=[id]))
