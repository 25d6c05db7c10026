"""The queries and answers of the API of orders. orders.bodies has the bodies of requests."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from typing import Any

from django.db import models
from rest_framework import serializers

from orders.bodies import ChargeBody, Field, Fields, given
from orders.fields import (
    DETAIL_FIELDS,
    ITEM_FIELDS,
    NO_DETAILS,
    ORDER_FIELDS,
    Kind,
    OrderField,
    Use,
    longest,
    names,
)
from orders.models import Order, Shipment
from web.api.fields import Choice, EmailAddress, Identifier, Text
from web.api.pages import PageQuery, PeriodQuery, cursor_field
from web.api.schema import HotPageSerializer, PageSerializer, ProblemSerializer


class OrderQuery(PeriodQuery):
    cursor = cursor_field(models.DateTimeField, models.UUIDField)
    user_id = Identifier(required=False)
    status = Choice(choices=Order.Status.choices, required=False)
    reference = Text(required=False, max_length=longest("reference"))
    email = EmailAddress(required=False, help_text="The whole address, in any case")


class OrderEventsQuery(PageQuery):
    cursor = cursor_field(models.PositiveIntegerField)


def _answered(fields: tuple[OrderField, ...]) -> Fields:
    """Return the fields of an answer, by name. Only the API's document uses them."""
    return {field.name: _documented(field) for field in fields if Use.ANSWERS in field.uses}


def _documented(field: OrderField) -> Field:
    match field.kind:
        case Kind.ID:
            return serializers.UUIDField()
        case Kind.AMOUNT:
            return serializers.IntegerField()
        case Kind.NUMBER:
            return serializers.IntegerField(help_text=field.help or None)
        case Kind.STATUS:
            return serializers.ChoiceField(choices=Order.Status.choices)
        case Kind.FULFILMENT:
            return serializers.ChoiceField(choices=Order.Fulfilment.choices, help_text=field.help)
        case Kind.TIME:
            return serializers.DateTimeField()
        case Kind.ITEMS:
            return ItemSerializer(many=True)
        case _:
            return serializers.CharField()


class ItemSerializer(serializers.Serializer[Any]):
    total_amount = serializers.IntegerField(
        required=False, help_text="What the shop shows for the line. Absent if it gave none"
    )

    def get_fields(self) -> Fields:
        return _answered(ITEM_FIELDS) | super().get_fields()


class OrderSerializer(serializers.Serializer[Order]):
    source = serializers.CharField(  # type: ignore[assignment] # the field hides an attribute of DRF's
        required=False, help_text="The system that owns the order. Absent if this system owns it"
    )

    charges = ChargeBody(many=True, required=False, help_text="Absent if the order has none")
    unexpected_payment_at = serializers.DateTimeField(
        required=False,
        help_text="When a payment came that must be returned. Absent if none must",
    )

    def get_fields(self) -> Fields:
        return _answered(ORDER_FIELDS) | given(DETAIL_FIELDS) | super().get_fields()

    def to_representation(self, instance: Order) -> dict[str, Any]:
        """Return an order as these fields would, but five times as fast: every write shows an order.

        DRF's fields would cost 2.5 to 4 percent of the web's CPU for placing and paying an order. Leave out
        `source` unless another system owns the order, and charges, details and `unexpected_payment_at` if
        there are none.
        """
        shown: dict[str, Any] = dict(zip(_NAMES, _values(instance), strict=True))
        for name, convert in _CONVERTED:
            shown[name] = convert(shown[name])
        if instance.charges:
            shown["charges"] = instance.charges
        if instance.details:
            shown |= {name: instance.details[name] for name in NO_DETAILS if name in instance.details}
        if instance.source:
            shown["source"] = instance.source
        if instance.unexpected_payment_at:
            shown["unexpected_payment_at"] = _instant(instance.unexpected_payment_at)
        return shown


def _items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: item[name] for name in _ITEM if name in item} for item in items]


def _instant(time: dt.datetime) -> str:
    """Write a time as DRF does. Times from the database are in UTC."""
    return time.isoformat().removesuffix("+00:00") + "Z"


_NAMES, _ITEM = names(Use.ANSWERS), names(Use.ANSWERS, ITEM_FIELDS)
_values = operator.attrgetter(*_NAMES)
#: Values of these kinds are not shown as they are.
_CONVERT: dict[Kind, Callable[[Any], Any]] = {
    Kind.ID: str,
    Kind.STATUS: str,
    Kind.FULFILMENT: str,
    Kind.ITEMS: _items,
    Kind.TIME: _instant,
}
_CONVERTED = [
    (field.name, _CONVERT[field.kind])
    for field in ORDER_FIELDS
    if Use.ANSWERS in field.uses and field.kind in _CONVERT
]


class RefundedOrderSerializer(OrderSerializer):
    warnings = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="What to check, in words. Absent if nothing"
    )


class LineSerializer(serializers.Serializer[Any]):
    item = serializers.IntegerField(help_text="The index of an item of the order, from 0")
    quantity = serializers.IntegerField()


class ShipmentSerializer(serializers.Serializer[Shipment]):
    id = serializers.UUIDField()
    order_id = serializers.UUIDField()
    reference = serializers.CharField(allow_null=True, help_text="The shop's or the warehouse's own number")
    carrier = serializers.CharField()
    tracking_number = serializers.CharField()
    tracking_url = serializers.CharField()
    lines = LineSerializer(many=True, help_text="Empty if nobody said what the parcel has")
    shipped_at = serializers.DateTimeField(
        allow_null=True, help_text="null if only the delivery or the return was told so far"
    )
    delivered_at = serializers.DateTimeField(allow_null=True)
    returned_at = serializers.DateTimeField(allow_null=True)


class WholeOrderSerializer(OrderSerializer):
    shipments = ShipmentSerializer(
        many=True, required=False, help_text="Oldest first. Absent if there are none"
    )


class EventSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    event_type = serializers.CharField(help_text="The topic: `order.order.paid.v1`")
    version = serializers.IntegerField(help_text="The version of the payload's schema")
    sequence = serializers.IntegerField(help_text="The order's version after the change")
    payload = serializers.DictField()
    metadata = serializers.DictField()
    created_at = serializers.DateTimeField()
    published_at = serializers.DateTimeField(allow_null=True)


class OrderPageSerializer(PageSerializer):
    results = OrderSerializer(many=True)


class EventHotPageSerializer(HotPageSerializer):
    results = EventSerializer(many=True)


class ChangeProblemSerializer(ProblemSerializer):
    """`invalid-transition`, `refund-exceeds-balance`, `refund-exists` or `externally-owned`."""

    current_status = serializers.ChoiceField(choices=Order.Status.choices, required=False)
    allowed_statuses = serializers.ListField(child=serializers.CharField(), required=False)
    allowed_actions = serializers.ListField(child=serializers.CharField(), required=False)
    left = serializers.IntegerField(required=False, help_text="The refundable amount, in minor units")
    amount = serializers.IntegerField(
        required=False, help_text="Of the refund that has this refund_id, in minor units"
    )
    source = serializers.CharField(  # type: ignore[assignment] # the field hides an attribute of DRF's
        required=False, help_text="The system that owns the order"
    )


class ShipmentProblemSerializer(ChangeProblemSerializer):
    """`more-than-ordered`, `too-many-shipments`, `invalid-transition` or `externally-owned`."""

    left = LineSerializer(  # type: ignore[assignment] # of refunds it is an amount
        many=True, required=False, help_text="What is left to ship of each item"
    )
