"""The fields of an order in a request's body and in an inbound event's data, with their checks."""

from __future__ import annotations

from rest_framework import serializers

from notifications.rendering import is_currency, is_locale
from web.api.fields import EmailAddress, Identifier, Integer, StrictSerializer, Text, WebAddress

MAX_AMOUNT = 10**12
MAX_ITEMS = 200


# /api/schema shows the docstrings of these classes.
class ItemBody(StrictSerializer):
    """One line of an order."""

    sku = Text(max_length=100)
    name = Text(max_length=200)
    quantity = Integer(min_value=1, max_value=10**6)
    unit_amount = Integer(min_value=0, max_value=MAX_AMOUNT, help_text="In minor units")


class OrderBody(StrictSerializer):
    """An order to place. The total includes shipping and tax, so it may differ from the sum of the items."""

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
            raise serializers.ValidationError(
                "This is not the ISO 4217 code of a currency in use, such as USD."
            )
        return value

    def validate_locale(self, value: str) -> str:
        if not is_locale(value):
            raise serializers.ValidationError("This is not a language tag, such as en or de-AT.")
        return value


class CompleteBody(StrictSerializer):
    """The address at which the customer can track the parcel, if known."""

    tracking_url = WebAddress(required=False)


class CancelBody(StrictSerializer):
    """The reason for the cancellation. The customer reads it."""

    reason = Text(required=False, allow_blank=True, max_length=500)


class RefundBody(StrictSerializer):
    """The amount to refund. Without it, the whole balance is refunded."""

    amount = Integer(required=False, min_value=1, max_value=MAX_AMOUNT, help_text="In minor units")
