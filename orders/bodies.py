"""What a caller says of an order, in a request's body or in an event's data, checked field by field."""

from __future__ import annotations

from rest_framework import serializers

from notifications.rendering import is_currency, is_locale
from outbox.api.fields import EmailAddress, Identifier, Integer, StrictSerializer, Text, WebAddress

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
