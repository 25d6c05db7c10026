"""The queries and answers of the API of orders. orders.bodies has the bodies of requests."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from typing import Any

from django.db import models
from rest_framework import serializers

from orders.bodies import longest
from orders.emails import language_of
from orders.fields import CHARGE_KINDS, DETAIL_NAMES
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


class ItemSerializer(serializers.Serializer[Any]):
    sku = serializers.CharField()
    name = serializers.CharField()
    quantity = serializers.IntegerField()
    unit_amount = serializers.IntegerField()
    total_amount = serializers.IntegerField(
        required=False, help_text="What the shop shows for the line, if it is not quantity × unit_amount"
    )


class ChargeSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=CHARGE_KINDS)
    label = serializers.CharField(required=False)  # type: ignore[assignment] # hides an attribute of DRF's
    amount = serializers.IntegerField(help_text="In minor units. A negative one takes off")
    included = serializers.BooleanField(
        required=False, help_text="True for a tax that is in the other amounts, and not added to them"
    )


class OrderSerializer(serializers.Serializer[Order]):
    id = serializers.UUIDField()
    user_id = serializers.UUIDField()
    email = serializers.CharField()
    name = serializers.CharField()
    reference = serializers.CharField()
    status = serializers.ChoiceField(choices=Order.Status.choices)
    fulfilment = serializers.ChoiceField(
        choices=Order.Fulfilment.choices, help_text="How much of the order has left in parcels"
    )
    version = serializers.IntegerField(help_text="Grows with every event of the order")
    total_amount = serializers.IntegerField()
    refunded_amount = serializers.IntegerField()
    currency = serializers.CharField()
    locale = serializers.CharField()
    items = ItemSerializer(many=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    email_language = serializers.SerializerMethodField(help_text="In which its e-mails are written")
    charges = ChargeSerializer(many=True, required=False, help_text="Absent if the order has none")
    # Each of these is absent if the order has none.
    delivery_address = serializers.ListField(child=serializers.CharField(), required=False)
    billing_address = serializers.ListField(child=serializers.CharField(), required=False)
    delivery_method = serializers.CharField(required=False)
    payment_method = serializers.CharField(required=False)
    customer_note = serializers.CharField(required=False)
    order_url = serializers.CharField(required=False, help_text="The order's page in the shop")
    time_zone = serializers.CharField(required=False, help_text="Of the dates in the order's e-mails")
    source = serializers.CharField(  # type: ignore[assignment] # the field hides an attribute of DRF's
        required=False, help_text="The system that owns the order. Absent if this system owns it"
    )
    unexpected_payment_at = serializers.DateTimeField(
        required=False,
        help_text="When a payment came that must be returned. Absent if none must",
    )

    def get_email_language(self, order: Order) -> str:
        return language_of(order)

    def to_representation(self, instance: Order) -> dict[str, Any]:
        """Return an order as these fields would, but five times as fast: every write shows an order.

        DRF's fields would cost 2.5 to 4 percent of the web's CPU for placing and paying an order. Leave out
        `source` unless another system owns the order, and charges, details and `unexpected_payment_at` if
        there are none.
        """
        shown: dict[str, Any] = dict(zip(_NAMES, _values(instance), strict=True))
        for name, convert in _CONVERT.items():
            shown[name] = convert(shown[name])
        shown["email_language"] = self.get_email_language(instance)
        if instance.charges:
            shown["charges"] = instance.charges
        if instance.details:
            shown |= {name: instance.details[name] for name in DETAIL_NAMES if name in instance.details}
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


#: The columns that each answer has.
_NAMES = tuple(name for name, field in OrderSerializer().fields.items() if field.required)
_ITEM = tuple(ItemSerializer().fields)
_values = operator.attrgetter(*_NAMES)
#: Values that are not shown as they are.
_CONVERT: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("id", "user_id", "status", "fulfilment"), str),
    **dict.fromkeys(("created_at", "updated_at"), _instant),
    "items": _items,
}


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
