"""The API of orders. Views read with queries of their own, and change orders through orders.services."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from django.db.models import Exists, OuterRef
from django.http import HttpResponse
from django.urls import reverse
from rest_framework.request import Request

from events.models import DomainEvent
from notifications.api.serializers import NotificationHotPageSerializer, NotificationSerializer, with_columns
from notifications.api.sources import visible
from notifications.models import EmailNotification
from orders import services
from orders.api.access import find_order, find_order_id
from orders.api.serializers import (
    ChangeProblemSerializer,
    EventHotPageSerializer,
    EventSerializer,
    OrderEventsQuery,
    OrderPageSerializer,
    OrderQuery,
    OrderSerializer,
    RefundedOrderSerializer,
    ShipmentSerializer,
    WholeOrderSerializer,
)
from orders.bodies import CancelBody, CompleteBody, OrderBody, RefundBody
from orders.models import NEWEST_FIRST, Order, Shipment
from orders.parcels import read_shipments
from orders.services import OrderChange
from orders.transitions import ExternallyOwned, InvalidTransition
from web.api.fields import Nothing, StrictSerializer
from web.api.idempotency import answer_once
from web.api.pages import PageQuery, hot_since, paginate
from web.api.problem_types import FORBIDDEN, declare_type
from web.api.problems import Problem, not_found
from web.api.schema import operation
from web.api.views import NO_SUCH_ID, ApiView, json_response, path_id, present

READ, WRITE = "orders:read", "orders:write"
TAGS = ["orders"]
EXTERNALLY_OWNED = declare_type(
    slug="externally-owned",
    status=409,
    title="Another system owns the order",
    reason="The order came from the system in source, which alone changes it.",
    advice="Change the order in that system.",
)
INVALID_TRANSITION = declare_type(
    slug="invalid-transition",
    status=409,
    title="The order's status does not allow this",
    reason="The order has the status in current_status. Perhaps another request changed it first.",
    advice="Read the order. allowed_actions lists what is possible now.",
)
REFUND_EXCEEDS_BALANCE = declare_type(
    slug="refund-exceeds-balance",
    status=409,
    title="More than is left to refund",
    reason="The amount is more than was paid and not yet refunded.",
    advice="Refund at most left, which is in minor units.",
)
REFUND_EXISTS = declare_type(
    slug="refund-exists",
    status=409,
    title="Another refund has this id",
    reason="A refund of the order with this refund_id was counted with another amount.",
    advice="Use another refund_id for another refund. amount is the counted one, in minor units.",
)
#: Parameters that filter by one column.
LOOKUPS = {
    "user_id": "user_id",
    "status": "status",
    "reference": "reference",
    "email": "email__iexact",
    "created_after": "created_at__gte",
    "created_before": "created_at__lt",
}


class Orders(ApiView):
    scopes = {"GET": READ, "HEAD": READ, "POST": WRITE}
    may_recall_token = True
    body_serializer = OrderBody

    @property
    def query_serializer(self) -> type[StrictSerializer]:  # type: ignore[override] # by method
        return Nothing if self.request.method == "POST" else OrderQuery

    @operation(
        name="list_orders",
        summary="List orders, newest first",
        scope=READ,
        query=OrderQuery,
        answer=OrderPageSerializer,
        tags=TAGS,
    )
    def get(self, request: Request) -> HttpResponse:
        filters = {LOOKUPS[name]: value for name, value in self.query.items() if name in LOOKUPS}
        rows = self.first_read.token.binding.only(Order.objects.filter(**filters))
        return json_response(paginate(view=self, rows=rows, serializer=OrderSerializer, order=NEWEST_FIRST))

    @operation(
        name="place_order",
        summary="Place an order",
        scope=WRITE,
        body=OrderBody,
        has_body=True,
        answer=OrderSerializer,
        status=201,
        tags=TAGS,
        example={
            "user_id": "6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11",
            "email": "alice@example.com",
            "name": "Alice",
            "total_amount": 4990,
            "currency": "EUR",
            "locale": "de",
            "reference": "A-1001",
            "items": [{"sku": "TEA-1", "name": "Green tea", "quantity": 2, "unit_amount": 1995}],
            "delivery_address": ["Alice Lee", "5 High Street", "Leeds LS1 1AA"],
            "billing_address": ["Alice Lee", "5 High Street", "Leeds LS1 1AA"],
            "delivery_method": "Standard",
            "payment_method": "Card ending in 4242",
            "customer_note": "Please ring twice",
            "order_url": "https://shop.example.com/orders/1001",
        },
    )
    def post(self, request: Request) -> HttpResponse:
        values = self.body()
        if source := self.first_read.token.source:
            raise Problem(
                FORBIDDEN,
                detail=f"This token places no orders here: {source} sends events of its own orders.",
                source=source,
            )

        def work() -> tuple[HttpResponse, uuid.UUID]:
            change = services.place(now=self.first_read.now, **values)
            location = reverse("order", kwargs={"id": change.order.id})
            answer = json_response(present(OrderSerializer, change.order), status=201, location=location)
            change.save()
            return answer, change.order.id

        return answer_once(view=self, work=work)


class OneOrder(ApiView):
    scopes = {"GET": READ, "HEAD": READ}

    @operation(
        name="get_order",
        summary="Get an order with its shipments",
        scope=READ,
        ids=("id",),
        answer=WholeOrderSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        of_order = Shipment.objects.filter(order_id=OuterRef("id"))
        order: Any = find_order(id, self.first_read.token, has_shipments=Exists(of_order))
        answer = present(WholeOrderSerializer, order)
        if order.has_shipments:
            answer["shipments"] = [present(ShipmentSerializer, row) for row in read_shipments(order)]
        return json_response(answer)


change_operation = functools.partial(
    operation,
    scope=WRITE,
    has_body=True,
    ids=("id",),
    answer=OrderSerializer,
    conflict=ChangeProblemSerializer,
    tags=TAGS,
)


class ChangeView(ApiView):
    """The base of the five views that change an order."""

    scopes = {"POST": WRITE}
    may_recall_token = True

    def change(self, request: Request, id: str, service: Callable[..., OrderChange]) -> HttpResponse:
        """Change the order once for each idempotency key. Answer with the changed order."""
        order_id, values = path_id(id), self.body()
        if self.first_read.token.source:
            find_order_id(id, self.first_read.token)

        def work() -> tuple[HttpResponse, uuid.UUID]:
            with refusals_as_problems():
                change = service(order_id=order_id, **values)
            answer = present(OrderSerializer, change.order)
            if change.warnings:
                answer["warnings"] = change.warnings
            change.save()
            return json_response(answer), order_id

        return answer_once(view=self, work=work)


class PayOrder(ChangeView):
    @change_operation(name="pay_order", summary="Mark an order paid")
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, services.pay)


class ConfirmOrder(ChangeView):
    @change_operation(name="confirm_order", summary="Confirm an order because its stock is reserved")
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, services.confirm)


class CompleteOrder(ChangeView):
    body_serializer = CompleteBody

    @change_operation(
        name="complete_order",
        summary="Complete an order",
        body={"application/json": CompleteBody},
        example={"tracking_url": "https://parcels.example.com/42"},
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, services.complete)


class CancelOrder(ChangeView):
    body_serializer = CancelBody

    @change_operation(
        name="cancel_order",
        summary="Cancel an order",
        body={"application/json": CancelBody},
        example={"reason": "Out of stock"},
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, services.cancel)


class RefundOrder(ChangeView):
    body_serializer = RefundBody

    @change_operation(
        name="refund_order",
        summary="Refund an amount, or the whole balance",
        body={"application/json": RefundBody},
        answer=RefundedOrderSerializer,
        example={"amount": 1000, "refund_id": "re_1"},
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, services.refund)


@contextlib.contextmanager
def refusals_as_problems() -> Iterator[None]:
    """Raise the problem of a refused change."""
    try:
        yield
    except services.OrderNotFound:
        raise not_found(NO_SUCH_ID) from None
    except ExternallyOwned as refusal:
        raise Problem(
            EXTERNALLY_OWNED,
            detail=str(refusal),
            source=refusal.source,
        ) from None
    except InvalidTransition as refusal:
        raise Problem(
            INVALID_TRANSITION,
            detail=str(refusal),
            current_status=refusal.status,
            allowed_statuses=refusal.allowed_statuses,
            allowed_actions=list(refusal.allowed),
        ) from None
    except services.RefundExceedsBalance as refusal:
        raise Problem(
            REFUND_EXCEEDS_BALANCE,
            detail=str(refusal),
            left=refusal.left,
        ) from None
    except services.RefundExists as refusal:
        raise Problem(REFUND_EXISTS, detail=str(refusal), amount=refusal.amount) from None


class OrderNotifications(ApiView):
    """The e-mails of one order. The scope `orders:read` suffices: they belong to the order."""

    scopes = {"GET": READ, "HEAD": READ}
    query_serializer = PageQuery

    @operation(
        name="list_order_notifications",
        summary="List an order's e-mails, oldest first",
        scope=READ,
        ids=("id",),
        query=PageQuery,
        answer=NotificationHotPageSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        order_id = find_order_id(id, self.first_read.token)
        emails = EmailNotification.objects.filter(order_id=order_id)
        rows = with_columns(visible(emails, self.first_read.token))
        page = paginate(view=self, rows=rows, serializer=NotificationSerializer, order=["id"])
        return json_response(page | {"since": hot_since(model=EmailNotification)})


class OrderEvents(ApiView):
    """The domain events of one order, sorted by the order's version."""

    scopes = {"GET": READ, "HEAD": READ}
    query_serializer = OrderEventsQuery

    @operation(
        name="list_order_events",
        summary="List an order's domain events, oldest first",
        scope=READ,
        ids=("id",),
        query=OrderEventsQuery,
        answer=EventHotPageSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        page = paginate(
            view=self,
            # A shop chooses the ids of its orders, and another aggregate may have the same id.
            rows=DomainEvent.objects.filter(
                aggregate_type="order", aggregate_id=find_order_id(id, self.first_read.token)
            ),
            serializer=EventSerializer,
            order=["sequence"],
        )
        return json_response(page | {"since": hot_since(model=DomainEvent)})
