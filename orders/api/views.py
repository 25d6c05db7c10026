"""The API of orders. Views read with queries of their own, and change orders through orders.api.changing."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator

from django.http import HttpResponse
from django.urls import reverse
from rest_framework.request import Request

from notifications.api.serializers import COLUMNS, NotificationHotPageSerializer, NotificationSerializer
from notifications.models import EmailNotification
from orders import changes
from orders.api.changing import answer_change
from orders.api.serializers import (
    ChangeProblemSerializer,
    EventHotPageSerializer,
    EventSerializer,
    OrderPageSerializer,
    OrderQuery,
    OrderSerializer,
)
from orders.bodies import CancelBody, CompleteBody, OrderBody, RefundBody
from orders.models import SEEN_COLUMNS, Order
from orders.transitions import ExternallyOwned, InvalidTransition, RefundExceedsBalance
from outbox.api.fields import Nothing, StrictSerializer
from outbox.api.first_read import Beside, FirstRead
from outbox.api.pages import PageQuery, hot_since, paginate, parse_sequence
from outbox.api.problems import Problem, not_found
from outbox.api.schema import operation
from outbox.api.views import NO_SUCH_ID, ApiView, json_response, path_id, present
from outbox.models import OutboxEvent

READ, WRITE = "orders:read", "orders:write"
TAGS = ["orders"]


class Orders(ApiView):
    scopes = {"GET": READ, "HEAD": READ, "POST": WRITE}
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
        filters = {key: self.query[key] for key in ("user_id", "status", "reference") if key in self.query}
        rows = Order.objects.filter(**filters)
        return json_response(
            paginate(request=request, query=self.query, rows=rows, serializer=OrderSerializer)
        )

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
        },
    )
    def post(self, request: Request) -> HttpResponse:
        values = self.body()
        return answer_change(
            view=self, decide=lambda read: changes.place(now=read.now, **values), present=_placed
        )


def _placed(order: Order) -> HttpResponse:
    location = reverse("order", kwargs={"id": order.id})
    return json_response(present(OrderSerializer, order), status=201, location=location)


class OneOrder(ApiView):
    scopes = {"GET": READ, "HEAD": READ}

    @operation(
        name="get_order", summary="Get an order", scope=READ, has_id=True, answer=OrderSerializer, tags=TAGS
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        order = Order.objects.filter(id=path_id(id)).first()
        if order is None:
            raise not_found(NO_SUCH_ID)
        return json_response(present(OrderSerializer, order))


change_operation = functools.partial(
    operation,
    scope=WRITE,
    has_body=True,
    has_id=True,
    answer=OrderSerializer,
    conflict=ChangeProblemSerializer,
    tags=TAGS,
)


class ChangeView(ApiView):
    """The base of the five views that change an order."""

    scopes = {"POST": WRITE}
    beside = Beside(columns=f"o.id IS NOT NULL, {SEEN_COLUMNS}", join="LEFT JOIN orders AS o ON o.id = %s")

    def change(self, request: Request, id: str, decide: changes.Decide) -> HttpResponse:
        """Change the order once for each idempotency key. Answer with the changed order."""
        order_id, values = path_id(id), self.body()

        def decided(read: FirstRead) -> changes.OrderChange:
            if not read.beside:
                raise not_found(NO_SUCH_ID)
            with _refusals_as_problems():
                return decide(Order.objects.seen(now=read.now, columns=read.beside), **values)

        return answer_change(view=self, decide=decided, present=_changed, order_id=order_id)


def _changed(order: Order) -> HttpResponse:
    return json_response(present(OrderSerializer, order))


class PayOrder(ChangeView):
    @change_operation(name="pay_order", summary="Mark an order paid")
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, changes.pay)


class ConfirmOrder(ChangeView):
    @change_operation(name="confirm_order", summary="Confirm an order because its stock is reserved")
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, changes.confirm)


class CompleteOrder(ChangeView):
    body_serializer = CompleteBody

    @change_operation(
        name="complete_order",
        summary="Complete an order",
        body={"application/json": CompleteBody},
        example={"tracking_url": "https://parcels.example.com/42"},
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, changes.complete)


class CancelOrder(ChangeView):
    body_serializer = CancelBody

    @change_operation(
        name="cancel_order",
        summary="Cancel an order",
        body={"application/json": CancelBody},
        example={"reason": "Out of stock"},
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, changes.cancel)


class RefundOrder(ChangeView):
    body_serializer = RefundBody

    @change_operation(
        name="refund_order",
        summary="Refund an amount, or the whole balance",
        body={"application/json": RefundBody},
        example={"amount": 1000},
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(request, id, changes.refund)


@contextlib.contextmanager
def _refusals_as_problems() -> Iterator[None]:
    try:
        yield
    except ExternallyOwned as refusal:
        raise Problem(
            status=409,
            slug="externally-owned",
            title="Another system owns the order",
            detail=str(refusal),
            source=refusal.source,
        ) from None
    except InvalidTransition as refusal:
        raise Problem(
            status=409,
            slug="invalid-transition",
            title="The order's status does not allow this",
            detail=str(refusal),
            current_status=refusal.status,
            allowed_statuses=refusal.allowed_statuses,
            allowed_actions=list(refusal.allowed),
        ) from None
    except RefundExceedsBalance as refusal:
        raise Problem(
            status=409,
            slug="refund-exceeds-balance",
            title="More than is left to refund",
            detail=str(refusal),
            left=refusal.left,
        ) from None


class OrderNotifications(ApiView):
    """The e-mails of one order. The scope `orders:read` suffices, because they belong to the order."""

    scopes = {"GET": READ, "HEAD": READ}
    query_serializer = PageQuery

    @operation(
        name="list_order_notifications",
        summary="List an order's e-mails, oldest first",
        scope=READ,
        has_id=True,
        query=PageQuery,
        answer=NotificationHotPageSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        rows = EmailNotification.objects.filter(order_id=_existing(id)).only(*COLUMNS)
        page = paginate(
            request=request, query=self.query, rows=rows, serializer=NotificationSerializer, order="id"
        )
        return json_response(page | {"since": hot_since(model=EmailNotification)})


class OrderEvents(ApiView):
    """The domain events of one order, sorted by the order's version."""

    scopes = {"GET": READ, "HEAD": READ}
    query_serializer = PageQuery

    @operation(
        name="list_order_events",
        summary="List an order's domain events, oldest first",
        scope=READ,
        has_id=True,
        query=PageQuery,
        answer=EventHotPageSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        page = paginate(
            request=request,
            query=self.query,
            rows=OutboxEvent.objects.filter(aggregate_id=_existing(id)),
            serializer=EventSerializer,
            order="sequence",
            parse=parse_sequence,
        )
        return json_response(page | {"since": hot_since(model=OutboxEvent)})


def _existing(id: str) -> uuid.UUID:
    order_id = path_id(id)
    if not Order.objects.filter(id=order_id).exists():
        raise not_found(NO_SUCH_ID)
    return order_id
