"""The API of an order's shipments: send a parcel, correct it, record its delivery or its return."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator

from django.http import HttpResponse
from django.urls import reverse
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from orders import shipments
from orders.api.access import find_order_id
from orders.api.serializers import ShipmentProblemSerializer, ShipmentSerializer
from orders.api.views import READ, TAGS, WRITE, refusals_as_problems
from orders.bodies import ShipmentBody, TrackingBody
from orders.models import Shipment
from orders.services import OrderChange
from web.api.idempotency import answer_once
from web.api.problem_types import declare_type
from web.api.problems import Problem, not_found
from web.api.schema import operation
from web.api.views import NO_SUCH_ID, ApiView, json_response, path_id, present

MORE_THAN_ORDERED = declare_type(
    slug="more-than-ordered",
    status=409,
    title="More than is left to ship",
    reason="The lines have more of an item than was ordered and has not left, or an unknown item.",
    advice="Ship at most left. A parcel that came back frees its items.",
)
TOO_MANY_SHIPMENTS = declare_type(
    slug="too-many-shipments",
    status=409,
    title="The order has too many shipments",
    reason=f"An order can have {shipments.MOST_SHIPMENTS} shipments.",
    advice="Put the rest into one of the parcels that have not left.",
)
Service = Callable[..., tuple[OrderChange, Shipment]]
shipment_operation = functools.partial(
    operation,
    scope=WRITE,
    has_body=True,
    ids=("id", "shipment_id"),
    answer=ShipmentSerializer,
    conflict=ShipmentProblemSerializer,
    tags=TAGS,
)


class ShipmentView(ApiView):
    """The base of the views that change a shipment."""

    scopes = {"POST": WRITE}

    def change(
        self, order_id: str, service: Service, *, shipment_id: str = "", status: int = 200
    ) -> HttpResponse:
        """Change a shipment once for each idempotency key. Answer with the changed shipment."""
        ids = {"order_id": path_id(order_id)}
        if shipment_id:
            ids["shipment_id"] = path_id(shipment_id)
        values = self.body()
        if self.first_read.token.source:
            find_order_id(order_id, self.first_read.token)

        def work() -> tuple[HttpResponse, uuid.UUID]:
            with refusals_as_problems(), _refusals_as_problems():
                change, shipment = service(**ids, **values)
            path = {"id": order_id, "shipment_id": shipment.id}
            location = reverse("shipment", kwargs=path) if status == 201 else ""
            answer = json_response(present(ShipmentSerializer, shipment), status=status, location=location)
            change.save()
            return answer, ids["order_id"]

        return answer_once(view=self, work=work)


class Shipments(ShipmentView):
    body_serializer = ShipmentBody

    @shipment_operation(
        name="ship_order",
        summary="Send a parcel of an order",
        ids=("id",),
        more="Without `lines` the parcel has all that is left. A `reference` that the order has returns that"
        " shipment, and fills in the tracking that it lacks.",
        body={"application/json": ShipmentBody},
        status=201,
        example={
            "reference": "P-1",
            "carrier": "DHL",
            "tracking_number": "00340434161094",
            "tracking_url": "https://parcels.example.com/00340434161094",
            "lines": [{"item": 0, "quantity": 2}],
        },
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        return self.change(id, shipments.ship, status=201)


class OneShipment(ShipmentView):
    scopes = {"GET": READ, "HEAD": READ, "PATCH": WRITE}
    body_serializer = TrackingBody

    @operation(
        name="get_shipment",
        summary="Get a shipment",
        scope=READ,
        ids=("id", "shipment_id"),
        answer=ShipmentSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str, shipment_id: str) -> HttpResponse:
        order_id = find_order_id(id, self.first_read.token)
        shipment = Shipment.objects.filter(id=path_id(shipment_id), order_id=order_id).first()
        if shipment is None:
            raise not_found(NO_SUCH_ID)
        return json_response(present(ShipmentSerializer, shipment))

    @shipment_operation(
        name="correct_shipment",
        summary="Correct the tracking of a parcel",
        body={"application/json": TrackingBody},
        example={
            "tracking_number": "00340434161095",
            "tracking_url": "https://parcels.example.com/00340434161095",
            "notify": True,
        },
    )
    def patch(self, request: Request, id: str, shipment_id: str) -> HttpResponse:
        return self.change(id, shipments.correct, shipment_id=shipment_id)


class DeliveredShipment(ShipmentView):
    @shipment_operation(name="deliver_shipment", summary="Record that a parcel was delivered")
    def post(self, request: Request, id: str, shipment_id: str) -> HttpResponse:
        return self.change(id, shipments.deliver, shipment_id=shipment_id)


class ReturnedShipment(ShipmentView):
    @shipment_operation(
        name="return_shipment",
        summary="Record that a parcel came back",
        more="Its items can be shipped again.",
    )
    def post(self, request: Request, id: str, shipment_id: str) -> HttpResponse:
        return self.change(id, shipments.take_return, shipment_id=shipment_id)


@contextlib.contextmanager
def _refusals_as_problems() -> Iterator[None]:
    try:
        yield
    except shipments.ImpossibleTime as error:
        raise ValidationError({"shipped_at": [str(error)]}) from None
    except shipments.ShipmentNotFound:
        raise not_found(NO_SUCH_ID) from None
    except shipments.MoreThanOrdered as refusal:
        raise Problem(MORE_THAN_ORDERED, detail=str(refusal), left=refusal.left) from None
    except shipments.TooManyShipments as refusal:
        raise Problem(TOO_MANY_SHIPMENTS, detail=str(refusal)) from None
