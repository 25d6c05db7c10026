"""The bodies, queries and answers of the API of orders."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from notifications.rendering import is_currency, is_locale
from orders.models import Order
from outbox.api.fields import Choice, EmailAddress, Identifier, Integer, StrictSerializer, Text, WebAddress
from outbox.api.pages import PageQuery
from outbox.api.schema import HotPageSerializer, PageSerializer, ProblemSerializer

MAX_AMOUNT = 10**12
MAX_ITEMS = 200


# The docstrings of the bodies are their descriptions in /api/schema.
class ItemBody(StrictSerializer):
    """One line of an order."""

    sku = Text(max_length=100)
    name = Text(max_length=200)
    quantity = Integer(min_value=1, max_value=10**6)
    unit_amount = Integer(min_value=0, max_value=MAX_AMOUNT, help_text="In minor units")


class OrderBody(StrictSerializer):
    """An order to place. Its items need not add up to the total, which has shipping and tax in it."""

    user_id = Identifier()
    email = EmailAddress()
    total_amount = Integer(min_value=1, max_value=MAX_AMOUNT, help_text="In minor units, such as cents")
    name = Text(required=False, allow_blank=True, max_length=200)
    currency = Text(required=False, max_length=3, help_text="ISO 4217; USD if absent")
    locale = Text(required=False, max_length=20, help_text="Language of the e-mails; en if absent")
    reference = Text(required=False, allow_blank=True, max_length=100, help_text="The shop's own number")
    items = ItemBody(many=True, required=False, max_length=MAX_ITEMS)  # type: ignore[call-arg] # of the list

    def validate_currency(self, value: str) -> str:
        if not is_currency(value):
            raise serializers.ValidationError("This is no ISO 4217 code of a currency in use, such as USD.")
        return value

    def validate_locale(self, value: str) -> str:
        if not is_locale(value):
            raise serializers.ValidationError("This is no language tag, such as en or de-AT.")
        return value


class CompleteBody(StrictSerializer):
    """Where the parcel can be tracked, if known."""

    tracking_url = WebAddress(required=False)


class CancelBody(StrictSerializer):
    """Why the order is cancelled. The customer reads it."""

    reason = Text(required=False, allow_blank=True, max_length=500)


class RefundBody(StrictSerializer):
    """The amount to refund. Without it, all that is left."""

    amount = Integer(required=False, min_value=1, max_value=MAX_AMOUNT, help_text="In minor units")


class OrderQuery(PageQuery):
    user_id = Identifier(required=False)
    status = Choice(choices=Order.Status.choices, required=False)
    reference = Text(required=False, max_length=100)


class ItemSerializer(serializers.Serializer[Any]):
    sku = serializers.CharField()
    name = serializers.CharField()
    quantity = serializers.IntegerField()
    unit_amount = serializers.IntegerField()


class OrderSerializer(serializers.Serializer[Order]):
    id = serializers.UUIDField()
    user_id = serializers.UUIDField()
    email = serializers.CharField()
    name = serializers.CharField()
    reference = serializers.CharField()
    status = serializers.ChoiceField(choices=Order.Status.choices)
    version = serializers.IntegerField(help_text="Grows by one with every change")
    total_amount = serializers.IntegerField()
    refunded_amount = serializers.IntegerField()
    currency = serializers.CharField()
    locale = serializers.CharField()
    items = ItemSerializer(many=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class EventSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    event_type = serializers.CharField(help_text="The topic: `order.order.paid.v1`")
    version = serializers.IntegerField(help_text="Of the payload's schema")
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
    """Why a change is refused: `invalid-transition` or `refund-exceeds-balance`."""

    current_status = serializers.ChoiceField(choices=Order.Status.choices, required=False)
    allowed_statuses = serializers.ListField(child=serializers.CharField(), required=False)
    allowed_actions = serializers.ListField(child=serializers.CharField(), required=False)
    left = serializers.IntegerField(required=False, help_text="What can be refunded, in minor units")
